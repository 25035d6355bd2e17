"""IsoScore forward and backward: the closed form against singular values of the covariance."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks._data import bumpy_cloud
from benchmarks.speed._harness import Comparison, compare
from isoadapt.geometry._isoscore import isoscore_star

D = 768
TARGETS = {64: 30.0, 700: 5.0, 8192: 1.5}


def run(quick: bool) -> Iterator[Comparison]:
    """Compare at three sizes, after checking that values and gradients agree."""
    for n, target in TARGETS.items():
        X = bumpy_cloud(n, D, seed=0)
        ours, gradient = value_and_gradient(isoscore_star, X)
        theirs, expected = value_and_gradient(isoscore_by_singular_values, X)
        error = float((gradient - expected).norm() / expected.norm())
        if not (abs(ours - theirs) < 1e-4 and error < 1e-2):
            raise ValueError(f"values {ours:.6f} and {theirs:.6f}, gradients {error:.2g} apart")
        yield compare(
            "IsoScore forward + backward, against singular values of the covariance",
            partial(value_and_gradient, isoscore_star, X),
            partial(value_and_gradient, isoscore_by_singular_values, X),
            repeats=2 if quick else 9,
            target=target,
            rows=X,
        )


def isoscore_by_singular_values(X: Tensor) -> Tensor:
    """Compute IsoScore step by step from its definition, differentiably.

    The spectrum is scaled to the length of the vector of ones. Its distance from that vector,
    divided by the largest possible distance, gives the share of dimensions in use.
    """
    spectrum = torch.linalg.svdvals(torch.cov(X.T))
    d = len(spectrum)
    scaled = math.sqrt(d) * spectrum / torch.linalg.vector_norm(spectrum)
    room = d - math.sqrt(d)
    defect = torch.linalg.vector_norm(scaled - 1) / math.sqrt(2 * room)
    used = (1 - defect.square() * room / d).square()
    return (d * used - 1) / (d - 1)


def value_and_gradient(score: Callable[[Tensor], Tensor], X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score of points and its gradient."""
    points = X.detach().requires_grad_()
    value = score(points)
    (gradient,) = torch.autograd.grad(value, points)
    return value.detach(), gradient

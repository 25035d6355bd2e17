"""IsoScore* forward and backward: the closed form against singular values of the covariance."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks._data import bumpy_cloud
from benchmarks.speed._harness import Comparison, compare
from isoadapt.geometry._isoscore import isoscore_star

D = 768
TARGETS = {64: 30.0, 700: 5.0, 8192: 1.5}

ScoreFunction = Callable[[Tensor, Tensor | None, float], Tensor]


def run(quick: bool) -> list[Comparison]:
    """Measure the plain score at three sizes, and the score with a shrinkage covariance."""
    prior_cov = torch.cov(bumpy_cloud(4 * D, D, seed=1).T)
    settings: list[tuple[str, Tensor | None, float]] = [
        ("IsoScore forward + backward", None, 0.0),
        ("IsoScore* with prior_cov, zeta=0.2, forward + backward", prior_cov, 0.2),
    ]
    repeats = 2 if quick else 9
    return [
        _compare(
            name, bumpy_cloud(n, D, seed=0), prior_cov, zeta, None if zeta else target, repeats
        )
        for name, prior_cov, zeta in settings
        for n, target in TARGETS.items()
    ]


def isoscore_by_singular_values(X: Tensor, prior_cov: Tensor | None, zeta: float) -> Tensor:
    """Compute IsoScore* step by step from its definition, differentiably.

    The spectrum is scaled to the length of the vector of ones. Its distance from that vector,
    divided by the largest possible distance, gives the share of dimensions in use.
    """
    mixture = torch.cov(X.T)
    if prior_cov is not None:
        mixture = (1 - zeta) * mixture + zeta * prior_cov
    spectrum = torch.linalg.svdvals(mixture)
    d = len(spectrum)
    scaled = math.sqrt(d) * spectrum / torch.linalg.vector_norm(spectrum)
    room = d - math.sqrt(d)
    defect = torch.linalg.vector_norm(scaled - 1) / math.sqrt(2 * room)
    used = (1 - defect.square() * room / d).square()
    return (d * used - 1) / (d - 1)


def check_agreement(X: Tensor, prior_cov: Tensor | None, zeta: float) -> None:
    """Raise if the two algorithms differ by more than 1e-4 in value or 1 % in gradient."""
    ours, gradient = _value_and_gradient(isoscore_star, X, prior_cov, zeta)
    theirs, expected = _value_and_gradient(isoscore_by_singular_values, X, prior_cov, zeta)
    error = float((gradient - expected).norm() / expected.norm())
    if not (abs(ours - theirs) < 1e-4 and error < 1e-2):
        raise ValueError(
            f"n={len(X)}, zeta={zeta}: values {ours:.6f} and {theirs:.6f}, gradients {error:.2g} "
            "apart"
        )


def _compare(
    name: str, X: Tensor, prior_cov: Tensor | None, zeta: float, target: float | None, repeats: int
) -> Comparison:
    check_agreement(X, prior_cov, zeta)
    return compare(
        f"{name}, against singular values of the covariance",
        lambda: _value_and_gradient(isoscore_star, X, prior_cov, zeta),
        lambda: _value_and_gradient(isoscore_by_singular_values, X, prior_cov, zeta),
        repeats=repeats,
        target=target,
        n=len(X),
        d=X.shape[1],
        zeta=zeta,
    )


def _value_and_gradient(
    score: ScoreFunction, X: Tensor, prior_cov: Tensor | None, zeta: float
) -> tuple[float, Tensor]:
    points = X.detach().requires_grad_()
    value = score(points, prior_cov, zeta)
    (gradient,) = torch.autograd.grad(value, points)
    return value.item(), gradient

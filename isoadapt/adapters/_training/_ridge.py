"""The ridge on changes of a head's outputs, and its automatic weight."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import f as f_distribution
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoadapt.adapters._maps import Floats
from isoadapt.adapters._training._networks import Adapted, HeadedNetwork
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import DEAD

_LEVEL = 0.95
_LEAST_SHARE = 0.01  # lower bound of the share of signal


def automatic_ridge(
    X: NDArray[Any],
    targets: NDArray[Any],
    outputs: Floats,
    moments: Moments,
    weights: Floats | None = None,
) -> float:
    """Estimate the weight of the mean squared change of the head's outputs in the task loss.

    The step of the outputs that lowers the task loss is a regression of its negative gradient on
    the embeddings X (n, d). With F the statistic of its F-test, about 1/F of the explained variance
    is noise. The share taken as signal is, more cautiously, s = 1 - q/F, at least 0.01, with q the
    0.95 quantile of F without any signal. The ridge shrinks by s the step that minimises a
    quadratic upper bound of the task loss. It is (1 - s) / s for the mean squared error and (1 - s)
    / (4 s) for the cross-entropy, whose curvature is at most 1/2. `outputs` (n, n_outputs) have the
    units of the targets, and `weights` (n,) have mean 1.
    """
    residuals = _residuals(targets, outputs)
    roots = np.ones((1, 1)) if weights is None else np.sqrt(weights)[:, None]
    share = max(_share_of_signal(X, roots, residuals, moments), _LEAST_SHARE)
    ridge = (1 - share) / share
    return ridge / 4 if targets.ndim == 1 else ridge


def _residuals(targets: NDArray[Any], outputs: Floats) -> Floats:
    """Return the gradient of each row's task loss with respect to its outputs, up to a factor."""
    if targets.ndim == 2:
        return outputs - targets
    residuals = softmax(outputs, axis=1)
    residuals[np.arange(len(targets)), targets] -= 1
    return residuals


def _share_of_signal(X: NDArray[Any], roots: Floats, residuals: Floats, moments: Moments) -> float:
    """Return 1 - q/F, at least 0, of the regression of the residuals on the embeddings.

    `roots`, (n, 1) or (1, 1), are the square roots of the row weights.
    """
    n = len(residuals)  # distinct rows: repeated rows do not add degrees of freedom
    cov = moments.covariance(ddof=0).numpy()
    eigenvalues, vectors = np.linalg.eigh(cov)
    live = eigenvalues > DEAD * cov.trace()
    n_directions = 1 + int(live.sum())
    if n <= n_directions:
        return 0.0
    residuals = roots * residuals
    total, mean = (residuals**2).sum() / n, (roots * residuals).sum(axis=0) / n
    crossed = (roots * residuals).T @ X / n - np.outer(mean, moments.mean.numpy())
    explained = ((crossed @ vectors[:, live]) ** 2 / eigenvalues[live]).sum() + (mean**2).sum()
    if not explained > 0:
        return 0.0
    left = max(total - explained, 0.0)
    quantile = f_distribution.ppf(_LEVEL, n_directions, n - n_directions)
    ratio = (explained / n_directions) / max(left / (n - n_directions), np.finfo(float).tiny)
    return float(max(0.0, 1 - quantile / ratio))


class OutputRidge(NamedTuple):
    """The weighted mean squared change of each member's head outputs since the start.

    For a linear network it is computed over all training rows, from their moments. Over a batch
    with fewer rows than dimensions the ridge would act in a few directions only, and Adam's
    full-sized steps would change the outputs in the others. For other networks it is computed over
    the batch.
    """

    weights: Tensor  # of each member's change, (K,)
    coef: Tensor  # from the network's inputs to the outputs at the start, (K, n_outputs, d)
    intercept: Tensor  # offset of that map, (K, 1, n_outputs)
    mean: Tensor  # of the inputs, (K or 1, d, 1)
    root: Tensor  # of their shrunk covariance, (K or 1, d, d), or its diagonal (K or 1, 1, d)
    # Whether the outputs are logits: then only their differences count, and squares are summed
    # over the outputs. Otherwise squares are averaged.
    classifies: bool

    @classmethod
    def of(
        cls,
        module: HeadedNetwork,
        weights: Sequence[float],
        means: Floats,
        roots: Floats,
        classifies: bool,
    ) -> Self:
        """Take the present outputs as the reference.

        `means` have shape (K or 1, 1, d), and `roots` (K or 1, d, d) or (K or 1, d).
        """
        if module.coef is None or module.intercept is None:
            raise ValueError("this network was made without a head")
        with torch.no_grad():
            coef = module.coef @ module.network.weight
            intercept = module.intercept + module.network.bias @ module.coef.mT
        root = torch.as_tensor(roots).to(coef)
        return cls(
            torch.tensor(weights).to(coef),
            coef,
            intercept,
            torch.as_tensor(means).to(coef).mT,
            root[:, None] if root.ndim == 2 else root,
            classifies,
        )

    def __call__(self, adapted: Adapted, X: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """Return the weighted mean squared changes (K,) on network inputs X (n, d) or (K, n, d)."""
        if adapted.reader is not None:
            coef, intercept = adapted.reader
            change, shift = coef - self.coef, (intercept - self.intercept).mT
            squares = _MeanSquare.apply(change, shift, self.root, self.mean, self.classifies)
            return self.weights * squares
        if adapted.outputs is None:
            raise ValueError("this network was made without a head")
        start = torch.baddbmm(self.intercept, X.expand_as(adapted.points), self.coef.mT)
        squares = _relative((adapted.outputs - start).mT, self.classifies).square()
        squares = squares.sum(-2) if self.classifies else squares.mean(-2)
        if row_weights is not None:
            squares = squares * row_weights
        return self.weights * squares.mean(-1)

    def keep(self, members: Tensor) -> "OutputRidge":
        """Return the ridge of the given members only."""
        shared = len(self.root) == 1
        parts = (self.weights, self.coef, self.intercept)
        weights, coef, intercept = (part[members] for part in parts)
        mean, root = (part if shared else part[members] for part in (self.mean, self.root))
        return OutputRidge(weights, coef, intercept, mean, root, self.classifies)


class _MeanSquare(torch.autograd.Function):
    """Mean square (K,) of Dx + s, for random x of the given mean and covariance root R.

    D has shape (K, n_outputs, d) and s (K, n_outputs, 1). A hand-written gradient replaces many
    small operations, which would take as long as the matrix products of the network.
    """

    @staticmethod
    def forward(
        ctx: Any, coef: Tensor, shift: Tensor, root: Tensor, mean: Tensor, classifies: bool
    ) -> Tensor:
        coef, shift = _relative(coef, classifies), _relative(shift, classifies)
        spread = coef @ root if root.shape[-2] > 1 else coef * root
        shift = torch.baddbmm(shift, coef, mean.expand(len(coef), -1, -1))
        ctx.save_for_backward(spread, shift, root, mean)
        ctx.scale = 1.0 if classifies else 1 / coef.shape[-2]
        return (spread.square().sum((-2, -1)) + shift.square().sum((-2, -1))) * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        spread, shift, root, mean = ctx.saved_tensors
        grad = (2 * ctx.scale * grad)[:, None, None]
        to_shift = grad * shift
        to_spread = spread @ root.mT if root.shape[-2] > 1 else spread * root
        return torch.addcmul(to_shift @ mean.mT, grad, to_spread), to_shift, None, None, None


def _relative(outputs: Tensor, classifies: bool) -> Tensor:
    """Subtract from logits (K, n_outputs, m) their class mean; return values unchanged."""
    return outputs - outputs.mean(-2, keepdim=True) if classifies else outputs

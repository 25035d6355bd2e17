"""IsoScore and IsoScore* in closed form.

Both are affine in the participation ratio PR = tr(Σ)² / ‖Σ‖_F² of a covariance Σ:
IsoScore = (PR - 1) / (d - 1). This equals the result of the eigenvalue procedure of Rudman et al.
(2022) exactly, and it is smooth where eigenvalues coincide.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isoadapt.geometry._spread import is_rounding, participation_ratio, unbiased_squares

_WIDE = (torch.float32, torch.float64)


class SquaredNorm(NamedTuple):
    """‖BBᵀ‖² at a factor B and its gradient, from which it is estimated at others near B."""

    value: Tensor  # (...)
    gradient: Tensor  # (..., d, r)

    @classmethod
    @torch.no_grad()
    def at(cls, root: Tensor) -> "SquaredNorm":
        """Compute both at a factor (..., d, r)."""
        d, rank = root.shape[-2:]
        smaller = root @ root.mT if d < rank else root.mT @ root
        product = smaller @ root if d < rank else root @ smaller
        return cls(smaller.square().sum((-2, -1)), product.mul_(4))

    @torch.no_grad()
    def renew(self, members: Sequence[int], root: Tensor) -> None:
        """Compute both again, in place, for some members of factors (K, d, r)."""
        # One by one, so that what is multiplied stays in the cache of a CPU.
        parts = [slice(k, k + 1) for k in members]
        if root.device.type != "cpu" and len(members) == len(root):
            parts = [slice(None)]
        for part in parts:
            self.value[part], self.gradient[part] = SquaredNorm.at(root[part])

    def estimate(self, root: Tensor) -> Tensor:
        """Estimate the squared norm (...) at another factor (..., d, r)."""
        # Homogeneous of degree 4, as the norm itself, and by Hölder's inequality never too large.
        value = self.value.where(self.value > 0, 1.0)
        return self.value * (_dots(self.gradient, root) / (4 * value)) ** 4


class FactoredCovariance(NamedTuple):
    """A covariance BBᵀ whose factor B is trained, with ‖BBᵀ‖² of an earlier factor."""

    root: Tensor  # B, (d, r) or (..., d, r)
    squared_norm: SquaredNorm


def isoscore_star(
    X: Tensor,
    prior_cov: Tensor | FactoredCovariance | None = None,
    zeta: float | Tensor = 0.0,
    bias_corrected: bool = False,
) -> Tensor:
    """IsoScore (...) of (1-ζ)Σ_X + ζΣ_S of points (..., n, d), NaN where that is zero."""
    if X.dtype not in _WIDE:
        X = X.to(torch.float32)
    n, d = X.shape[-2:]
    if n < (4 if bias_corrected else 2) or d < 2:
        raise ValueError(
            f"X has n_samples={n}, n_features={d}: IsoScore with bias_corrected={bias_corrected} "
            f"needs n_samples >= {4 if bias_corrected else 2} and n_features >= 2"
        )
    zeta = zeta.to(X) if isinstance(zeta, Tensor) else zeta
    mixed = isinstance(zeta, Tensor) or zeta != 0
    with torch.autocast(X.device.type, enabled=False):
        mean = X.mean(-2, keepdim=True)
        centred = X - mean if mixed else _standardise(X - mean, mean)
        # The Gram matrix and the covariance have the same trace and norm: take the smaller.
        small = _Gram.apply(centred.mT if n < d else centred) / (n - 1)
        trace, square = _trace(small), small.square().sum((-2, -1))
        trace_square = trace.square()
        if bias_corrected:
            lengths = small.diagonal(dim1=-2, dim2=-1)
            if n >= d:
                lengths = centred.square().sum(-1) / (n - 1)
            fourth = (n - 1) * lengths.square().sum(-1)
            trace_square, square = unbiased_squares(trace, square, fourth, n)
        if mixed:
            cross, prior_trace, prior_square = _prior_terms(prior_cov, centred, small)
            keep, both = (1 - zeta) ** 2, 2 * zeta * (1 - zeta)
            square = keep * square + both * cross + zeta**2 * prior_square
            trace_square = keep * trace_square + both * trace * prior_trace
            trace_square = trace_square + zeta**2 * prior_trace**2
            trace = (1 - zeta) * trace + zeta * prior_trace
        return (participation_ratio(trace_square, square, trace, d) - 1) / (d - 1)


def corrected_score(square: Tensor, fourth: Tensor, n_samples: float, d: int) -> Tensor:
    """Bias-corrected IsoScore, in [0, 1], from ‖S‖² / tr(S)² and `fourth` of at least 4 rows."""
    trace = torch.ones_like(square)
    terms = unbiased_squares(trace, square, fourth * (n_samples - 1), n_samples)
    return (participation_ratio(*terms, trace, d) - 1) / (d - 1)


class _Gram(torch.autograd.Function):
    """AᵀA (..., d, d), whose gradient needs one product instead of the two of autograd."""

    @staticmethod
    def forward(ctx: Any, A: Tensor) -> Tensor:
        ctx.save_for_backward(A)
        return A.mT @ A

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return ctx.saved_tensors[0] @ (grad + grad.mT)


def _standardise(centred: Tensor, mean: Tensor) -> Tensor:
    """Points (..., n, d) with tr Σ = 1, so that squares neither over- nor underflow; or zeros."""
    n = centred.shape[-2]
    norm, of_mean = (
        torch.linalg.vector_norm(part.detach(), dim=(-2, -1), keepdim=True)
        for part in (centred, mean)
    )
    constant = is_rounding(norm, n**0.5 * of_mean)
    return centred / (norm / (n - 1) ** 0.5).masked_fill(constant, torch.inf)


def _prior_terms(
    prior_cov: Tensor | FactoredCovariance | None, centred: Tensor, small: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """⟨Σ, Σ_S⟩, tr Σ_S and ‖Σ_S‖² (...) of centred points (..., n, d)."""
    n, d = centred.shape[-2:]
    if prior_cov is None:
        trace = _trace(small)
        size = torch.full_like(trace, d)
        return trace, size, size
    if isinstance(prior_cov, Tensor):
        prior_cov = prior_cov.to(centred)
        cross = _dots(centred @ prior_cov, centred) / (n - 1) if n < d else _dots(small, prior_cov)
        return cross, _trace(prior_cov), prior_cov.square().sum((-2, -1))
    root = prior_cov.root.to(centred)
    norm = SquaredNorm(*(part.to(root) for part in prior_cov.squared_norm))
    if n < d:
        cross = (centred @ root).square().sum((-2, -1)) / (n - 1)
    else:
        cross = _dots(small @ root, root)
    return cross, root.square().sum((-2, -1)), norm.estimate(root)


def _trace(matrix: Tensor) -> Tensor:
    """Trace (...) of matrices (..., d, d)."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _dots(A: Tensor, B: Tensor) -> Tensor:
    """⟨A, B⟩ (...) of matrices (..., d, r)."""
    return (A * B).sum((-2, -1))

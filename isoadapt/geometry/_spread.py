"""How points spread: spectra, cosines, the partition function, and what counts as no variance.

The squares tr(S)² and ‖S‖_F² of a sample covariance S overestimate tr(Σ)² and ‖Σ‖_F² of the
covariance Σ of the distribution. Himeno and Yamada (2014), "Estimations for some functions of
covariance matrix in high dimension under non-normality and its applications", give unbiased
estimates from tr(S), ‖S‖_F² and the fourth moment of the rows.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

SMALLEST = 1e-150  # squares of smaller numbers may underflow float64
LARGEST = 1e152  # sums of squares of larger numbers may overflow float64
DEAD = 1e-12  # share of the total variance at or below which a direction counts as constant
_CHUNK = 8192  # rows at a time of the partition function
_NOISE = 64  # estimates of at most this many roundings of tr² count as zero
_TIE = 1e-6  # entries of a unit vector whose sizes differ by less count as equally large


def dead_dimensions(variances: Any, total: Any = None) -> Any:
    """Mask (d,) of `variances` (d,) that are at most the share `DEAD` of `total`, their sum."""
    return variances <= DEAD * (variances.sum() if total is None else total)


def is_rounding(deviation: Tensor, size: Tensor) -> Tensor:
    """Whether deviations from the mean may be rounding errors, given norms of both in all rows."""
    return deviation <= 8 * torch.finfo(deviation.dtype).eps * size


def spectrum(X: Tensor, center: bool = True) -> Tensor:
    """Squared singular values (min(n, d),) of points X (n, d), centred by default, descending."""
    if center:
        X = X - X.mean(0)
    small = X @ X.T if len(X) < X.shape[1] else X.T @ X
    return eigenvalues(small)


def eigenvalues(matrix: Tensor) -> Tensor:
    """Eigenvalues (r,) of a covariance (r, r), largest first, without negative rounding errors."""
    return torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0)


def cumulative_explained_variance(variances: Tensor, k: int) -> Tensor:
    """EV_k: share of the k largest of `variances` (r,), which are in descending order."""
    return variances[:k].sum() / variances.sum()


def anisotropy(variances: Tensor, k: int) -> Tensor:
    """Share of the k-th of `variances` (r,), descending and counted from 1; 0 for k > r."""
    return variances[k - 1 : k].sum() / variances.sum()


def effective_rank(variances: Tensor) -> Tensor:
    """Exponential of the entropy of normalised `variances` (r,) (Roy and Vetterli, 2007)."""
    shares = variances / variances.sum()
    return torch.special.entr(shares).sum().exp().clamp(1, len(shares))


def unit_sums(X: Tensor) -> tuple[Tensor, Tensor]:
    """Sum (..., d) of the unit vectors of rows X (..., n, d), and number (...) of non-zero rows."""
    norms = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    unit = torch.where(norms == 0, 0.0, X / norms.where(norms != 0, 1.0))
    return unit.sum(-2), unit.square().sum((-2, -1))


def mean_cosine(blocks: Iterable[Tensor], n: int) -> float:
    """Mean cosine over all pairs of different rows of points (n, d) in blocks, in [-1, 1]."""
    direction = count = torch.zeros((), dtype=torch.float64)
    for block in blocks:
        # Divided, so that the squares of tiny rows do not underflow to zero.
        largest = block.abs().max().clamp(min=torch.finfo(block.dtype).tiny)
        sums = unit_sums(block / largest)
        direction, count = direction + sums[0], count + sums[1]
    return float(((direction.square().sum() - count) / (n * (n - 1))).clamp(-1, 1))


def log_partition(X: Tensor) -> Tensor:
    """Logarithm (d,) of Z(v) for each unit eigenvector v of XᵀX, for uncentred points X (n, d)."""
    return log_partition_along(principal_axes(X), X.split(_CHUNK), *X.shape)


def log_partition_along(axes: Tensor, blocks: Iterable[Tensor], n: int, d: int) -> Tensor:
    """log Z (d,) along unit axes as columns, and further orthogonal ones, of n points in blocks."""
    total = axes.new_full(axes.shape[1:], -math.inf)
    for block in blocks:
        total = torch.logaddexp(total, torch.logsumexp(block @ axes, dim=0))
    return torch.cat([total, total.new_full((d - len(total),), math.log(n))])


def partition_isotropy(log_z: Tensor) -> Tensor:
    """I1: smallest over largest Z, in [0, 1], from `log_z` (d,); 1 for an isotropic cloud."""
    return (log_z.min() - log_z.max()).exp()


def partition_dispersion(log_z: Tensor) -> Tensor:
    """I2: standard deviation (divisor d) over mean of Z, from `log_z` (d,); 0 if isotropic."""
    shares = (log_z - log_z.max()).exp()
    return shares.std(correction=0) / shares.mean()


def principal_axes(X: Tensor) -> Tensor:
    """Unit eigenvectors of XᵀX as columns, their signs fixed; for n < d in the row space only."""
    scale = X.abs().max()  # divided out, so that squares do not overflow
    scale = torch.where(scale > 0, scale, 1.0)
    if len(X) < X.shape[1]:
        return fix_signs(torch.linalg.svd(X / scale, full_matrices=False).Vh.T)
    second_moment = X.new_zeros(X.shape[1], X.shape[1])
    for chunk in X.split(_CHUNK):
        scaled = chunk / scale
        second_moment.addmm_(scaled.T, scaled)
    return fix_signs(torch.linalg.eigh(second_moment).eigenvectors)


def fix_signs(axes: Tensor) -> Tensor:
    """Make the first entry of largest absolute value of each column positive."""
    sizes = axes.abs()
    first = (sizes >= sizes.amax(0) * (1 - _TIE)).int().argmax(0, keepdim=True)
    return axes * axes.gather(0, first).sign()


def unbiased_squares(
    trace: Tensor, square: Tensor, fourth: Tensor, n_samples: float
) -> tuple[Tensor, Tensor]:
    """Unbiased estimates of tr(Σ)² and ‖Σ‖², from tr(S), ‖S‖² and Σ ‖x - x̄‖⁴ / (n-1), n ≥ 4."""
    # The means of ‖a - b‖²‖c - e‖²/4 and of ((a - b)ᵀ(c - e))²/4 over all quadruples of rows.
    n, trace_square = n_samples, trace.square()
    k = (n - 1) / (n * (n - 2) * (n - 3))
    return (
        k * ((n * n - 3 * n + 1) * trace_square + 2 * square - n * fourth),
        k * (trace_square + (n - 1) * (n - 2) * square - n * fourth),
    )


def participation_ratio(numerator: Tensor, denominator: Tensor, trace: Tensor, d: int) -> Tensor:
    """Ratio of estimates of tr(Σ)² and ‖Σ‖², in [1, d]; NaN where `trace`, of their size, is 0."""
    # Both vanish if all points but one are equal: the ratio is 1 then, the rank of the covariance.
    # Where it is clamped or NaN, all gradients are zero.
    noise = _NOISE * torch.finfo(trace.dtype).eps * trace.square()
    inside = (numerator > noise) & (denominator < numerator) & (numerator <= denominator * d)
    bound = torch.full_like(numerator, d)
    bound = bound.where((numerator > noise) & (numerator > denominator), 1.0)
    bound = bound.where((trace > 0) & (numerator - denominator).isfinite(), torch.nan)
    return (numerator / denominator.where(inside, 1.0)).where(inside, bound)

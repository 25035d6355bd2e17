"""Unbiased estimates for the IsoScore of few rows, whatever the distribution of the rows.

The squares tr(S)² and ‖S‖_F² of a sample covariance S overestimate those of the covariance Σ of the
distribution. Himeno and Yamada (2014), "Estimations for some functions of covariance matrix in high
dimension under non-normality and its applications", give unbiased estimates of tr(Σ)² and ‖Σ‖_F²
from tr(S), ‖S‖_F² and the fourth moment of the rows.
"""

import torch
from torch import Tensor

_NOISE = 64  # estimates of at most this many roundings of tr² count as zero

Weights = tuple[float, float, float]


def corrected_score(square: Tensor, fourth: Tensor, n_samples: float, d: int) -> Tensor:
    """Bias-corrected IsoScore, in [0, 1], from two scale-free numbers of the centred rows.

    `square` is ‖S‖² / tr(S)² for the sample covariance S, `fourth` as `norm_concentration` returns
    it, `n_samples` at least 4.
    """
    trace = torch.ones_like(square)
    terms = unbiased_squares(trace, square, fourth * (n_samples - 1), n_samples)
    return (participation_ratio(*terms, trace, d) - 1) / (d - 1)


def norm_concentration(X: Tensor) -> Tensor:
    """Σ ‖x - x̄‖⁴ / (Σ ‖x - x̄‖²)² of points X (n, d): how much of the variance few points hold.

    It ranges from 1/n, if all points are equally far from their mean, to 1.
    """
    squared = (X - X.mean(0)).square().sum(1)
    return (squared / squared.sum()).square().sum()


def unbiased_squares(
    trace: Tensor, square: Tensor, fourth: Tensor, n_samples: float
) -> tuple[Tensor, Tensor]:
    """Unbiased estimates of tr(Σ)² and ‖Σ‖² from `n_samples` rows, at least 4.

    `trace` and `square` are tr(S) and ‖S‖² of the sample covariance S, `fourth` is Σ ‖x - x̄‖⁴ /
    (n-1). The estimates are U-statistics: the means of ‖a - b‖²‖c - e‖²/4 and of ((a - b)ᵀ(c -
    e))²/4 over all quadruples a, b, c, e of different rows. Up to rounding, the second lies between
    zero and the first.
    """
    (a, b, c), (e, f, g) = estimate_weights(n_samples)
    return (
        a * trace.square() + b * square + c * fourth,
        e * trace.square() + f * square + g * fourth,
    )


def estimate_weights(n_samples: float) -> tuple[Weights, Weights]:
    """Weights of trace², square and fourth in the two estimates of `unbiased_squares`."""
    n = n_samples
    k = (n - 1) / (n * (n - 2) * (n - 3))
    return (
        (k * (n * n - 3 * n + 1), 2 * k, -k * n),
        (k, k * (n - 1) * (n - 2), -k * n),
    )


def participation_ratio(numerator: Tensor, denominator: Tensor, trace: Tensor, d: int) -> Tensor:
    """Ratio of the estimates of tr(Σ)² and ‖Σ‖², clamped to [1, d]; NaN where `trace` is zero.

    `trace` tells how large rounding errors are. Both estimates vanish if all points but one are
    equal; the ratio is 1 then, the rank of the covariance.
    """
    ratio = torch.where(denominator * d < numerator, d, numerator / denominator).clamp(1, d)
    noise = _NOISE * torch.finfo(trace.dtype).eps * trace.square()
    return torch.where((numerator <= noise) & (trace > 0), 1.0, ratio)

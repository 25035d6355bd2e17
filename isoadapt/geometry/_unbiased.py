"""IsoScore of few rows without the bias of the sample covariance, whatever their distribution.

The squares of a sample covariance S overestimate those of the covariance Σ of the distribution.
Himeno and Yamada (2014), "Estimations for some functions of covariance matrix in high dimension
under non-normality and its applications", give estimates of tr(Σ)² and ‖Σ‖_F² without bias, which
take the fourth moment of the rows besides tr S and ‖S‖_F².
"""

import torch
from torch import Tensor

_NOISE = 64  # an estimate of no more than so many roundings of tr² may be zero

Weights = tuple[float, float, float]


def corrected_score(square: Tensor, fourth: Tensor, n_samples: float, d: int) -> Tensor:
    """Bias-corrected IsoScore from two figures of the centred rows that do not depend on scale.

    Parameters
    ----------
    square : Tensor
        ‖S‖² / tr(S)² of the sample covariance S.
    fourth : Tensor
        Σ ‖x - x̄‖⁴ / (Σ ‖x - x̄‖²)², as :func:`norm_concentration` gives it.
    n_samples : float
        Number of rows, at least 4.
    d : int
        Number of features.

    Returns
    -------
    Tensor
        Scores in [0, 1].
    """
    trace = torch.ones_like(square)
    terms = unbiased_squares(trace, square, fourth * (n_samples - 1), n_samples)
    return (participation_ratio(*terms, trace, d) - 1) / (d - 1)


def norm_concentration(X: Tensor) -> Tensor:
    """Σ ‖x - x̄‖⁴ / (Σ ‖x - x̄‖²)²: how much of the variance a few points hold.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Points.

    Returns
    -------
    Tensor of shape ()
        From 1/n, where all points are equally far from their mean, to 1.
    """
    squared = (X - X.mean(0)).square().sum(1)
    return (squared / squared.sum()).square().sum()


def unbiased_squares(
    trace: Tensor, square: Tensor, fourth: Tensor, n_samples: float
) -> tuple[Tensor, Tensor]:
    """Estimate tr(Σ)² and ‖Σ‖² without bias, whatever the distribution of the rows.

    They are U-statistics: the means of ‖a - b‖²‖c - e‖²/4 and of ((a - b)ᵀ(c - e))²/4 over all
    quadruples a, b, c, e of different rows.

    Parameters
    ----------
    trace : Tensor
        Trace of the sample covariance.
    square : Tensor
        Its squared Frobenius norm.
    fourth : Tensor
        Σ ‖x - x̄‖⁴ / (n_samples - 1).
    n_samples : float
        Number of rows, at least 4.

    Returns
    -------
    numerator : Tensor
        Estimate of tr(Σ)², not negative but for rounding.
    denominator : Tensor
        Estimate of ‖Σ‖², between zero and the numerator but for rounding.
    """
    (a, b, c), (e, f, g) = estimate_weights(n_samples)
    return (
        a * trace.square() + b * square + c * fourth,
        e * trace.square() + f * square + g * fourth,
    )


def estimate_weights(n_samples: float) -> tuple[Weights, Weights]:
    """Give the weights of trace², square and fourth in the estimates of :func:`unbiased_squares`.

    Parameters
    ----------
    n_samples : float
        Number of rows, at least 4.

    Returns
    -------
    numerator, denominator : tuple of float
        The weights in the estimates of tr(Σ)² and of ‖Σ‖².
    """
    n = n_samples
    k = (n - 1) / (n * (n - 2) * (n - 3))
    return (
        (k * (n * n - 3 * n + 1), 2 * k, -k * n),
        (k, k * (n - 1) * (n - 2), -k * n),
    )


def participation_ratio(numerator: Tensor, denominator: Tensor, trace: Tensor, d: int) -> Tensor:
    """Ratio of estimates of tr(Σ)² and ‖Σ‖², clamped to the range of tr(Σ)² / ‖Σ‖².

    Both estimates vanish if all points but one are equal: the ratio is 1 then, that of the rank.

    Parameters
    ----------
    numerator, denominator : Tensor
        The estimates.
    trace : Tensor
        Plain estimate of tr(Σ), which says how large rounding errors are.
    d : int
        Number of features.

    Returns
    -------
    Tensor
        In [1, d]; NaN where the trace is zero.
    """
    ratio = torch.where(denominator * d < numerator, d, numerator / denominator).clamp(1, d)
    noise = _NOISE * torch.finfo(trace.dtype).eps * trace.square()
    return torch.where((numerator <= noise) & (trace > 0), 1.0, ratio)

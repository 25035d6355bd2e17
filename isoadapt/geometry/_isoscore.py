"""IsoScore and IsoScore* in closed form.

Both are affine in the participation ratio PR = tr(Σ)² / ‖Σ‖_F² of a covariance Σ:
IsoScore = (PR - 1) / (d - 1), exactly what the eigenvalue procedure of Rudman et al. (2022)
arrives at, and smooth where eigenvalues meet.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_WIDE = (torch.float32, torch.float64)


class _Sums(NamedTuple):
    """What the score of (1-ζ)Σ + ζS depends on; one entry for each member."""

    trace: Tensor  # tr Σ
    square: Tensor  # ‖Σ‖²
    cross: Tensor | float  # ⟨Σ, S⟩
    prior_trace: Tensor | float  # tr S
    prior_square: Tensor | float  # ‖S‖²


def isoscore_star(
    X: Tensor, cov: Tensor | None = None, zeta: float = 0.0, bias_corrected: bool = False
) -> Tensor:
    """IsoScore* of point clouds, differentiable with respect to the points and to `cov`.

    The score of (1-ζ)Σ_X + ζ·cov, with Σ_X the sample covariance (Rudman and Eickhoff, I-STAR,
    algorithm 1). For n < d no d×d covariance is formed.

    Parameters
    ----------
    X : Tensor of shape (..., n, d)
        Points, n and d at least 2; half precision is computed in float32.
    cov : Tensor of shape (d, d) or (..., d, d), default=None
        Symmetric shrinkage matrix; None is the identity.
    zeta : float, default=0.0
        Its weight ζ in [0, 1].
    bias_corrected : bool, default=False
        Estimate tr(Σ)² and ‖Σ‖² without bias (exactly so for Gaussian rows), n at least 4; the
        participation ratio is then clamped to [1, d].

    Returns
    -------
    Tensor of shape (...)
        Scores; NaN where the covariance is zero.
    """
    if X.dtype not in _WIDE:
        X = X.to(torch.float32)
    n, d = X.shape[-2:]
    if n < (4 if bias_corrected else 2) or d < 2:
        raise ValueError(
            f"X has n_samples={n}, n_features={d}: IsoScore needs n_samples >= "
            f"{4 if bias_corrected else 2} and n_features >= 2"
        )
    prior = cov.to(X) if cov is not None and zeta else None
    with torch.autocast(X.device.type, enabled=False):
        return _IsoScoreStar.apply(X, prior, zeta, bias_corrected)


def isoscore_from_covariance(cov: Tensor, n_samples: float | None = None) -> Tensor:
    """IsoScore of covariance matrices, differentiable.

    Parameters
    ----------
    cov : Tensor of shape (..., d, d)
        Covariances, d at least 2.
    n_samples : float, default=None
        Number of rows behind a sample covariance (n - 1 in its denominator), at least 4: gives
        the bias-corrected score. None gives the plain one.

    Returns
    -------
    Tensor of shape (...)
        Scores; NaN where the covariance is zero.
    """
    d = cov.shape[-1]
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    square = cov.square().sum((-2, -1))
    if n_samples is None:
        return (trace.square() / square - 1) / (d - 1)
    return corrected_score(trace, square, n_samples, d)


def corrected_score(trace: Tensor, square: Tensor, n_samples: float, d: int) -> Tensor:
    """Bias-corrected IsoScore from the trace and the norm of a sample covariance.

    Parameters
    ----------
    trace : Tensor
        Trace of the sample covariance.
    square : Tensor
        Its squared Frobenius norm.
    n_samples : float
        Number of rows, at least 4.
    d : int
        Number of features.

    Returns
    -------
    Tensor
        Scores in [0, 1].
    """
    numerator, denominator = unbiased_squares(trace, square, n_samples)
    return (_clamped_ratio(numerator, denominator, d) - 1) / (d - 1)


def unbiased_squares(trace: Tensor, square: Tensor, n_samples: float) -> tuple[Tensor, Tensor]:
    """Estimate tr(Σ)² and ‖Σ‖² without bias from a sample covariance of Gaussian rows.

    Parameters
    ----------
    trace : Tensor
        Trace of the sample covariance.
    square : Tensor
        Its squared Frobenius norm.
    n_samples : float
        Number of rows, at least 4.

    Returns
    -------
    numerator : Tensor
        Estimate of tr(Σ)², above zero.
    denominator : Tensor
        Estimate of ‖Σ‖²; noise can bring it below zero.
    """
    (a, b), (c, e) = _correction(n_samples)
    return a * trace.square() + b * square, c * trace.square() + e * square


def _clamped_ratio(numerator: Tensor, denominator: Tensor, d: int) -> Tensor:
    """Keep an estimated participation ratio in [1, d], whatever the denominator's sign."""
    ratio = torch.where(denominator * d < numerator, d, numerator / denominator)
    return ratio.clamp(1, d)


def _correction(n: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Coefficients of (tr², ‖·‖²) in the unbiased estimates of tr² and of ‖·‖²."""
    v = n - 1
    scale = 1 / ((v - 1) * (v + 2))
    return (v * (v + 1) * scale, -2 * v * scale), (-v * scale, v * v * scale)


class _IsoScoreStar(torch.autograd.Function):
    """One n×n or d×d product forward, one more of the same size backward."""

    @staticmethod
    def forward(
        ctx: Any, X: Tensor, prior: Tensor | None, zeta: float, bias_corrected: bool
    ) -> Tensor:
        n, d = X.shape[-2:]
        centred = X - X.mean(-2, keepdim=True)
        # The Gram matrix and the covariance share trace and norm.
        small = (centred @ centred.mT if n < d else centred.mT @ centred) / (n - 1)
        unit = torch.ones_like(small[..., 0, 0])
        if not zeta:  # free of scale, so in units of the trace, lest squares overflow
            unit = small.diagonal(dim1=-2, dim2=-1).sum(-1)
            noise = (8 * torch.finfo(X.dtype).eps) ** 2 * X.square().sum((-2, -1))
            unit = unit.where(unit * (n - 1) > noise, torch.inf)  # rounding has no spectrum
            small = small / unit[..., None, None]
        pulled = None if prior is None or n >= d else centred @ prior
        sums = _sums(small, centred, prior, pulled, zeta)
        numerator, denominator = _mixture(sums, zeta, n, bias_corrected)
        ratio = numerator / denominator
        if bias_corrected:
            ratio = _clamped_ratio(numerator, denominator, d)
        ctx.zeta, ctx.correction = zeta, _correction(n) if bias_corrected else None
        ctx.save_for_backward(centred, small, prior, pulled, sums.trace, numerator, denominator)
        ctx.unit = unit
        return (ratio - 1) / (d - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            return _IsoScoreStar._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        centred, small, prior, pulled, trace, numerator, denominator = ctx.saved_tensors
        n, d = centred.shape[-2:]
        zeta, keep = ctx.zeta, 1 - ctx.zeta
        grad = torch.where(denominator > 0, grad, 0.0)
        if ctx.correction is not None:
            ratio = numerator / denominator
            grad = torch.where((ratio > 1) & (denominator * d > numerator), grad, 0.0)
        safe = torch.where(denominator > 0, denominator, 1.0)
        to_numerator = grad / safe / (d - 1)
        to_denominator = -to_numerator * numerator / safe
        (a, b), (c, e) = ctx.correction or ((1.0, 0.0), (0.0, 1.0))
        prior_trace = d if prior is None else prior.diagonal(dim1=-2, dim2=-1).sum(-1)
        to_square = keep**2 * (b * to_numerator + e * to_denominator)
        to_trace = 2 * keep**2 * trace * (a * to_numerator + c * to_denominator)
        to_trace = to_trace + 2 * zeta * keep * prior_trace * to_numerator
        to_cross = 2 * zeta * keep * to_denominator
        if prior is None:  # ⟨Σ, I⟩ is the trace
            to_trace = to_trace + to_cross

        grad_X = grad_prior = None
        if ctx.needs_input_grad[0]:
            grad_X = _points_gradient(centred, small, prior, pulled, to_trace, to_square, to_cross)
            if not zeta:
                grad_X = grad_X / ctx.unit[..., None, None]
        if prior is not None and ctx.needs_input_grad[1]:
            covariance = small if n >= d else centred.mT @ centred / (n - 1)
            to_prior_trace = 2 * zeta * (keep * trace + zeta * prior_trace) * to_numerator
            grad_prior = (2 * zeta**2 * to_denominator)[..., None, None] * prior
            grad_prior = grad_prior + to_cross[..., None, None] * covariance
            grad_prior.diagonal(dim1=-2, dim2=-1).add_(to_prior_trace[..., None])
            grad_prior = grad_prior.sum_to_size(prior.shape)
        return grad_X, grad_prior, None, None


def _sums(
    small: Tensor, centred: Tensor, prior: Tensor | None, pulled: Tensor | None, zeta: float
) -> _Sums:
    n, d = centred.shape[-2:]
    trace = small.diagonal(dim1=-2, dim2=-1).sum(-1)
    square = small.square().sum((-2, -1))
    if not zeta:
        return _Sums(trace, square, 0.0, 0.0, 0.0)
    if prior is None:
        return _Sums(trace, square, trace, d, d)
    if pulled is None:
        cross = (small * prior).sum((-2, -1))
    else:
        cross = (pulled * centred).sum((-2, -1)) / (n - 1)
    prior_trace = prior.diagonal(dim1=-2, dim2=-1).sum(-1)
    return _Sums(trace, square, cross, prior_trace, prior.square().sum((-2, -1)))


def _mixture(sums: _Sums, zeta: float, n: int, bias_corrected: bool) -> tuple[Tensor, Tensor]:
    """tr² and ‖·‖² of (1-ζ)Σ + ζS; only the terms quadratic in Σ are biased."""
    trace_square, square = sums.trace.square(), sums.square
    if bias_corrected:
        trace_square, square = unbiased_squares(sums.trace, sums.square, n)
    keep, both = (1 - zeta) ** 2, 2 * zeta * (1 - zeta)
    numerator = keep * trace_square + both * sums.trace * sums.prior_trace
    denominator = keep * square + both * sums.cross
    return (
        numerator + zeta**2 * sums.prior_trace**2,
        denominator + zeta**2 * sums.prior_square,
    )


def _points_gradient(
    centred: Tensor,
    small: Tensor,
    prior: Tensor | None,
    pulled: Tensor | None,
    to_trace: Tensor,
    to_square: Tensor,
    to_cross: Tensor,
) -> Tensor:
    """Chain rule through tr Σ, ‖Σ‖² and ⟨Σ, S⟩; columns sum to zero as `centred` does."""
    n, d = centred.shape[-2:]
    to_trace, to_square, to_cross = (t[..., None, None] for t in (to_trace, to_square, to_cross))
    core = 4 * to_square / (n - 1) * small
    core.diagonal(dim1=-2, dim2=-1).add_((2 * to_trace / (n - 1))[..., 0])
    if n < d:
        gradient = core @ centred
        return gradient if pulled is None else gradient + 2 * to_cross / (n - 1) * pulled
    if prior is not None:
        core = core + 2 * to_cross / (n - 1) * prior
    return centred @ core

"""IsoScore and IsoScore* in closed form.

Both are affine in the participation ratio PR = tr(Σ)² / ‖Σ‖_F² of a covariance Σ:
IsoScore = (PR - 1) / (d - 1), exactly what the eigenvalue procedure of Rudman et al. (2022)
arrives at, and smooth where eigenvalues meet.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoadapt.geometry._unbiased import estimate_weights, participation_ratio, unbiased_squares

_WIDE = (torch.float32, torch.float64)


class _Sums(NamedTuple):
    """What the score of (1-ζ)Σ + ζS depends on, S being Σ_S; one entry for each member."""

    trace: Tensor  # tr Σ
    square: Tensor  # ‖Σ‖²
    fourth: Tensor  # Σ ‖x - x̄‖⁴ / (n-1), which only the bias-corrected score needs
    cross: Tensor  # ⟨Σ, S⟩
    prior_trace: Tensor  # tr S
    prior_square: Tensor  # ‖S‖²


def isoscore_star(
    X: Tensor,
    prior_cov: Tensor | None = None,
    zeta: float | Tensor = 0.0,
    bias_corrected: bool = False,
    root: Tensor | None = None,
) -> Tensor:
    """IsoScore* of point clouds, differentiable with respect to the points and to `prior_cov`.

    The score of (1-ζ)Σ_X + ζΣ_S, with Σ_X the sample covariance and Σ_S = `prior_cov` (Rudman and
    Eickhoff, I-STAR, algorithm 1). For n < d no d×d covariance is formed.

    Parameters
    ----------
    X : Tensor of shape (..., n, d)
        Points, n and d at least 2; half precision is computed in float32.
    prior_cov : Tensor of shape (d, d) or (..., d, d), default=None
        Shrinkage covariance Σ_S, symmetric; None is the identity.
    zeta : float or Tensor of shape (...), default=0.0
        Its weight ζ in [0, 1], for each member if a tensor.
    bias_corrected : bool, default=False
        Estimate tr(Σ_X)² and ‖Σ_X‖² without bias, whatever the distribution of the points; n at
        least 4. The participation ratio is then clamped to [1, d]. With ζ > 0 the terms that
        are linear in Σ_X, such as ⟨Σ_X, Σ_S⟩, have no bias to remove.
    root : Tensor of shape (d, r) or (..., d, r), default=None
        In place of `prior_cov`, a B with BBᵀ = Σ_S. The product is never formed, which costs least
        if B is differentiated too.

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
    zeta = zeta.to(X) if isinstance(zeta, Tensor) else zeta
    mixed = isinstance(zeta, Tensor) or zeta != 0
    prior_cov = prior_cov.to(X) if prior_cov is not None and mixed else None
    if root is not None:
        root = root.to(X).expand(*X.shape[:-2], *root.shape[-2:]) if mixed else None
    with torch.autocast(X.device.type, enabled=False):
        return _IsoScoreStar.apply(X, prior_cov, root, zeta, bias_corrected)


def isoscore_from_covariance(cov: Tensor) -> Tensor:
    """IsoScore of covariance matrices, differentiable.

    Parameters
    ----------
    cov : Tensor of shape (..., d, d)
        Covariances, d at least 2.

    Returns
    -------
    Tensor of shape (...)
        Scores; NaN where the covariance is zero.
    """
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (trace.square() / cov.square().sum((-2, -1)) - 1) / (cov.shape[-1] - 1)


class _Prior(NamedTuple):
    """The shrinkage covariance S as the backward pass needs it: a matrix, a root or neither."""

    cov: Tensor | None
    root: Tensor | None
    gram: Tensor | None  # BᵀB of a root B
    pulled: Tensor | None  # X S for a matrix and n < d; X B or, for n >= d, Σ_X B for a root


class _IsoScoreStar(torch.autograd.Function):
    """One n×n or d×d product forward, one more of the same size backward; a root adds as many."""

    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        prior_cov: Tensor | None,
        root: Tensor | None,
        zeta: float | Tensor,
        bias_corrected: bool,
    ) -> Tensor:
        n, d = X.shape[-2:]
        mixed = isinstance(zeta, Tensor) or zeta != 0
        centred = X - X.mean(-2, keepdim=True)
        # The Gram matrix and the covariance share trace and norm.
        small = (centred @ centred.mT if n < d else centred.mT @ centred) / (n - 1)
        unit = torch.ones_like(small[..., 0, 0])
        if not mixed:  # free of scale, so in units of the trace, lest squares overflow
            unit = _trace(small)
            noise = (8 * torch.finfo(X.dtype).eps) ** 2 * X.square().sum((-2, -1))
            unit = unit.where(unit * (n - 1) > noise, torch.inf)  # rounding has no spectrum
            small = small / unit[..., None, None]
        prior = _prior(prior_cov, root, centred, small)
        lengths = _lengths(small, centred, unit) if bias_corrected else None
        sums = _sums(small, centred, prior, lengths, mixed)
        numerator, denominator = _mixture(sums, zeta, n, bias_corrected)
        ratio, free = numerator / denominator, None
        if bias_corrected:
            trace = (1 - zeta) * sums.trace + zeta * sums.prior_trace
            ratio = participation_ratio(numerator, denominator, trace, d)
            free = (ratio > 1) & (ratio < d)  # not clamped
        ctx.zeta, ctx.correction = zeta, estimate_weights(n) if bias_corrected else None
        ctx.save_for_backward(
            *(centred, small, *prior, lengths, free),
            *(sums.trace, sums.prior_trace, numerator, denominator),
        )
        ctx.unit = None if mixed else unit
        return (ratio - 1) / (d - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(grad.device.type, enabled=False):
            return _IsoScoreStar._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        centred, small, *parts, lengths, free = ctx.saved_tensors[:-4]
        trace, prior_trace, numerator, denominator = ctx.saved_tensors[-4:]
        prior = _Prior(*parts)
        d = centred.shape[-1]
        zeta, keep = ctx.zeta, 1 - ctx.zeta
        grad = torch.where(denominator > 0, grad, 0.0)
        if free is not None:
            grad = torch.where(free, grad, 0.0)
        safe = torch.where(denominator > 0, denominator, 1.0)
        to_numerator = grad / safe / (d - 1)
        to_denominator = -to_numerator * numerator / safe
        (a, b, c), (e, f, g) = ctx.correction or ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
        to_square = keep**2 * (b * to_numerator + f * to_denominator)
        to_fourth = keep**2 * (c * to_numerator + g * to_denominator)
        to_trace = 2 * keep**2 * trace * (a * to_numerator + e * to_denominator)
        to_trace = to_trace + 2 * zeta * keep * prior_trace * to_numerator
        to_cross = 2 * zeta * keep * to_denominator
        to_prior_trace = 2 * zeta * (keep * trace + zeta * prior_trace) * to_numerator
        to_prior_square = zeta**2 * to_denominator
        if prior.cov is None and prior.root is None:  # ⟨Σ, I⟩ is the trace
            to_trace = to_trace + to_cross

        grad_X = grad_prior_cov = grad_root = None
        if ctx.needs_input_grad[0]:
            grad_X = _points_gradient(centred, small, prior, to_trace, to_square, to_cross)
            if lengths is not None:
                grad_X = _add_fourth_gradient(grad_X, centred, lengths, to_fourth)
            if ctx.unit is not None:
                grad_X = grad_X / ctx.unit[..., None, None]
        if prior.cov is not None and ctx.needs_input_grad[1]:
            grad_prior_cov = _prior_cov_gradient(
                centred, small, prior.cov, to_prior_trace, to_prior_square, to_cross
            )
        if prior.root is not None and ctx.needs_input_grad[2]:
            grad_root = _root_gradient(centred, prior, to_prior_trace, to_prior_square, to_cross)
        return grad_X, grad_prior_cov, grad_root, None, None


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _prior(prior_cov: Tensor | None, root: Tensor | None, centred: Tensor, small: Tensor) -> _Prior:
    few = centred.shape[-2] < centred.shape[-1]
    if root is not None:
        pulled = (centred if few else small) @ root
        return _Prior(None, root, root.mT @ root, pulled)
    if prior_cov is None or not few:
        return _Prior(prior_cov, None, None, None)
    return _Prior(prior_cov, None, None, centred @ prior_cov)


def _lengths(small: Tensor, centred: Tensor, unit: Tensor) -> Tensor:
    """‖x - x̄‖² / (n-1) of each point, in the units of `small`."""
    n, d = centred.shape[-2:]
    if n < d:
        return small.diagonal(dim1=-2, dim2=-1)
    squared = torch.linalg.vector_norm(centred, dim=-1).square()  # makes no matrix of squares
    return squared / ((n - 1) * unit[..., None])


def _sums(
    small: Tensor, centred: Tensor, prior: _Prior, lengths: Tensor | None, mixed: bool
) -> _Sums:
    n, d = centred.shape[-2:]
    trace, square = _trace(small), small.square().sum((-2, -1))
    nothing = torch.zeros_like(trace)
    fourth = nothing if lengths is None else (n - 1) * lengths.square().sum(-1)
    if prior.root is not None and prior.gram is not None and prior.pulled is not None:
        other, scale = (prior.pulled, 1 / (n - 1)) if n < d else (prior.root, 1.0)
        cross = (prior.pulled * other).sum((-2, -1)) * scale
        norm = torch.linalg.vector_norm(prior.gram, dim=(-2, -1))
        return _Sums(trace, square, fourth, cross, _trace(prior.gram), norm.square())
    if prior.cov is not None:
        if prior.pulled is None:
            cross = (small * prior.cov).sum((-2, -1))
        else:
            cross = (prior.pulled * centred).sum((-2, -1)) / (n - 1)
        prior_square = prior.cov.square().sum((-2, -1))
        return _Sums(trace, square, fourth, cross, _trace(prior.cov), prior_square)
    if not mixed:
        return _Sums(trace, square, fourth, nothing, nothing, nothing)
    return _Sums(trace, square, fourth, trace, nothing + d, nothing + d)


def _mixture(
    sums: _Sums, zeta: float | Tensor, n: int, bias_corrected: bool
) -> tuple[Tensor, Tensor]:
    """tr² and ‖·‖² of (1-ζ)Σ + ζS; only the terms quadratic in Σ are biased."""
    trace_square, square = sums.trace.square(), sums.square
    if bias_corrected:
        trace_square, square = unbiased_squares(sums.trace, sums.square, sums.fourth, n)
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
    prior: _Prior,
    to_trace: Tensor,
    to_square: Tensor,
    to_cross: Tensor,
) -> Tensor:
    """Chain rule through tr Σ, ‖Σ‖² and ⟨Σ, S⟩; columns sum to zero as `centred` does."""
    n, d = centred.shape[-2:]
    to_trace, to_square, to_cross = (t[..., None, None] for t in (to_trace, to_square, to_cross))
    core = 4 * to_square / (n - 1) * small
    core.diagonal(dim1=-2, dim2=-1).add_((2 * to_trace / (n - 1))[..., 0])
    pull = 2 * to_cross / (n - 1)
    if n < d:
        gradient = core @ centred
        if prior.pulled is None:
            return gradient
        if prior.root is None:
            return gradient + pull * prior.pulled
        return gradient + (pull * prior.pulled) @ prior.root.mT
    if prior.root is not None:
        core = core + pull * (prior.root @ prior.root.mT)
    elif prior.cov is not None:
        core = core + pull * prior.cov
    return centred @ core


def _add_fourth_gradient(
    gradient: Tensor, centred: Tensor, lengths: Tensor, to_fourth: Tensor
) -> Tensor:
    """Chain rule through Σ ‖x - x̄‖⁴ / (n-1), in place; its columns are made to sum to zero."""
    gradient.addcmul_(4 * (to_fourth[..., None] * lengths)[..., None], centred)
    return gradient.sub_(gradient.mean(-2, keepdim=True))


def _prior_cov_gradient(
    centred: Tensor,
    small: Tensor,
    prior_cov: Tensor,
    to_trace: Tensor,
    to_square: Tensor,
    to_cross: Tensor,
) -> Tensor:
    """Chain rule through tr S, ‖S‖² and ⟨Σ, S⟩ to S."""
    n, d = centred.shape[-2:]
    covariance = small if n >= d else centred.mT @ centred / (n - 1)
    gradient = (2 * to_square)[..., None, None] * prior_cov + to_cross[..., None, None] * covariance
    gradient.diagonal(dim1=-2, dim2=-1).add_(to_trace[..., None])
    return gradient.sum_to_size(prior_cov.shape)


def _root_gradient(
    centred: Tensor, prior: _Prior, to_trace: Tensor, to_square: Tensor, to_cross: Tensor
) -> Tensor | None:
    """Chain rule through tr S, ‖S‖² and ⟨Σ, S⟩ to B with BBᵀ = S."""
    if prior.root is None or prior.gram is None or prior.pulled is None:
        return None
    n, d = centred.shape[-2:]
    to_trace, to_square, to_cross = (t[..., None, None] for t in (to_trace, to_square, to_cross))
    gradient = (prior.root @ prior.gram).mul_(4 * to_square)
    gradient.addcmul_(prior.root, 2 * to_trace)
    if n < d:
        pulled = 2 / (n - 1) * to_cross * prior.pulled
        if gradient.ndim == 3:
            gradient.baddbmm_(centred.mT, pulled)  # no further matrix of this size
        else:
            gradient += centred.mT @ pulled
    else:
        gradient.addcmul_(prior.pulled, 2 * to_cross)
    return gradient

"""IsoScore and IsoScore* in closed form.

Both are affine in the participation ratio PR = tr(Σ)² / ‖Σ‖_F² of a covariance Σ:
IsoScore = (PR - 1) / (d - 1). This equals the result of the eigenvalue procedure of Rudman et al.
(2022) exactly, and it is smooth where eigenvalues coincide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from isoadapt.geometry._spread import estimate_weights, participation_ratio, unbiased_squares

_WIDE = (torch.float32, torch.float64)


class SquaredNorm(NamedTuple):
    """‖BVBᵀ‖² at a factor B0, and its gradient with respect to B.

    Computing it costs two d×d×r products. At another factor B it is estimated without a product as
    ``value (⟨gradient, B⟩ / 4 value)⁴``. At B0 this estimate and its gradient are exact. As the
    squared norm itself, it is homogeneous of degree 4 in B, so a change of scale is exact as well.
    By Hölder's inequality it is never too large.
    """

    value: Tensor  # (...)
    gradient: Tensor  # (..., d, r)

    @classmethod
    @torch.no_grad()
    def at(cls, root: Tensor, variances: Tensor | None = None) -> "SquaredNorm":
        """Compute both at a factor (..., d, r), with the diagonal (..., r) of V; None: V = I."""
        weighted = root if variances is None else root * variances[..., None, :]
        d, rank = root.shape[-2:]
        smaller = root @ weighted.mT if d < rank else root.mT @ weighted
        product = smaller @ weighted if d < rank else weighted @ smaller
        return cls(dots(product, root), product.mul_(4))

    @torch.no_grad()
    def renew(self, members: Sequence[int], root: Tensor, variances: Tensor | None = None) -> None:
        """Compute both again, in place, for some members of factors (K, d, r)."""
        parts: list[Any]
        if root.device.type == "cpu":  # one by one, so that what is multiplied stays in the cache
            parts = [slice(k, k + 1) for k in members]
        elif len(members) == len(root):
            parts = [slice(None)]
        else:
            parts = [list(members)] if members else []
        own = None if variances is None else variances.expand(len(root), -1)
        for part in parts:
            found = SquaredNorm.at(root[part], None if own is None else own[part])
            self.value[part], self.gradient[part] = found


@dataclass(frozen=True, eq=False)
class FactoredCovariance:
    """A covariance BVBᵀ whose factor B is trained; V is diagonal and has no gradient.

    With `squared_norm`, from an earlier factor, ‖BVBᵀ‖² and its gradient are estimated, otherwise
    they are exact.
    """

    root: Tensor  # B, (d, r) or (..., d, r)
    variances: Tensor | None = None  # diagonal of V, (r,) or (..., r); None: V = I
    squared_norm: SquaredNorm | None = None

    def parts(self, X: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return B, V, the squared norm and its gradient, for the members of points (..., n, d)."""
        members = X.shape[:-2]
        root, variances = self.root.to(X), self.variances
        if variances is not None:
            variances = variances.to(X)
        norm = self.squared_norm
        if norm is None:
            norm = SquaredNorm.at(root, variances)
        return (
            root.expand(*members, *root.shape[-2:]),
            variances,
            norm.value.to(X).expand(members),
            norm.gradient.to(X).expand(*members, *root.shape[-2:]),
        )


def dots(A: Tensor, B: Tensor, variances: Tensor | None = None) -> Tensor:
    """⟨A, BV⟩ (...) of matrices (..., d, r), with the diagonal (..., r) of V; None: V = I."""
    rows = None if variances is None else variances[..., None, :].expand(*A.shape[:-2], 1, -1)
    if A.device.type != "cpu":
        return (A * (B if rows is None else B * rows)).sum((-2, -1))
    # One matrix after the other, so that what is multiplied stays in the cache.
    left, right = (matrix.reshape(-1, *matrix.shape[-2:]) for matrix in (A, B))
    if rows is not None:
        rows = rows.reshape(-1, 1, rows.shape[-1])
    found = [
        torch.dot(a.flatten(), (right[k] if rows is None else right[k] * rows[k]).flatten())
        for k, a in enumerate(left)
    ]
    return torch.stack(found).view(A.shape[:-2])


class _PriorSums(NamedTuple):
    """What the score of (1-ζ)Σ + ζS depends on besides Σ; one entry per member."""

    cross: Tensor  # ⟨Σ, S⟩
    trace: Tensor  # tr S
    square: Tensor  # ‖S‖²


class _Sums(NamedTuple):
    """What the score of (1-ζ)Σ + ζS depends on; one entry per member."""

    trace: Tensor  # tr Σ
    square: Tensor  # ‖Σ‖²
    fourth: Tensor  # Σ ‖x - x̄‖⁴ / (n-1); used by the bias-corrected score only
    prior: _PriorSums


def isoscore_star(
    X: Tensor,
    prior_cov: Tensor | FactoredCovariance | None = None,
    zeta: float | Tensor = 0.0,
    bias_corrected: bool = False,
) -> Tensor:
    """IsoScore* of point clouds X (..., n, d), with gradients for X and `prior_cov`.

    It is the IsoScore of (1-ζ)Σ_X + ζΣ_S (Rudman and Eickhoff, I-STAR, algorithm 1), NaN where that
    is zero. Σ_S is `prior_cov` (d, d) or (..., d, d), by default the identity. A FactoredCovariance
    costs less if the factor is trained. `zeta` in [0, 1] is one number or one per member.
    `bias_corrected` estimates tr(Σ_X)² and ‖Σ_X‖² without bias, needs n >= 4 and clamps the
    participation ratio to [1, d]; terms linear in Σ_X have no bias. Half precision is computed in
    float32. For n < d no d×d covariance is formed.
    """
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
        if prior_cov is None or not mixed:
            return _IsoScoreStar.apply(X, zeta, bias_corrected, None)
        if isinstance(prior_cov, FactoredCovariance):
            return _IsoScoreStar.apply(X, zeta, bias_corrected, None, *prior_cov.parts(X))
        return _IsoScoreStar.apply(X, zeta, bias_corrected, prior_cov.to(X))


def isoscore_from_covariance(cov: Tensor) -> Tensor:
    """IsoScore (...) of covariances (..., d, d), d at least 2; NaN where a covariance is zero."""
    shares = cov / _trace(cov)[..., None, None]  # so that squares do not overflow
    return (1 / shares.square().sum((-2, -1)) - 1) / (cov.shape[-1] - 1)


def corrected_score(square: Tensor, fourth: Tensor, n_samples: float, d: int) -> Tensor:
    """Bias-corrected IsoScore, in [0, 1], from ‖S‖² / tr(S)² and `fourth` of at least 4 rows."""
    trace = torch.ones_like(square)
    terms = unbiased_squares(trace, square, fourth * (n_samples - 1), n_samples)
    return (participation_ratio(*terms, trace, d) - 1) / (d - 1)


class _Prior(NamedTuple):
    """Σ_S as the backward pass needs it: a matrix, a factor or, for the identity, neither."""

    cov: Tensor | None = None
    root: Tensor | None = None  # B, where Σ_S = BVBᵀ
    variances: Tensor | None = None  # diagonal of V as a row; None: V = I
    product: Tensor | None = None  # for n < d: X Σ_S or X BV; for n >= d: Σ_X BV for a factor
    square_gradient: Tensor | None = None  # of ‖Σ_S‖² for an earlier B
    growth: Tensor | None = None  # factor of that gradient at the present B


class _IsoScoreStar(torch.autograd.Function):
    """IsoScore* with its gradient written by hand.

    Forward and backward cost one n×n or d×d product each. A matrix Σ_S costs one more in forward,
    and in backward if it is trained; a factor costs one more in forward and two in backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        X: Tensor,
        zeta: float | Tensor,
        bias_corrected: bool,
        prior_cov: Tensor | None,
        root: Tensor | None = None,
        variances: Tensor | None = None,
        square: Tensor | None = None,
        square_gradient: Tensor | None = None,
    ) -> Tensor:
        n, d = X.shape[-2:]
        mixed = isinstance(zeta, Tensor) or zeta != 0
        centred = X - X.mean(-2, keepdim=True)
        # The Gram matrix and the covariance have the same trace and norm: take the smaller.
        small = (centred @ centred.mT if n < d else centred.mT @ centred) / (n - 1)
        unit = torch.ones_like(small[..., 0, 0])
        if not mixed:  # scale-free then: divide by the trace, so that squares do not overflow
            unit = _trace(small)
            noise = (8 * torch.finfo(X.dtype).eps) ** 2 * X.square().sum((-2, -1))
            unit = unit.where(unit * (n - 1) > noise, torch.inf)  # rounding errors: NaN
            small = small / unit[..., None, None]
        if root is not None and square is not None and square_gradient is not None:
            squared_norm = SquaredNorm(square, square_gradient)
            prior, prior_sums = _factored_prior(root, variances, squared_norm, centred, small)
        else:
            prior, prior_sums = _matrix_prior(prior_cov, centred, small)
        lengths, fourth = None, torch.zeros_like(unit)
        if bias_corrected:
            lengths = _lengths(small, centred, unit)
            fourth = (n - 1) * lengths.square().sum(-1)
        sums = _Sums(_trace(small), small.square().sum((-2, -1)), fourth, prior_sums)
        numerator, denominator = _mixture(sums, zeta, n, bias_corrected)
        ratio, unclamped = numerator / denominator, None
        if bias_corrected:
            trace = (1 - zeta) * sums.trace + zeta * sums.prior.trace
            ratio = participation_ratio(numerator, denominator, trace, d)
            unclamped = (ratio > 1) & (ratio < d)
        ctx.zeta, ctx.correction = zeta, estimate_weights(n) if bias_corrected else None
        ctx.save_for_backward(
            *(centred, small, *prior, lengths, unclamped),
            *(sums.trace, sums.prior.trace, numerator, denominator),
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
        centred, small, *parts, lengths, unclamped = ctx.saved_tensors[:-4]
        trace, prior_trace, numerator, denominator = ctx.saved_tensors[-4:]
        prior = _Prior(*parts)
        d = centred.shape[-1]
        zeta, keep = ctx.zeta, 1 - ctx.zeta
        grad = torch.where(denominator > 0, grad, 0.0)
        if unclamped is not None:
            grad = torch.where(unclamped, grad, 0.0)
        safe = torch.where(denominator > 0, denominator, 1.0)
        grad_numerator = grad / safe / (d - 1)
        grad_denominator = -grad_numerator * numerator / safe
        (a, b, c), (e, f, g) = ctx.correction or ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
        grad_square = keep**2 * (b * grad_numerator + f * grad_denominator)
        grad_fourth = keep**2 * (c * grad_numerator + g * grad_denominator)
        grad_trace = 2 * keep**2 * trace * (a * grad_numerator + e * grad_denominator)
        grad_trace = grad_trace + 2 * zeta * keep * prior_trace * grad_numerator
        grad_cross = 2 * zeta * keep * grad_denominator
        grad_prior_trace = 2 * zeta * (keep * trace + zeta * prior_trace) * grad_numerator
        grad_prior_square = zeta**2 * grad_denominator
        if prior.cov is None and prior.root is None:  # S is the identity: ⟨Σ, S⟩ = tr Σ
            grad_trace = grad_trace + grad_cross

        grad_X = grad_prior_cov = grad_root = None
        if ctx.needs_input_grad[0]:
            grad_X = _points_gradient(centred, small, prior, grad_trace, grad_square, grad_cross)
            if lengths is not None:
                grad_X = _add_fourth_gradient(grad_X, centred, lengths, grad_fourth)
            if ctx.unit is not None:
                grad_X = grad_X / ctx.unit[..., None, None]
        if prior.cov is not None and ctx.needs_input_grad[3]:
            grad_prior_cov = _prior_cov_gradient(
                centred, small, prior.cov, grad_prior_trace, grad_prior_square, grad_cross
            )
        if prior.root is not None and ctx.needs_input_grad[4]:
            grad_root = _root_gradient(
                centred, prior, grad_prior_trace, grad_prior_square, grad_cross
            )
        return grad_X, None, None, grad_prior_cov, grad_root, None, None, None


def _trace(matrix: Tensor) -> Tensor:
    """Trace (...) of matrices (..., d, d)."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _matrix_prior(
    prior_cov: Tensor | None, centred: Tensor, small: Tensor
) -> tuple[_Prior, _PriorSums]:
    """Σ_S as a matrix or the identity, with its sums."""
    n, d = centred.shape[-2:]
    if prior_cov is None:
        trace = _trace(small)
        size = torch.full_like(trace, d)
        return _Prior(), _PriorSums(trace, size, size)
    if n < d:
        product = centred @ prior_cov
        cross = (product * centred).sum((-2, -1)) / (n - 1)
    else:
        product, cross = None, (small * prior_cov).sum((-2, -1))
    square = prior_cov.square().sum((-2, -1))
    return _Prior(prior_cov, product=product), _PriorSums(cross, _trace(prior_cov), square)


def _factored_prior(
    root: Tensor,
    variances: Tensor | None,
    squared_norm: SquaredNorm,
    centred: Tensor,
    small: Tensor,
) -> tuple[_Prior, _PriorSums]:
    """Σ_S = BVBᵀ with its sums; ‖Σ_S‖² is estimated from that of an earlier B."""
    n, d = centred.shape[-2:]
    product = (centred if n < d else small) @ root
    rows = None if variances is None else variances[..., None, :]
    weighted = product if rows is None else product * rows
    cross = dots(weighted, product) / (n - 1) if n < d else dots(weighted, root)
    value, gradient = squared_norm
    ratio = (dots(gradient, root) / (4 * value)).where(value > 0, 0.0)
    sums = _PriorSums(cross, dots(root, root, variances), value * ratio**4)
    return _Prior(None, root, rows, weighted, gradient, ratio**3), sums


def _lengths(small: Tensor, centred: Tensor, unit: Tensor) -> Tensor:
    """‖x - x̄‖² / (n-1) of each point, (..., n), in the units of `small`."""
    n, d = centred.shape[-2:]
    if n < d:
        return small.diagonal(dim1=-2, dim2=-1)
    squared = torch.linalg.vector_norm(centred, dim=-1).square()  # needs no n×d matrix of squares
    return squared / ((n - 1) * unit[..., None])


def _mixture(
    sums: _Sums, zeta: float | Tensor, n: int, bias_corrected: bool
) -> tuple[Tensor, Tensor]:
    """tr² and ‖·‖² of (1-ζ)Σ + ζS; bias correction changes only the terms quadratic in Σ."""
    trace_square, square = sums.trace.square(), sums.square
    if bias_corrected:
        trace_square, square = unbiased_squares(sums.trace, sums.square, sums.fourth, n)
    keep, both = (1 - zeta) ** 2, 2 * zeta * (1 - zeta)
    numerator = keep * trace_square + both * sums.trace * sums.prior.trace
    denominator = keep * square + both * sums.prior.cross
    return (
        numerator + zeta**2 * sums.prior.trace**2,
        denominator + zeta**2 * sums.prior.square,
    )


def _points_gradient(
    centred: Tensor,
    small: Tensor,
    prior: _Prior,
    grad_trace: Tensor,
    grad_square: Tensor,
    grad_cross: Tensor,
) -> Tensor:
    """Gradient (..., n, d) through tr Σ, ‖Σ‖² and ⟨Σ, S⟩; its columns sum to zero."""
    n, d = centred.shape[-2:]
    grad_trace, grad_square, grad_cross = (
        t[..., None, None] for t in (grad_trace, grad_square, grad_cross)
    )
    core = 4 * grad_square / (n - 1) * small
    core.diagonal(dim1=-2, dim2=-1).add_((2 * grad_trace / (n - 1))[..., 0])
    scale = 2 * grad_cross / (n - 1)
    if n < d:
        gradient = core @ centred
        if prior.product is None:
            return gradient
        if prior.root is None:
            return gradient + scale * prior.product
        return gradient + (scale * prior.product) @ prior.root.mT
    if prior.root is not None:
        weighted = prior.root if prior.variances is None else prior.root * prior.variances
        core = core + scale * (weighted @ prior.root.mT)
    elif prior.cov is not None:
        core = core + scale * prior.cov
    return centred @ core


def _add_fourth_gradient(
    gradient: Tensor, centred: Tensor, lengths: Tensor, grad_fourth: Tensor
) -> Tensor:
    """Add the gradient through Σ ‖x - x̄‖⁴ / (n-1) in place and centre the columns."""
    gradient.addcmul_(4 * (grad_fourth[..., None] * lengths)[..., None], centred)
    return gradient.sub_(gradient.mean(-2, keepdim=True))


def _prior_cov_gradient(
    centred: Tensor,
    small: Tensor,
    prior_cov: Tensor,
    grad_trace: Tensor,
    grad_square: Tensor,
    grad_cross: Tensor,
) -> Tensor:
    """Gradient for S through tr S, ‖S‖² and ⟨Σ, S⟩, in the shape of `prior_cov`."""
    n, d = centred.shape[-2:]
    covariance = small if n >= d else centred.mT @ centred / (n - 1)
    gradient = (2 * grad_square)[..., None, None] * prior_cov
    gradient += grad_cross[..., None, None] * covariance
    gradient.diagonal(dim1=-2, dim2=-1).add_(grad_trace[..., None])
    return gradient.sum_to_size(prior_cov.shape)


def _root_gradient(
    centred: Tensor, prior: _Prior, grad_trace: Tensor, grad_square: Tensor, grad_cross: Tensor
) -> Tensor | None:
    """Gradient for B, where BVBᵀ = S, through tr S, ‖S‖² and ⟨Σ, S⟩."""
    n, d = centred.shape[-2:]
    _, root, variances, product, square_gradient, growth = prior
    if root is None or product is None or square_gradient is None or growth is None:
        return None
    grad_trace, grad_square, grad_cross = (
        t[..., None, None] for t in (grad_trace, grad_square * growth, grad_cross)
    )
    gradient = square_gradient * grad_square
    gradient.addcmul_(root, 2 * grad_trace * (1 if variances is None else variances))
    if n >= d:
        return gradient.addcmul_(product, 2 * grad_cross)
    product = 2 / (n - 1) * grad_cross * product
    if gradient.ndim == 3:
        return gradient.baddbmm_(centred.mT, product)  # in place: allocates no d×r matrix
    return gradient.add_(centred.mT @ product)

"""Covariances given by a factor that is trained, and a cheap estimate of their squared norm."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


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

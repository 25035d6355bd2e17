"""Partition function Z(v) = Σ_i exp(vᵀx_i) along the principal axes of a point cloud."""

import math

import torch
from torch import Tensor

_CHUNK = 8192
_TIE = 1e-6  # entries of a unit vector whose sizes differ by less count as equally large


def log_partition(X: Tensor) -> Tensor:
    """Logarithm (d,) of Z(v) for each unit eigenvector v of XᵀX, for uncentred points X (n, d).

    The sign of v makes its entry of largest absolute value positive, the first one if several are
    equally large. Z depends on that sign, on the scale of X and, where eigenvalues coincide, on the
    choice of eigenvectors. Log-sum-exp prevents overflow. Along axes orthogonal to all points the
    value is log n.
    """
    n, d = X.shape
    axes = _fix_signs(_principal_axes(X))
    total = axes.new_full((axes.shape[1],), -math.inf)
    for chunk in X.split(_CHUNK):
        total = torch.logaddexp(total, torch.logsumexp(chunk @ axes, dim=0))
    return torch.cat([total, total.new_full((d - len(total),), math.log(n))])


def partition_isotropy(log_z: Tensor) -> Tensor:
    """I1: smallest over largest Z, in [0, 1], from `log_z` (d,); 1 for an isotropic cloud."""
    return (log_z.min() - log_z.max()).exp()


def partition_dispersion(log_z: Tensor) -> Tensor:
    """I2: standard deviation (divisor d) over mean of Z, from `log_z` (d,); 0 if isotropic."""
    shares = (log_z - log_z.max()).exp()
    return shares.std(correction=0) / shares.mean()


def _principal_axes(X: Tensor) -> Tensor:
    """Unit eigenvectors of XᵀX as columns; for n < d without those orthogonal to all points."""
    scale = X.abs().max()  # divided out, so that squares do not overflow
    scale = torch.where(scale > 0, scale, 1.0)
    if len(X) < X.shape[1]:
        return torch.linalg.svd(X / scale, full_matrices=False).Vh.T
    second_moment = X.new_zeros(X.shape[1], X.shape[1])
    for chunk in X.split(_CHUNK):
        scaled = chunk / scale
        second_moment.addmm_(scaled.T, scaled)
    return torch.linalg.eigh(second_moment).eigenvectors


def _fix_signs(axes: Tensor) -> Tensor:
    """Make the first entry of largest absolute value of each column positive."""
    sizes = axes.abs()
    first = (sizes >= sizes.amax(0) * (1 - _TIE)).int().argmax(0, keepdim=True)
    return axes * axes.gather(0, first).sign()

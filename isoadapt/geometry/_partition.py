"""The partition function Z(v) = Σ_i exp(vᵀx_i) along the principal axes of a point cloud."""

import math

import torch
from torch import Tensor

_CHUNK = 8192
_TIE = 1e-6  # entries of a unit vector that differ by less are equally large


def log_partition(X: Tensor) -> Tensor:
    """Logarithm of Z(v) for every unit eigenvector v of XᵀX, uncentred.

    Each eigenvector's sign is the one that makes its entry of largest absolute value positive,
    the first of them if several are equally large. Z depends on that sign, on the scale of X
    and, where eigenvalues coincide, on the basis of their eigenspace.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Points, read in chunks of rows.

    Returns
    -------
    Tensor of shape (d,)
        By log-sum-exp, so nothing overflows; log n along axes orthogonal to all points.
    """
    n, d = X.shape
    axes = _fix_signs(_principal_axes(X))
    total = axes.new_full((axes.shape[1],), -math.inf)
    for chunk in X.split(_CHUNK):
        total = torch.logaddexp(total, torch.logsumexp(chunk @ axes, dim=0))
    return torch.cat([total, total.new_full((d - len(total),), math.log(n))])


def partition_isotropy(log_z: Tensor) -> Tensor:
    """Smallest over largest value of the partition function, I1.

    Parameters
    ----------
    log_z : Tensor of shape (d,)
        As :func:`log_partition` gives it.

    Returns
    -------
    Tensor of shape ()
        In [0, 1], 1 for an isotropic cloud.
    """
    return (log_z.min() - log_z.max()).exp()


def partition_dispersion(log_z: Tensor) -> Tensor:
    """Standard deviation over mean of the partition function, I2.

    Parameters
    ----------
    log_z : Tensor of shape (d,)
        As :func:`log_partition` gives it.

    Returns
    -------
    Tensor of shape ()
        At least 0, 0 for an isotropic cloud. The standard deviation divides by d.
    """
    shares = (log_z - log_z.max()).exp()
    return shares.std(correction=0) / shares.mean()


def _principal_axes(X: Tensor) -> Tensor:
    """Unit eigenvectors of XᵀX, as columns; for n < d only the n that may carry points."""
    scale = X.abs().max()  # taken out, lest squares overflow
    scale = torch.where(scale > 0, scale, 1.0)
    if len(X) < X.shape[1]:
        return torch.linalg.svd(X / scale, full_matrices=False).Vh.T
    second_moment = X.new_zeros(X.shape[1], X.shape[1])
    for chunk in X.split(_CHUNK):
        scaled = chunk / scale
        second_moment.addmm_(scaled.T, scaled)
    return torch.linalg.eigh(second_moment).eigenvectors


def _fix_signs(axes: Tensor) -> Tensor:
    sizes = axes.abs()
    first = (sizes >= sizes.amax(0) * (1 - _TIE)).int().argmax(0, keepdim=True)
    return axes * axes.gather(0, first).sign()

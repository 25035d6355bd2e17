"""Spectral pieces that the adapters share."""

import numpy as np
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip

from isoadapt.adapters._maps import Floats


def descending_eigh(cov: Floats) -> tuple[Floats, Floats]:
    """Decompose a covariance.

    Parameters
    ----------
    cov : ndarray of shape (d, d)
        Covariance; rounding may have made it a little asymmetric.

    Returns
    -------
    eigenvalues : ndarray of shape (d,)
        Largest first, none below zero.
    eigenvectors : ndarray of shape (d, d)
        Columns, with signs fixed.
    """
    values, vectors = eigh((cov + cov.T) / 2)
    if len(values):
        vectors, _ = svd_flip(vectors[:, ::-1], None)
    return values[::-1].clip(min=0), vectors


def shrink(eigenvalues: Floats, shrinkage: float) -> Floats:
    """Move eigenvalues towards their mean.

    Parameters
    ----------
    eigenvalues : ndarray of shape (d,)
        Of a covariance.
    shrinkage : float
        How far, in [0, 1].

    Returns
    -------
    ndarray of shape (d,)
        Of the shrunk covariance.
    """
    return (1 - shrinkage) * eigenvalues + shrinkage * eigenvalues.mean()


def inverse_root(eigenvalues: Floats, power: float = 1.0, rtol: float = 1e-12) -> Floats:
    """Raise eigenvalues to -power/2; those that are zero beside the largest stay zero.

    Parameters
    ----------
    eigenvalues : ndarray of shape (d,)
        Of a covariance.
    power : float, default=1.0
        1 whitens, 0 leaves as it is.
    rtol : float, default=1e-12
        What counts as zero, relative to the largest.

    Returns
    -------
    ndarray of shape (d,)
        Scales.
    """
    kept = eigenvalues > rtol * max(eigenvalues.max(), np.finfo(np.float64).tiny)
    return np.where(kept, np.where(kept, eigenvalues, 1.0) ** (-power / 2), 0.0)

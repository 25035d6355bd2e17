"""Spectral pieces that the adapters share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip

from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.geometry import DEAD, Moments


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
    if not len(cov):  # SciPy before 1.14 refuses it
        return np.zeros(0), np.zeros((0, 0))
    values, vectors = eigh((cov + cov.T) / 2)
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


def inverse_root(eigenvalues: Floats, power: float = 1.0, rtol: float = DEAD) -> Floats:
    """Raise eigenvalues to -power/2; those that are zero beside the largest stay zero.

    Parameters
    ----------
    eigenvalues : ndarray of shape (d,)
        Of a covariance.
    power : float, default=1.0
        1 whitens, 0 leaves as it is.
    rtol : float, default=DEAD
        What counts as zero, relative to the largest.

    Returns
    -------
    ndarray of shape (d,)
        Scales.
    """
    kept = eigenvalues > rtol * max(eigenvalues.max(), np.finfo(np.float64).tiny)
    return np.where(kept, np.where(kept, eigenvalues, 1.0) ** (-power / 2), 0.0)


def leading_components(cov: Floats, n_components: int, scale: float, rtol: float = DEAD) -> Floats:
    """Give the directions of largest variance, no more than there are.

    Parameters
    ----------
    cov : ndarray of shape (d, d)
        Covariance.
    n_components : int
        How many.
    scale : float
        A variance of the size of the data's: beside it, variances may count as zero.
    rtol : float, default=DEAD
        What counts as zero, relative to `scale`.

    Returns
    -------
    ndarray of shape (n_components, d)
        Orthonormal rows, largest variance first; rows of zeros where the variance is zero.
    """
    eigenvalues, vectors = descending_eigh(cov)
    spread = eigenvalues[:n_components, None] > rtol * scale
    return np.where(spread, vectors[:, :n_components].T, 0.0)


def oas_shrinkage(moments: Moments) -> float:
    """Estimate how far a covariance should move to a multiple of the identity, for Gaussian rows.

    Parameters
    ----------
    moments : Moments
        Of the rows.

    Returns
    -------
    float
        The oracle approximating shrinkage, in [0, 1].

    References
    ----------
    Y. Chen, A. Wiesel, Y. C. Eldar and A. O. Hero (2010), "Shrinkage algorithms for MMSE
    covariance estimation", equation 23 without its terms 2/d, as in scikit-learn.
    """
    cov = moments.covariance(ddof=0).numpy()
    d = len(cov)
    square = float(((cov / cov.trace()) ** 2).sum())  # in units of the squared trace
    distance = (moments.count + 1) * (square - 1 / d)
    return min((square + 1) / distance, 1.0) if distance > 0 else 1.0


def ledoit_wolf_shrinkage(X: NDArray[Any], weights: NDArray[Any] | None, moments: Moments) -> float:
    """Estimate how far a covariance should move to a multiple of the identity, for any rows.

    The error of the covariance, (mean ‖x - μ‖⁴ - ‖S‖²)/n, over its distance ‖S - tr(S)/d I‖².

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Rows.
    weights : ndarray of shape (n_samples,) or None
        How often each row counts.
    moments : Moments
        Of the rows with these weights.

    Returns
    -------
    float
        In [0, 1].

    References
    ----------
    O. Ledoit and M. Wolf (2004), "A well-conditioned estimator for large-dimensional covariance
    matrices", lemmas 3.2 to 3.4.
    """
    mean, cov = moments.mean.numpy(), moments.covariance(ddof=0).numpy()
    unit = np.sqrt(cov.trace())
    fourths = map_rows(lambda rows: (((rows - mean) / unit) ** 2).sum(axis=1) ** 2, X)
    square = float(((cov / cov.trace()) ** 2).sum())  # in units of the squared trace
    error = (np.average(fourths, weights=weights) - square) / moments.count
    distance = square - 1 / len(cov)
    return float(min(error / distance, 1.0)) if error > 0 and distance > 0 else 0.0

"""The row space of a head, and whitening of the directions outside it."""

import numpy as np

from isoadapt.adapters._linalg import (
    descending_eigh,
    inverse_root,
    shrink,
)
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import DEAD, Moments, dead_dimensions


def row_space(coef: Floats) -> tuple[Floats, Floats]:
    """Split the embedding space by what a head sees.

    Parameters
    ----------
    coef : ndarray of shape (n_outputs, n_features)
        W.

    Returns
    -------
    seen : ndarray of shape (n_features, rank)
        Orthonormal basis R of the row space.
    unseen : ndarray of shape (n_features, n_features - rank)
        Orthonormal basis N of its complement: WN = 0.
    """
    norms = np.linalg.norm(coef, axis=1, keepdims=True)  # rows of any scale count alike
    _, values, rows = np.linalg.svd(coef / np.where(norms > 0, norms, 1.0))
    tolerance = values.max() * max(coef.shape) * np.finfo(np.float64).eps
    rank = int((values > tolerance).sum())
    return rows[:rank].T, rows[rank:].T


def whiten_unseen(
    moments: Moments,
    seen_map: Affine,
    seen: Floats,
    unseen: Floats,
    shrinkage: float,
    strength: float = 1.0,
) -> Affine:
    """Complete a map of the seen coordinates by the most isotropic one of the unseen.

    Parameters
    ----------
    moments : Moments
        Of the embeddings.
    seen_map : Affine
        From embeddings to the r seen coordinates of the output.
    seen, unseen : ndarray of shape (n_features, r) and (n_features, n_features - r)
        Orthonormal bases of the output space.
    shrinkage, strength : float
        Of the whitening of what the seen coordinates do not predict.

    Returns
    -------
    Affine
        With seen coordinates ``seen_map(h)`` and the unseen ones uncorrelated with them, around
        their old mean, with the variance that maximises IsoScore.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    crossed = seen_map.matrix @ cov
    seen_cov = crossed @ seen_map.matrix.T
    regression = np.linalg.pinv(seen_cov, hermitian=True) @ (crossed @ unseen)
    residual = unseen.T - regression.T @ seen_map.matrix
    residual[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would stretch them
    eigenvalues, vectors = descending_eigh(residual @ cov @ residual.T)
    eigenvalues = np.where(eigenvalues > DEAD * cov.trace(), eigenvalues, 0.0)
    if not len(eigenvalues):
        return Affine(seen @ seen_map.matrix, seen @ seen_map.offset)
    scales = inverse_root(shrink(eigenvalues, shrinkage), strength)
    scales *= np.sqrt(_best_variance(seen_cov, eigenvalues * scales**2))
    spread = (unseen @ (vectors * scales)) @ (vectors.T @ residual)
    matrix = seen @ seen_map.matrix + spread
    return Affine(matrix, seen @ seen_map.offset + unseen @ (unseen.T @ mean) - spread @ mean)


def _best_variance(seen_cov: Floats, variances: Floats) -> float:
    """Factor on the unseen variances that makes the participation ratio largest."""
    if not seen_cov.trace() > 0 or not variances.any():
        return 1.0
    trace, total = seen_cov.trace(), variances.sum()  # squares of the shares do not overflow
    balance = ((seen_cov / trace) ** 2).sum() / ((variances / total) ** 2).sum()
    return float(balance * (trace / total))

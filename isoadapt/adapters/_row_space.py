"""The row space of a head, and whitening of the directions outside it."""

import numpy as np

from isoadapt.adapters._linalg import descending_eigh, inverse_root, shrink
from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import DEAD, dead_dimensions


def row_space(coef: Floats) -> tuple[Floats, Floats]:
    """Return orthonormal bases of the row space of W (C, d) and of its complement N, where WN = 0.

    The bases are columns: (d, rank) and (d, d - rank).
    """
    norms = np.linalg.norm(coef, axis=1, keepdims=True)  # the scale of a row has no effect
    _, values, rows = np.linalg.svd(coef / np.where(norms > 0, norms, 1.0))
    tolerance = values.max() * max(coef.shape) * np.finfo(np.float64).eps
    rank = int((values > tolerance).sum())
    return rows[:rank].T, rows[rank:].T


def whiten_complement(
    moments: Moments,
    inner: Affine,
    basis: Floats,
    complement: Floats,
    shrinkage: float,
    strength: float = 1.0,
) -> Affine:
    """Extend a map of the coordinates in the row space to the map with the highest IsoScore.

    `inner` maps embeddings to the r coordinates of the output in `basis` (d, r). The coordinates
    in `complement` (d, d - r) keep their mean. Their linear regression on `inner` is subtracted,
    and the residual is whitened and scaled to the variance that maximises IsoScore. If `inner` has
    no variance, it keeps its total variance.
    """
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    cross = inner.matrix @ cov
    inner_cov = cross @ inner.matrix.T
    regression = np.linalg.pinv(inner_cov, hermitian=True) @ (cross @ complement)
    residual = complement.T - regression.T @ inner.matrix
    residual[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would scale them up
    eigenvalues, vectors = descending_eigh(residual @ cov @ residual.T)
    eigenvalues = np.where(eigenvalues > DEAD * cov.trace(), eigenvalues, 0.0)
    if not len(eigenvalues):
        return Affine(basis @ inner.matrix, basis @ inner.offset)
    scales = inverse_root(shrink(eigenvalues, shrinkage), strength)
    scales *= np.sqrt(_best_factor(inner_cov, eigenvalues, eigenvalues * scales**2))
    whitening = (complement @ (vectors * scales)) @ (vectors.T @ residual)
    matrix = basis @ inner.matrix + whitening
    offset = basis @ inner.offset + complement @ (complement.T @ mean) - whitening @ mean
    return Affine(matrix, offset)


def _best_factor(inner_cov: Floats, before: Floats, variances: Floats) -> float:
    """Return the factor on the whitened variances in the complement that maximises IsoScore.

    If the row space has no variance, any factor does; the sum of the variances `before` whitening
    is then kept.
    """
    trace, total = inner_cov.trace(), variances.sum()  # squares of the shares do not overflow
    if not total > 0:
        return 1.0
    if not trace > 0:
        return float(before.sum() / total)
    balance = ((inner_cov / trace) ** 2).sum() / ((variances / total) ** 2).sum()
    return float(balance * (trace / total))

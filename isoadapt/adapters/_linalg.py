"""Eigendecomposition and shrinkage of covariances, and whitening outside a head's row space."""

import numpy as np
from scipy.linalg import eigh
from sklearn.utils.extmath import svd_flip

from isoadapt.adapters._maps import Affine, Floats
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import dead_dimensions

_PENALTIES = np.geomspace(1e3, 1e-6, 100)  # s / (1 - s) of shrinkages s; the largest comes first
_LEAST = 0.02  # share of the oracle approximating shrinkage that "auto" does not go below


def descending_eigh(cov: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues (d,), descending and at least 0, and the eigenvectors as columns."""
    if not len(cov):  # SciPy before 1.14 refuses it
        return np.zeros(0), np.zeros((0, 0))
    values, vectors = eigh((cov + cov.T) / 2)
    vectors, _ = svd_flip(vectors[:, ::-1], None)
    return values[::-1].clip(min=0), vectors


def shrink(eigenvalues: Floats, shrinkage: float) -> Floats:
    """Move eigenvalues (d,) towards their mean; a shrinkage of 1 makes all of them equal."""
    return (1 - shrinkage) * eigenvalues + shrinkage * eigenvalues.mean()


def inverse_root(eigenvalues: Floats, power: float) -> Floats:
    """Raise eigenvalues (d,) to -power/2; those without variance give zero."""
    dead = dead_dimensions(eigenvalues)
    return np.where(dead, 0.0, np.where(dead, 1.0, eigenvalues) ** (-power / 2))


def leading_components(cov: Floats, n_components: int, total: float) -> Floats:
    """Return leading directions as orthonormal rows; zeros without variance beside the `total`."""
    eigenvalues, vectors = descending_eigh(cov)
    dead = dead_dimensions(eigenvalues[:n_components, None], total)
    return np.where(dead, 0.0, vectors[:, :n_components].T)


def oas_shrinkage(moments: Moments) -> float:
    """Estimate the oracle approximating shrinkage, in [0, 1], as scikit-learn does."""
    return _oas_shrinkage(moments.covariance(ddof=0).numpy(), moments.count)


def _oas_shrinkage(cov: Floats, count: float) -> float:
    square = float(((cov / cov.trace()) ** 2).sum())  # in units of the squared trace
    distance = (count + 1) * (square - 1 / len(cov))
    return min((square + 1) / distance, 1.0) if distance > 0 else 1.0


def estimate_shrinkage(shrinkage: float | str, eigenvalues: Floats, freedom: float) -> float:
    """Return a number as it is; else estimate it from eigenvalues (d,) and degrees of freedom."""
    if not isinstance(shrinkage, str):
        return float(shrinkage)
    if not eigenvalues.any():
        return 0.0
    oas = _oas_shrinkage(np.diag(eigenvalues), freedom + 1)
    if shrinkage == "oas":
        return oas
    return max(_whitening_shrinkage(eigenvalues, max(freedom, 1.0)), _LEAST * oas)


def _whitening_shrinkage(eigenvalues: Floats, n: float) -> float:
    """Estimate the shrinkage, in [0, 1], after which whitening makes new rows most isotropic.

    Let G = (S + aI)⁻¹ be the inverse of the shrunk covariance S of n rows, and t_k the sum of the
    k-th powers of the eigenvalues of SG. With e = (n t₂ - t₁²) / (n - 2 t₁ + t₂), new rows of
    covariance Σ have tr(ΣG) = t₁ and tr(ΣGΣG) = e + e² / (n - e), up to a common factor. These are
    deterministic equivalents for light tails: t₁ and e are the degrees of freedom df₁ and df₂ in
    Bach (2024), "High-dimensional analysis of double descent for linear regression with random
    projections". Rows of covariances τᵢ²Σ require n/κ in place of n, where κ is the mean square of
    the leverages xᵢᵀGxᵢ over their squared mean. Eigenvalues do not show κ. The term e²/(2n) that
    is added to tr(ΣGΣG) is the effect of κ = 1.5 to first order in e/n, at given e. The ratio
    tr(ΣG)² / tr(ΣGΣG) is maximised.
    """
    live = eigenvalues[~dead_dimensions(eigenvalues)]
    added = _PENALTIES[:, None] * eigenvalues.mean()
    kept, removed = live / (live + added), added / (live + added)  # their sum is 1
    spare = n - len(live)
    left = spare + removed.sum(axis=1)  # n - t₁
    gap = spare * (kept**2).sum(axis=1) + len(live) ** 2 * removed.var(axis=1)  # n t₂ - t₁²
    valid = (left > 0) & (gap > 0)  # small weights can make it false
    left, gap = np.where(valid, left, 1.0), np.where(valid, gap, 1.0)
    squares = n * gap / left**2 + (gap / (spare + (removed**2).sum(axis=1))) ** 2 / (2 * n)
    best = _PENALTIES[np.where(valid, kept.sum(axis=1) ** 2 / squares, 0.0).argmax()]
    return float(best / (1 + best))


def ledoit_wolf_shrinkage(moments: Moments) -> float:
    """Estimate the shrinkage of Ledoit and Wolf (2004), lemmas 3.2 to 3.4, in [0, 1]."""
    if moments.fourth is None:
        raise ValueError(
            "shrinkage='ledoit-wolf' needs the fourth moment, which mapped moments lack: fit "
            "to rows, or use shrinkage='auto', 'oas' or a number"
        )
    cov = moments.covariance(ddof=0).numpy()
    square = float(((cov / cov.trace()) ** 2).sum())  # all in units of the squared trace
    error = float(moments.fourth) - square / moments.count
    distance = square - 1 / len(cov)
    return float(min(error / distance, 1.0)) if error > 0 and distance > 0 else 0.0


def row_space(coef: Floats) -> tuple[Floats, Floats]:
    """Return orthonormal bases, as columns, of the row space of W (C, d) and of its complement."""
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
    shrinkage: float | str = "auto",
    strength: float = 1.0,
) -> tuple[Affine, float]:
    """Extend `inner`, to r coordinates in `basis` (d, r), to the map with the highest IsoScore."""
    # The residual of the other coordinates, without their regression on `inner`, is whitened.
    mean, cov = moments.mean.numpy(), moments.covariance().numpy()
    cross = inner.matrix @ cov
    inner_cov = cross @ inner.matrix.T
    regression = np.linalg.pinv(inner_cov, hermitian=True) @ (cross @ complement)
    residual = complement.T - regression.T @ inner.matrix
    residual[:, dead_dimensions(cov.diagonal())] = 0  # shrinkage would scale them up
    eigenvalues, vectors = descending_eigh(residual @ cov @ residual.T)
    eigenvalues[dead_dimensions(eigenvalues, cov.trace())] = 0
    used = estimate_shrinkage(shrinkage, eigenvalues, moments.count - 1 - len(inner_cov))
    if not len(eigenvalues):
        return Affine(basis @ inner.matrix, basis @ inner.offset), used
    scales = inverse_root(shrink(eigenvalues, used), strength)
    scales *= np.sqrt(_best_factor(inner_cov, eigenvalues, eigenvalues * scales**2))
    whitening = (complement @ (vectors * scales)) @ (vectors.T @ residual)
    matrix = basis @ inner.matrix + whitening
    offset = basis @ inner.offset + complement @ (complement.T @ mean) - whitening @ mean
    return Affine(matrix, offset), used


def _best_factor(inner_cov: Floats, before: Floats, variances: Floats) -> float:
    """Return the factor on the whitened variances in the complement that maximises IsoScore."""
    trace, total = inner_cov.trace(), variances.sum()  # squares of the shares do not overflow
    if not total > 0:
        return 1.0
    if not trace > 0:  # the total variance is kept
        return float(before.sum() / total)
    balance = ((inner_cov / trace) ** 2).sum() / ((variances / total) ** 2).sum()
    return float(balance * (trace / total))

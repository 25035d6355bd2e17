"""Whitening: its fit against PCA and its transform against a matrix product."""

import numpy as np
from numpy.typing import DTypeLike
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits

from benchmarks._data import Floats
from benchmarks.speed._harness import Comparison, Result, compare
from isoadapt import Whitening
from isoadapt._utils.threads import one_thread

D = 384


def run(quick: bool) -> list[Result]:
    """Measure fits and transforms of rows in memory."""
    X = cloud(20_000 if quick else 200_000)
    repeats = 1 if quick else 5
    return [
        _compare_fit(X[:10_000] if quick else X, "full", 1 if quick else 3, 5.0),
        _compare_fit(X, "covariance_eigh", repeats, 1 / 1.1),
        _compare_fit(X.astype(np.float32), "covariance_eigh", repeats, 1 / 1.3),
        _compare_product(X, repeats),
        _compare_transform(X, np.float64, repeats, 0.8),
        _compare_transform(X.astype(np.float32), np.float64, repeats, 0.8),
        _compare_transform(X.astype(np.float32), np.float32, repeats, None),
    ]


def cloud(n: int) -> Floats:
    """Draw Gaussian rows in float64 whose mean is three times their standard deviation."""
    return np.random.default_rng(0).standard_normal((n, D)) + 3


def _compare_fit(X: Floats, solver: str, repeats: int, target: float | None) -> Comparison:
    """Compare the fits; Whitening computes in float64, PCA in the dtype of the rows."""
    with threadpool_limits(1), one_thread():
        return compare(
            f"Whitening.fit of {X.dtype} against PCA(whiten=True, svd_solver={solver!r})",
            lambda: Whitening().fit(X),
            lambda: PCA(whiten=True, svd_solver=solver).fit(X),
            repeats=repeats,
            target=target,
            n=len(X),
            d=D,
            threads=1,
        )


def _compare_product(X: Floats, repeats: int) -> Comparison:
    """Compare the product that a fit in float64 cannot avoid with the fit of PCA in float32."""
    single = X.astype(np.float32)
    with threadpool_limits(1):
        return compare(
            "lower bound: X.T @ X of float64, against PCA(whiten=True, "
            "svd_solver='covariance_eigh') of float32",
            lambda: X.T @ X,
            lambda: PCA(whiten=True, svd_solver="covariance_eigh").fit(single),
            repeats=repeats,
            n=len(X),
            d=D,
            threads=1,
        )


def _compare_transform(
    X: Floats, dtype: DTypeLike, repeats: int, target: float | None
) -> Comparison:
    """Compare a transform with a matrix product of the same size and dtype."""
    whitening = Whitening().fit(X)
    rows, matrix = X.astype(dtype), whitening.to_affine().matrix.T.astype(dtype)
    return compare(
        f"Whitening.transform of {X.dtype} against X @ A in {np.dtype(dtype)}",
        lambda: whitening.transform(X),
        lambda: rows @ matrix,
        repeats=repeats,
        target=target,
        n=len(X),
        d=D,
    )

"""Whitening: its fit against PCA and its transform against a matrix product."""

from collections.abc import Iterator

import numpy as np
from sklearn.decomposition import PCA

from benchmarks.speed._harness import Comparison, compare
from isoadapt import Whitening

D = 384


def run(quick: bool) -> Iterator[Comparison]:
    """Compare fits, then transforms."""
    X = np.random.default_rng(0).standard_normal((20_000 if quick else 200_000, D)) + 3
    single = X.astype(np.float32)
    for rows, solver, repeats, target in (
        (X[:10_000] if quick else X, "full", 1, 5.0),
        (X, "covariance_eigh", 7, 0.75),
        (single, "covariance_eigh", 7, 0.45),
    ):
        yield compare(
            f"Whitening.fit of {rows.dtype} against PCA(whiten=True, svd_solver={solver!r})",
            lambda rows=rows: Whitening().fit(rows),
            lambda rows=rows, solver=solver: PCA(whiten=True, svd_solver=solver).fit(rows),
            repeats=1 if quick else repeats,
            target=target,
            rows=rows,
        )
    for rows in (X, single):
        whitening = Whitening().fit(rows)
        left, right = rows.astype(np.float64), whitening.to_affine().matrix.T
        yield compare(
            f"Whitening.transform of {rows.dtype} against X @ A in float64",
            lambda rows=rows, whitening=whitening: whitening.transform(rows),
            lambda left=left, right=right: left @ right,
            repeats=1 if quick else 5,
            target=0.8,
            rows=rows,
        )

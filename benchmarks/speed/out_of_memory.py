"""Fits to a file that is larger than the memory they may use, against IncrementalPCA."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from sklearn.decomposition import IncrementalPCA

from benchmarks.speed._harness import Comparison, apart, measured
from isoadapt import Whitening

D = 384
CHUNK = 10_000  # rows that are written at a time, and that IncrementalPCA takes at a time
LIMIT = 1000  # MB of resident memory, beside what the imports take


def run(quick: bool) -> Iterator[Comparison]:
    """Fit each method in a process of its own to rows in a float32 file.

    IncrementalPCA, whose time is linear in the rows, is fitted to fewer.
    """
    n, fewer, repeats = (50_000, 10_000, 1) if quick else (3_000_000, 100_000, 2)
    incremental = IncrementalPCA(whiten=True, batch_size=CHUNK)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        write_rows(path, n)
        found = [
            (apart(_fit, Whitening(), path, n), apart(_fit, incremental, path, fewer))
            for _ in range(repeats)
        ]
    peak = round(max(ours["peak_mb"] for ours, _ in found))
    if peak > LIMIT:
        raise RuntimeError(f"Whitening.fit from a file took {peak} MB, more than {LIMIT}")
    yield Comparison(
        f"Whitening.fit from a float32 file, peak {peak} MB of resident memory (limit {LIMIT}), "
        f"against IncrementalPCA in batches of {CHUNK} (measured on {fewer} rows and scaled)",
        tuple(ours["wall_s"] for ours, _ in found),
        tuple(reference["wall_s"] * n / fewer for _, reference in found),
        4.0,
        {"n": n, "d": D},
    )


def write_rows(path: Path, n: int) -> None:
    """Write correlated float32 rows whose mean is three times their standard deviation."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((D, D), np.float32) / np.float32(D**0.5)
    rows = open_memmap(path, "w+", np.float32, (n, D))
    for start in range(0, n, CHUNK):
        part = rows[start : start + CHUNK]
        part[...] = rng.standard_normal(part.shape, np.float32) @ mixing + 3
    rows.flush()


def _fit(estimator: Any, path: Path, n_rows: int) -> dict[str, float]:
    """Fit an estimator to the first rows of a file."""
    rows = np.load(path, mmap_mode="r")[:n_rows]
    return measured(lambda: estimator.fit(rows))

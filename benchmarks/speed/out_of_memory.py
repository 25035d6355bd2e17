"""Fits to a file that is larger than the memory they may use, against IncrementalPCA."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from sklearn.decomposition import IncrementalPCA

from benchmarks.speed._harness import Comparison, apart, measured
from isoadapt import Whitening

D = 384
CHUNK = 10_000  # rows that are written at a time, and that IncrementalPCA takes at a time
LIMIT = 1000  # MB of resident memory, beside what the imports take
METHODS = {
    "Whitening": Whitening(),
    "IncrementalPCA": IncrementalPCA(whiten=True, batch_size=CHUNK),
}


def run(quick: bool) -> Iterator[Comparison]:
    """Fit each method in a process of its own to rows in a float32 file.

    IncrementalPCA, whose time is linear in the rows, is fitted to fewer.
    """
    n, reference_rows = (50_000, 10_000) if quick else (3_000_000, 100_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        write_rows(path, n)
        yield _compare("Whitening", path, n, reference_rows, 1 if quick else 3)


def write_rows(path: Path, n: int) -> None:
    """Write correlated float32 rows whose mean is three times their standard deviation."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((D, D), np.float32) / np.float32(D**0.5)
    rows = open_memmap(path, "w+", np.float32, (n, D))
    for start in range(0, n, CHUNK):
        part = rows[start : start + CHUNK]
        part[...] = rng.standard_normal(part.shape, np.float32) @ mixing + 3
    rows.flush()


def _compare(name: str, path: Path, n: int, reference_rows: int, repeats: int) -> Comparison:
    found = [
        (apart(_fit, name, path, n), apart(_fit, "IncrementalPCA", path, reference_rows))
        for _ in range(repeats)
    ]
    peak = round(max(ours["peak_mb"] for ours, _ in found))
    if peak > LIMIT:
        raise RuntimeError(f"{name}.fit from a file took {peak} MB, more than {LIMIT}")
    return Comparison(
        f"{name}.fit from a float32 file, peak {peak} MB of resident memory (limit {LIMIT}), "
        f"against IncrementalPCA in batches of {CHUNK} (measured on {reference_rows} "
        "rows and scaled)",
        tuple(ours["wall_s"] for ours, _ in found),
        tuple(reference["wall_s"] * n / reference_rows for _, reference in found),
        4.0,
        {"n": n, "d": D},
    )


def _fit(name: str, path: Path, n_rows: int) -> dict[str, float]:
    """Fit a method to the first rows of a file."""
    rows, estimator = np.load(path, mmap_mode="r")[:n_rows], METHODS[name]
    return measured(lambda: estimator.fit(rows))

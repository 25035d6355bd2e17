"""Whitening: its fit against PCA, its transform against a matrix product, and its memory."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike
from sklearn.decomposition import PCA

from benchmarks._data import Floats
from benchmarks.speed._harness import Comparison, Measurement, Result, Skipped, compare
from isoadapt import Whitening

D = 384
CHUNK = 10_000
LIMIT = 700  # MB of anonymous memory, including imports

FIT_FROM_FILE = """
import re, sys, threading, time
from pathlib import Path
import numpy as np
from isoadapt import Whitening

peak, done = 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]) * 1024)

watcher = threading.Thread(target=watch)
watcher.start()
begun = time.perf_counter()
Whitening().fit(np.load(sys.argv[1], mmap_mode="r"))
seconds = time.perf_counter() - begun
done.set()
watcher.join()
print(seconds, peak)
"""


def run(quick: bool) -> list[Result]:
    """Measure fits and transforms of rows in memory, then a fit to rows in a file."""
    X = cloud(100_000 if quick else 200_000)
    repeats = 3 if quick else 9
    return [
        _compare_fit(X[:20_000] if quick else X, "full", 2 if quick else 3, 5.0),
        _compare_fit(X, "covariance_eigh", repeats, 1 / 1.15),
        _compare_fit(X.astype(np.float32), "covariance_eigh", repeats, None),
        _compare_transform(X, np.float64, repeats, 0.8),
        _compare_transform(X.astype(np.float32), np.float64, repeats, 0.8),
        _compare_transform(X.astype(np.float32), np.float32, repeats, None),
        _fit_from_file(100_000 if quick else 1_000_000),
    ]


def cloud(n: int) -> Floats:
    """Draw Gaussian rows in float64 whose mean is three times their standard deviation."""
    return np.random.default_rng(0).standard_normal((n, D)) + 3


def _compare_fit(X: Floats, solver: str, repeats: int, target: float | None) -> Comparison:
    """Compare the fits; Whitening computes in float64, PCA in the dtype of the rows."""
    return compare(
        f"Whitening.fit of {X.dtype} against PCA(whiten=True, svd_solver={solver!r})",
        lambda: Whitening().fit(X),
        lambda: PCA(whiten=True, svd_solver=solver).fit(X),
        repeats=repeats,
        target=target,
        n=len(X),
        d=D,
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


def _fit_from_file(n: int) -> Measurement | Skipped:
    """Fit to a memory map in a new process, and sample its anonymous memory."""
    if not Path("/proc/self/status").exists():
        return Skipped("whitening from a file", "anonymous memory is read from /proc")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        rows = open_memmap(path, "w+", np.float32, (n, D))
        rng = np.random.default_rng(0)
        for start in range(0, n, CHUNK):
            rows[start : start + CHUNK] = rng.standard_normal((CHUNK, D), np.float32) + 3
        rows.flush()
        command = [sys.executable, "-c", FIT_FROM_FILE, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = (float(figure) for figure in done.stdout.split())
    size = round(peak / 1e6)
    if size > LIMIT:
        raise RuntimeError(f"a fit of {n} × {D} from a file took {size} MB, more than {LIMIT}")
    name = f"Whitening.fit from a float32 file, peak {size} MB of anonymous memory (limit {LIMIT})"
    return Measurement(name, (seconds,), {"n": n, "d": D, "peak_bytes": int(peak)})

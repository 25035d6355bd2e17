"""Fits to a file that is larger than the memory they may use, against IncrementalPCA."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap

from benchmarks._places import ROOT
from benchmarks.speed._harness import Comparison, Result, Skipped
from benchmarks.speed._memory import STATUS

D = 384
CHUNK = 10_000  # rows that are written at a time, and that IncrementalPCA takes at a time
REFERENCE_ROWS = 100_000  # IncrementalPCA is measured on these; its time is linear in the rows
LIMIT = 1000  # MB of anonymous memory, including imports
TARGET = 4.0
OURS = ("Whitening", "LogitPreservingWhitening")
REFERENCE = "IncrementalPCA"


def run(quick: bool) -> list[Result]:
    """Fit each method in a process of its own, in one thread, to rows in a float32 file."""
    if not STATUS.exists():
        return [Skipped("fits from a file", "anonymous memory is read from /proc")]
    n, reference_rows = (50_000, 10_000) if quick else (3_000_000, REFERENCE_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        write_rows(path, n)
        return [_compare(name, path, n, reference_rows, 1 if quick else 3) for name in OURS]


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
    """Compare processor times; those of IncrementalPCA are scaled to all rows."""
    ours, reference, peaks = [], [], []
    for _ in range(repeats):
        found = _fit(name, path, n)
        peaks.append(found["peak_bytes"])
        ours.append(found["seconds"])
        reference.append(_fit(REFERENCE, path, reference_rows)["seconds"] * n / reference_rows)
    peak = round(max(peaks) / 1e6)
    if peak > LIMIT:
        raise RuntimeError(f"{name}.fit of {n} × {D} from a file took {peak} MB, more than {LIMIT}")
    return Comparison(
        f"{name}.fit from a float32 file, peak {peak} MB of anonymous memory (limit "
        f"{LIMIT}), against {REFERENCE} in batches of {CHUNK} (processor time, measured on "
        f"{reference_rows} rows and scaled)",
        tuple(ours),
        tuple(reference),
        TARGET,
        {"n": n, "d": D, "peak_bytes": max(peaks), "reference_rows": reference_rows, "threads": 1},
    )


def _fit(name: str, path: Path, n_rows: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.speed._fit_file",
        name,
        str(path),
        str(n_rows),
        str(CHUNK),
    ]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment = {**os.environ, **one_thread}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found

"""Fits to a file that is larger than the memory they may use, against IncrementalPCA."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from sklearn.decomposition import IncrementalPCA

from benchmarks._places import ROOT
from benchmarks.speed._harness import Comparison, Result, Skipped
from isoadapt import LinearHead, LogitPreservingWhitening, Whitening

D = 384
CHUNK = 10_000  # rows that are written at a time, and that IncrementalPCA takes at a time
LIMIT = 1000  # MB of anonymous memory, including imports
STATUS = Path("/proc/self/status")
METHODS = {
    "Whitening": Whitening,
    "LogitPreservingWhitening": lambda: LogitPreservingWhitening(
        LinearHead(np.random.default_rng(1).standard_normal((2, D)), [0.0, 0.0], [0, 1])
    ),
    "IncrementalPCA": lambda: IncrementalPCA(whiten=True, batch_size=CHUNK),
}


def run(quick: bool) -> Iterator[Result]:
    """Fit each method in a process of its own, in one thread, to rows in a float32 file.

    IncrementalPCA, whose time is linear in the rows, is fitted to fewer.
    """
    if not STATUS.exists():
        yield Skipped("fits from a file", "anonymous memory is read from /proc")
        return
    n, reference_rows = (50_000, 10_000) if quick else (3_000_000, 100_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        _write_rows(path, n)
        for name in ("Whitening", "LogitPreservingWhitening"):
            yield _compare(name, path, n, reference_rows, 1 if quick else 3)


def _write_rows(path: Path, n: int) -> None:
    """Write correlated float32 rows whose mean is three times their standard deviation."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((D, D), np.float32) / np.float32(D**0.5)
    rows = open_memmap(path, "w+", np.float32, (n, D))
    for start in range(0, n, CHUNK):
        part = rows[start : start + CHUNK]
        part[...] = rng.standard_normal(part.shape, np.float32) @ mixing + 3
    rows.flush()


def _compare(name: str, path: Path, n: int, reference_rows: int, repeats: int) -> Comparison:
    ours, reference, peaks = [], [], []
    for _ in range(repeats):
        found = _fit_apart(name, path, n)
        ours.append(found["seconds"])
        peaks.append(round(found["peak_bytes"] / 1e6))
        scale = n / reference_rows
        reference.append(_fit_apart("IncrementalPCA", path, reference_rows)["seconds"] * scale)
    if max(peaks) > LIMIT:
        raise RuntimeError(f"{name}.fit from a file took {max(peaks)} MB, more than {LIMIT}")
    return Comparison(
        f"{name}.fit from a float32 file, peak {max(peaks)} MB of anonymous memory (limit "
        f"{LIMIT}), against IncrementalPCA in batches of {CHUNK} (processor time, measured on "
        f"{reference_rows} rows and scaled)",
        tuple(ours),
        tuple(reference),
        4.0,
        {"n": n, "d": D, "threads": 1},
    )


def _fit_apart(name: str, path: Path, n_rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.speed.out_of_memory", name, path, str(n_rows)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    run = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, env={**os.environ, **one_thread}, cwd=ROOT
    )
    return json.loads(run.stdout)


def _measured(fit: Callable[[], Any]) -> dict[str, float]:
    """Return the processor time of a call and the peak of anonymous memory while it runs."""
    peak, done = [_anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak.append(max(peak.pop(), _anonymous_bytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.thread_time()
    try:
        fit()
        seconds = time.thread_time() - begun
    finally:
        done.set()
        watcher.join()
    return {"seconds": seconds, "peak_bytes": max(*peak, _anonymous_bytes())}


def _anonymous_bytes() -> int:
    """Return resident memory without the pages of files, such as those of a memory map."""
    return int(re.findall(r"RssAnon:\s+(\d+) kB", STATUS.read_text("ascii"))[0]) * 1024


if __name__ == "__main__":
    method, file, n_rows = sys.argv[1:]
    rows = np.load(file, mmap_mode="r")[: int(n_rows)]
    estimator = METHODS[method]()
    print(json.dumps(_measured(lambda: estimator.fit(rows))))

"""Fit one method to rows of a file; print its processor time and its peak of anonymous memory."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA

from benchmarks.speed._memory import peak_of
from isoadapt import LinearHead, LogitPreservingWhitening, Whitening


def measured(function: Callable[[], Any]) -> dict[str, float]:
    """Call the function; return its processor time and the peak of anonymous memory."""
    seconds = []

    def timed() -> None:
        begun = time.thread_time()
        function()
        seconds.append(time.thread_time() - begun)

    peak = peak_of(timed)
    return {"seconds": seconds[0], "peak_bytes": peak}


def fit_of(name: str, rows: Any, batch: int) -> Callable[[], Any]:
    """Return a function without arguments that fits the method to a memory map."""
    if name == "IncrementalPCA":
        return lambda: IncrementalPCA(whiten=True, batch_size=batch).fit(rows)
    if name == "Whitening":
        return lambda: Whitening().fit(rows)
    coef = np.random.default_rng(1).standard_normal((2, rows.shape[1]))
    return lambda: LogitPreservingWhitening(LinearHead(coef, [0.0, 0.0], [0, 1])).fit(rows)


def main(name: str, path: str, n_rows: str, batch: str) -> None:
    """Measure one fit to the first rows of the file."""
    rows = np.load(path, mmap_mode="r")[: int(n_rows)]
    print(json.dumps(measured(fit_of(name, rows, int(batch)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

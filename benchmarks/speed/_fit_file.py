"""Fit one method to rows of a file; print its processor time and its peak of anonymous memory."""

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA

from isoadapt import LinearHead, LogitPreservingWhitening, Whitening


def anonymous_bytes() -> int:
    """Return RssAnon: resident memory without the pages of files, such as those of a memmap."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    if found is None:
        raise RuntimeError("/proc/self/status has no line RssAnon")
    return int(found[1]) * 1024


def measured(function: Callable[[], Any]) -> dict[str, float]:
    """Call the function, and sample anonymous memory every 5 ms meanwhile."""
    peak, done = [anonymous_bytes()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak.append(max(peak.pop(), anonymous_bytes()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        begun = time.thread_time()
        function()
        seconds = time.thread_time() - begun
    finally:
        done.set()
        watcher.join()
    return {"seconds": seconds, "peak_bytes": max(*peak, anonymous_bytes())}


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

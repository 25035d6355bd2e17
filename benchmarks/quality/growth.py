"""Time and memory of each step as rows become more, each in a process of its own, in one thread."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks._markdown import frame_table
from benchmarks.quality import Cells
from benchmarks.speed._harness import apart, duration, measured, single_thread
from isoadapt import LinearHead, LogitPreservingWhitening, TeacherReadout
from isoadapt.metrics import hubness, isotropy_report

BLOCK = 10_000  # rows that are generated at a time
STEPS = {  # step: title, and the most rows, which take less than ten minutes
    "generate": ("generation of the rows alone (each pass below includes it)", 10**7),
    "fit": ("`LogitPreservingWhitening.fit`, one pass", 10**7),
    "transform": ("its `transform`, block by block, one pass", 10**7),
    "audit": ("`isotropy_report`, six passes", 10**6),
    "readout": ("`TeacherReadout.fit`, one pass for X and one for y (384 columns)", 10**6),
    "neighbours": ("`hubness`: the 10 nearest neighbours of each row, rows in memory", 10**5),
}
SIZES, D = (10**4, 10**5, 10**6, 10**7), 384
KEY = ("step", "n")


def block(number: int) -> NDArray[np.float32]:
    """Rows (BLOCK, D) in a narrow cone about (1, …, 1), along which their lengths vary most."""
    rng = np.random.default_rng(number)
    rows = rng.standard_normal((BLOCK, D), np.float32)
    rows += 3
    rows *= rng.random((BLOCK, 1), np.float32) + np.float32(0.5)
    return rows


def cells() -> Cells:
    """Yield a cell for each number of rows and step."""
    for n, step in product(SIZES, STEPS):
        if n <= STEPS[step][1]:
            yield (step, n), partial(apart, cell, step, n)


def cell(step: str, n: int) -> dict[str, float]:
    """Measure one step; blocks of dask arrays are generated each time that they are read."""
    from dask import array, config, delayed

    numbers = range(n // BLOCK)
    parts = (array.from_delayed(delayed(block)(i), (BLOCK, D), np.float32) for i in numbers)
    X, blocks = array.concatenate([*parts]), map(block, numbers)
    whitening = LogitPreservingWhitening(LinearHead(np.eye(2, D), [0, 0]))
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: [None for rows in blocks if rows is None],
        "fit": lambda: whitening.fit(blocks),
        "transform": lambda: [None for rows in blocks if whitening.transform(rows) is None],
        "audit": lambda: isotropy_report(X),
        "readout": lambda: TeacherReadout().fit(X, X**2),
        "neighbours": lambda: hubness(np.concatenate([*blocks])),
    }
    if step == "transform":
        whitening.fit(block(0))
    config.set(scheduler="synchronous")
    with single_thread():
        return measured(calls[step])


def text(frame: pd.DataFrame) -> str:
    """Return a row for each step with a column for each number of rows."""
    rows: dict[str, dict[str, str]] = {title: {} for title, _ in STEPS.values()}
    for one in frame.sort_values("n").itertuples():
        seconds = f"{duration(one.cpu_s)} ({duration(one.wall_s)})"
        rows[STEPS[one.step][0]][f"n = {one.n:,}"] = f"{seconds}, {one.peak_mb:.0f} MB"
    return frame_table(pd.DataFrame(rows).T.rename_axis("step"))

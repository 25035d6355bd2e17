"""Time and memory of each step as rows become more, each in a process of its own, in one thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks._store import CellStore
from benchmarks.quality import Cells, Record
from benchmarks.speed._harness import apart, duration, measured
from isoadapt import LinearHead, LogitPreservingWhitening, TeacherReadout
from isoadapt.metrics import hubness, isotropy_report

BLOCK = 10_000  # rows that are generated at a time
STEPS = {  # step: title
    "generate": "rows generated, which the steps below include once for each pass",
    "fit": "`LogitPreservingWhitening.fit`, one pass",
    "transform": "its `transform`, block by block, one pass",
    "audit": "`isotropy_report`, six passes",
    "readout": "`TeacherReadout.fit`, one pass for X and one for y (384 columns)",
    "neighbours": "`hubness`: the 10 nearest neighbours of each row, rows in memory",
}
SIZES, WIDTHS = (10**4, 10**5, 10**6, 10**7), (384, 1024)
LIMIT = 600  # longest cell, in processor seconds
SECTION, RECORDS, KEY = "growth", RECORDS_FOLDER / "growth.jsonl", ("step", "n", "d")
Found = Mapping[tuple[Any, ...], Mapping[str, Any]]  # records by step, n and d


def block(number: int, d: int) -> NDArray[np.float32]:
    """Rows (BLOCK, d) in a narrow cone about (1, …, 1), along which their lengths vary most."""
    rng = np.random.default_rng(number)
    rows = rng.standard_normal((BLOCK, d), np.float32)
    rows += 3
    rows *= rng.random((BLOCK, 1), np.float32) + np.float32(0.5)
    return rows


def cells() -> Cells:
    """Yield the cells that the smaller ones let expect to end within the limit."""
    for n, d, step in product(SIZES, WIDTHS, STEPS):
        if _foreseen(CellStore(RECORDS, KEY).cells, step, n, d) <= LIMIT:
            yield (step, n, d), partial(apart, cell, step, n, d)


def cell(step: str, n: int, d: int) -> dict[str, float]:
    """Measure one step; blocks of dask arrays are generated each time that they are read."""
    from dask import array, config, delayed

    numbers = range(n // BLOCK)
    parts = (array.from_delayed(delayed(block)(i, d), (BLOCK, d), np.float32) for i in numbers)
    X, blocks = array.concatenate([*parts]), (block(i, d) for i in numbers)
    whitening = LogitPreservingWhitening(LinearHead(np.eye(2, d), [0, 0]))
    calls: dict[str, Callable[[], Any]] = {
        "generate": lambda: [None for rows in blocks if rows is None],
        "fit": lambda: whitening.fit(blocks),
        "transform": lambda: [None for rows in blocks if whitening.transform(rows) is None],
        "audit": lambda: isotropy_report(X),
        "readout": lambda: TeacherReadout().fit(X, X[:, :384] ** 2),
        "neighbours": lambda: hubness(np.concatenate([*blocks])),
    }
    if step == "transform":
        whitening.fit(block(0, d))
    config.set(scheduler="synchronous")
    return measured(calls[step])


def _foreseen(found: Found, step: str, n: int, d: int) -> float:
    """Processor time that a cell will take, from that of a tenth of its rows, or 0."""
    if (step, n, d) in found or n == min(SIZES):
        return found.get((step, n, d), {"cpu_s": 0.0})["cpu_s"]
    return _foreseen(found, step, n // 10, d) * (100 if step == "neighbours" else 10)


def text(records: Sequence[Record]) -> str:
    """Return a row for each step at the smaller width, with a column for each size."""
    found = {tuple(each[name] for name in KEY): each for each in records}
    header = ["step", *(f"n = {n:,}" for n in SIZES), "exponents"]
    rows = [[STEPS[step], *_row(found, step, min(WIDTHS))] for step in STEPS]
    return markdown_table(header, rows)


def _row(found: Found, step: str, d: int) -> Iterator[str]:
    cells = {n: found[step, n, d] for n in SIZES if (step, n, d) in found}
    for n in SIZES:
        if n in cells:
            cpu, wall, peak = (cells[n][key] for key in ("cpu_s", "wall_s", "peak_mb"))
            yield f"{duration(cpu)} ({duration(wall)}), {peak:.0f} MB"
        else:
            yield f"not run (≈ {_foreseen(found, step, n, d) / 60:.0f} min)"
    last = [*cells][-3:]
    logs = (np.log([cells[n][key] for n in last]) for key in ("cpu_s", "peak_mb"))
    slopes = (np.polyfit(np.log(last), each, 1)[0] for each in logs if len(last) > 1)
    yield ", ".join(f"{slope:z.2f}" for slope in slopes)

"""`isotropy_report` of rows in a file, read as a memory map and in dask, against rows in memory."""

import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.speed._harness import PROCESS, Comparison, Result, Skipped, apart, measured
from benchmarks.speed.out_of_memory import CHUNK, D, write_rows
from isoadapt.metrics import isotropy_report

WAYS = {"a memory map": "r", "a dask array": "r", "memory": None}


def run(quick: bool) -> Iterator[Result]:
    """Measure processor time and peak memory, each run in a process of its own, in one thread."""
    if not PROCESS.exists():
        yield Skipped("isotropy_report of a file", "resident memory is read from /proc")
        return
    ways = [way for way in WAYS if find_spec("dask") or way != "a dask array"]
    n, repeats = (5_000, 1) if quick else (200_000, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "X.npy"
        write_rows(path, n)
        rounds = [{way: apart(_report, way, path) for way in ways} for _ in range(repeats)]
    seconds = {way: tuple(found[way]["cpu_s"] for found in rounds) for way in ways}
    peaks = {way: f"peak {median(each[way]['peak_mb'] for each in rounds):.0f} MB" for way in ways}
    for way in ways[:-1]:
        yield Comparison(
            f"isotropy_report from {way}, {peaks[way]}, against rows read into memory, "
            f"{peaks['memory']} (processor time)",
            seconds[way],
            seconds["memory"],
            None,
            {"n": n, "d": D, "threads": 1},
        )


def _report(way: str, path: Path) -> dict[str, float]:
    """Measure one report, the reading of the file included."""

    def audit() -> None:
        rows: Any = np.load(path, mmap_mode=WAYS[way])
        if way == "a dask array":
            import dask.array

            rows = dask.array.from_array(rows, chunks=(CHUNK, D))
        isotropy_report(rows)

    return measured(audit)

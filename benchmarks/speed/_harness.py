"""Timing of two callables against each other, and the table of what was measured."""

import gc
import importlib
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks._markdown import markdown_table
from benchmarks._places import FOLDER
from benchmarks._versions import versions, written

T = TypeVar("T")
PRELOADED = ["sklearn.model_selection", "isoadapt.adapters"]
OF_MODELS = ["transformers.trainer", "sentence_transformers"]  # ignored where not installed
HEADER = ("name", "threads", "n", "d", "ours", "reference", "ratio [IQR]", "target", "met")


@dataclass(frozen=True)
class Comparison:
    """Times of two callables that were measured alternately, or of one that was measured alone.

    Entries of `ours_s` and `reference_s` with the same index were measured one after the other.
    `target` is the smallest acceptable ratio, or None; `facts` are sizes and other conditions, the
    number of `threads` among them in older records.
    """

    name: str
    ours_s: tuple[float, ...]
    reference_s: tuple[float, ...] = ()
    target: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    threads: int = field(default_factory=torch.get_num_threads)

    @property
    def ratio(self) -> float:
        """Median of the paired ratios; above 1, ours is faster."""
        return median(self._ratios())

    def _ratios(self) -> list[float]:
        return [b / a for a, b in zip(self.ours_s, self.reference_s, strict=True)]

    @property
    def is_met(self) -> bool:
        """Whether the target is reached, if there is one, and memory stayed below its limit."""
        fits = self.facts.get("peak_mb", 0) <= self.facts.get("limit_mb", 0)
        return self.target is None or (self.ratio >= self.target and fits)

    def cells(self) -> list[str]:
        """Return the row of the table."""
        facts = {"threads": self.threads, **self.facts}
        row = [self.name, *(str(facts.get(key, "")) for key in HEADER[1:4])]
        row.append(duration(median(self.ours_s)))
        if self.reference_s:
            low, high = map(_ratio, np.quantile(self._ratios(), [0.25, 0.75]))
            row += [duration(median(self.reference_s)), f"{_ratio(self.ratio)} [{low}, {high}]"]
        if self.target is not None:
            row += [f"≥ {_ratio(self.target)}", "yes" if self.is_met else "no"]
        return row + [""] * (len(HEADER) - len(row))


def compare(
    name: str,
    ours: Callable[[], Any],
    reference: Callable[[], Any],
    *,
    repeats: int,
    warm_up: bool = True,
    rows: Any = None,
    target: float | None = None,
    **facts: Any,
) -> Comparison:
    """Measure two callables alternately, after one unmeasured call of each unless they are warm.

    The order changes from pair to pair, so that a slowdown of the machine affects both. The sizes
    that the table shows are those of `rows` (n, d), or are among the facts.
    """
    if rows is not None:
        facts |= {"n": len(rows), "d": rows.shape[1]}
    if warm_up:
        ours()
        reference()
    spent: dict[Any, list[float]] = {ours: [], reference: []}
    for repeat in range(repeats):
        for function in (ours, reference) if repeat % 2 == 0 else (reference, ours):
            spent[function].append(seconds_of(function))
    return Comparison(name, tuple(spent[ours]), tuple(spent[reference]), target, facts)


def seconds_of(function: Callable[[], Any]) -> float:
    """Time one call with the garbage collector disabled."""
    gc.collect()
    gc.disable()
    try:
        begun = time.perf_counter()
        function()
        return time.perf_counter() - begun
    finally:
        gc.enable()


@contextmanager
def single_thread() -> Iterator[None]:
    """Limit torch, BLAS and OpenMP to one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def table(results: Sequence[Comparison]) -> str:
    """Return the table of all results as Markdown."""
    rows = markdown_table(HEADER, [result.cells() for result in results])
    return (
        "Seconds are medians. The ratio is the reference's time divided by ours. It is the median "
        "over pairs of runs, one right after the other; its quartiles are in brackets. Both sides "
        f"use the given number of threads, the default unless it is 1.\n\n{rows}"
    )


def duration(seconds: float) -> str:
    """Format a duration with three digits and a suitable unit."""
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    return f"{seconds / size:.3g} {unit}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def names() -> list[str]:
    """Names of the benchmarks: the public modules of `benchmarks.speed`, but those run alone."""
    found = {path.stem.removesuffix("_") for path in (FOLDER / "speed").glob("[!_]*.py")}
    return sorted(found - {"gpu"})


def new_process(models: bool = False) -> ProcessPoolExecutor:
    """Return an executor of one process that has imported the adapters, and perhaps transformers.

    The first call in a process decides what later calls import.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *OF_MODELS] if models else PRELOADED)
    return ProcessPoolExecutor(1, mp_context=context)


def apart(function: Callable[..., T], *arguments: Any, models: bool = False) -> T:
    """Call a function in a new process."""
    with new_process(models) as process:
        return process.submit(function, *arguments).result()


def measured(function: Callable[[], Any]) -> dict[str, float]:
    """Measure a call on Linux: seconds, and MB of resident memory that it adds.

    The peak is that of the whole process, so each call needs a process of its own.
    """

    def resident(entry: str) -> float:
        return int(Path("/proc/self/status").read_text().partition(entry)[2].split()[0]) / 1e3

    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is resident now
    before, cpu = resident("VmRSS:"), time.process_time()
    wall = seconds_of(function)
    cpu = time.process_time() - cpu
    return {"cpu_s": cpu, "wall_s": wall, "peak_mb": resident("VmHWM:") - before}


def run_one(name: str, quick: bool) -> list[Comparison]:
    """Run one benchmark."""
    module = importlib.import_module(f"benchmarks.speed.{name}{'_' * iskeyword(name)}")
    return list(module.run(quick))


def run_all(
    parts: Mapping[str, Callable[[], Iterable[Comparison]]],
    save: Callable[[str, list[Comparison]], None] = lambda name, found: None,
) -> int:
    """Run benchmarks one after the other, print what each has measured; return 1 if one failed."""
    failed = []
    for name, run in parts.items():
        print(f"running {name}", file=sys.stderr, flush=True)
        try:
            found = list(run())
            print(table(found), flush=True)
            save(name, found)
        except Exception:  # continue with the others
            traceback.print_exc()
            failed.append(name)
    print(f"measured with {written(versions())}; failed: {', '.join(failed) or 'none'}")
    return bool(failed)

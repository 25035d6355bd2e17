"""Timing of two callables against each other, and saving of the results."""

import gc
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks._versions import versions
from isoadapt._utils.files import atomic_path, writable_folder


@dataclass(frozen=True)
class Comparison:
    """Times of two callables that were measured alternately.

    `ours_s` and `reference_s` are the seconds of each repeat; entries with the same index were
    measured one after the other. `target` is the smallest acceptable ratio, or None. `facts` are
    sizes and other conditions of the measurement.
    """

    name: str
    ours_s: tuple[float, ...]
    reference_s: tuple[float, ...]
    target: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> float:
        """Median of our seconds."""
        return median(self.ours_s)

    @property
    def reference(self) -> float:
        """Median of the reference's seconds."""
        return median(self.reference_s)

    @property
    def ratios(self) -> tuple[float, ...]:
        """Reference time divided by our time, pair by pair; above 1, ours is faster."""
        pairs = zip(self.reference_s, self.ours_s, strict=True)
        return tuple(reference / ours for reference, ours in pairs)

    @property
    def ratio(self) -> float:
        """Median of the paired ratios."""
        return median(self.ratios)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the paired ratios."""
        low, high = np.quantile(self.ratios, [0.25, 0.75])
        return float(low), float(high)

    @property
    def met(self) -> bool | None:
        """Return whether the ratio reaches the target; None without a target."""
        return None if self.target is None else self.ratio >= self.target

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "kind": "comparison",
            "name": self.name,
            "facts": dict(self.facts),
            "ours_s": list(self.ours_s),
            "reference_s": list(self.reference_s),
            "ours": self.ours,
            "reference": self.reference,
            "ratio": self.ratio,
            "ratio_quartiles": list(self.quartiles),
            "target": self.target,
            "met": self.met,
        }


@dataclass(frozen=True)
class Measurement:
    """Times of one callable that was measured alone."""

    name: str
    seconds: tuple[float, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ours(self) -> float:
        """Median seconds."""
        return median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "kind": "measurement",
            "name": self.name,
            "facts": dict(self.facts),
            "seconds": list(self.seconds),
            "ours": self.ours,
        }


@dataclass(frozen=True)
class Skipped:
    """A benchmark that could not run here, and the reason."""

    name: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {"kind": "skipped", "name": self.name, "reason": self.reason}


Result = Comparison | Measurement | Skipped


def compare(
    name: str,
    ours: Callable[[], Any],
    reference: Callable[[], Any],
    *,
    repeats: int,
    target: float | None = None,
    **facts: Any,
) -> Comparison:
    """Measure two callables alternately, after one unmeasured call of each.

    The two are called one after the other, and the order changes from pair to pair. A temporary
    slowdown of the machine therefore affects both.
    """
    _check_repeats(repeats)
    ours()
    reference()
    seconds: tuple[list[float], list[float]] = ([], [])
    sides = ((ours, seconds[0]), (reference, seconds[1]))
    for repeat in range(repeats):
        for function, spent in sides if repeat % 2 == 0 else reversed(sides):
            spent.append(seconds_of(function))
    return Comparison(name, tuple(seconds[0]), tuple(seconds[1]), target, facts)


def measure(name: str, function: Callable[[], Any], repeats: int, **facts: Any) -> Measurement:
    """Measure one callable after one unmeasured call."""
    _check_repeats(repeats)
    function()
    return Measurement(name, tuple(seconds_of(function) for _ in range(repeats)), facts)


def seconds_of(function: Callable[[], Any]) -> float:
    """Time one call with the garbage collector disabled."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        begun = time.perf_counter()
        function()
        return time.perf_counter() - begun
    finally:
        if was_enabled:
            gc.enable()


def as_result(found: Result | Mapping[str, Any]) -> Result:
    """Return a result unchanged, or convert a plain mapping to a Comparison.

    A mapping must have `name`, `ours_s` and `reference_s`, and may have `target`. Its other
    entries become facts.
    """
    if not isinstance(found, Mapping):
        return found
    facts = dict(found)
    return Comparison(
        facts.pop("name"),
        tuple(facts.pop("ours_s")),
        tuple(facts.pop("reference_s")),
        facts.pop("target", None),
        facts,
    )


def write_results(folder: Path, results: list[Result], **circumstances: Any) -> Path:
    """Write all results to `bench.json` in the folder, atomically."""
    target = writable_folder(folder) / "bench.json"
    content = {
        "versions": versions(),
        **circumstances,
        "results": [result.to_dict() for result in results],
    }
    with atomic_path(target) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", "utf-8")
    return target


def _check_repeats(repeats: int) -> None:
    if repeats < 1:
        raise ValueError(f"repeats={repeats} must be 1 or more")

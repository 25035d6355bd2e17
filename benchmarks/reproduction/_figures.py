"""Tasks and their metrics; figures of records by condition and seed, pairing and formatting."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._statistics import unpack

Fields = Mapping[str, Any]

TASKS = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sst2_sentence": "SST-2"}
SCORES = {"cola": "matthews"}  # accuracy for other tasks
LATER = "added after 341 records"  # of claims: their figures were known
WORDS = {"matthews": "Matthews", "accuracy": "accuracy"}
SEEDS_NEEDED = 3
COLLAPSED_SHARE = 0.99  # share of the most frequent prediction


def difference(before: float, after: float) -> float:
    """Return the increase of a figure."""
    return after - before


class Pairs(NamedTuple):
    """A figure under two conditions, by seed; NaN where it is undefined."""

    before: dict[int, float]
    after: dict[int, float]

    def steps(self, change: Callable[[float, float], float] = difference) -> dict[int, float]:
        """Return the change of the figure for each seed."""
        return {seed: change(self.before[seed], value) for seed, value in self.after.items()}


def task_score(task: str) -> str:
    """Return the name of the figure that a task is evaluated with."""
    return SCORES.get(task, "accuracy")


def metric_name(task: str) -> str:
    """Return the title of the metric of a task."""
    return WORDS[task_score(task)]


def of(name: str, task: str) -> Fields:
    """Return the fields that select a condition on a task."""
    return {"name": name, "task": task}


def matching_records(records: Sequence[Record], fields: Fields) -> list[Record]:
    """Return the records whose fields have the given values, by seed."""
    wanted = fields.items()
    found = [item for item in records if all(item[name] == value for name, value in wanted)]
    return sorted(found, key=lambda record: record["seed"])


def has_collapsed(record: Record) -> bool:
    """Return whether a model predicts one class for nearly all rows that it was evaluated on."""
    packed = record.get("figures", {}).get("dev")
    if packed is None:
        return False
    share = float(unpack(packed)[1].mean())
    return max(share, 1 - share) >= COLLAPSED_SHARE


def arrays_by_seed(
    records: Sequence[Record], fields: Fields, figure: str
) -> dict[int, NDArray[np.float64]]:
    """Return a list-valued figure of each seed that has run; NaN if it failed or is undefined."""
    found = {}
    for record in matching_records(records, fields):
        if "figures" in record or "error" in record:
            values = np.atleast_1d(np.array(record.get("figures", {}).get(figure), np.float64))
            found[record["seed"]] = np.where(np.isfinite(values), values, math.nan)
    return found


def by_seed(records: Sequence[Record], fields: Fields, figure: str) -> dict[int, float]:
    """Return a figure of each seed that has run; NaN if it failed or is undefined."""
    found = arrays_by_seed(records, fields, figure)
    return {seed: values.item() for seed, values in found.items()}


def n_planned(records: Sequence[Record], *conditions: Fields) -> int:
    """Return the number of seeds that are planned for all these conditions."""
    seeds = [
        {record["seed"] for record in matching_records(records, fields)} for fields in conditions
    ]
    return len(set.intersection(*seeds))


def paired(records: Sequence[Record], before: Fields, after: Fields, figure: str) -> Pairs:
    """Return a figure under two conditions, for the seeds that have run both."""
    sides = by_seed(records, before, figure), by_seed(records, after, figure)
    return Pairs(*({seed: side[seed] for seed in sides[0] if seed in sides[1]} for side in sides))


def format_means(pairs: Pairs) -> str:
    """Format both means with their standard deviations."""
    return f"{mean_sd([*pairs.before.values()])} → {mean_sd([*pairs.after.values()])}"


def defined(values: Sequence[float]) -> list[float]:
    """Return the values that are not NaN."""
    return [value for value in values if not math.isnan(value)]


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    found = defined(values)
    return float(np.mean(found)) if found else math.nan


def mean_sd(values: Sequence[float]) -> str:
    """Format mean ± standard deviation, or a single value alone."""
    found = defined(values)
    undefined = f" ({len(values) - len(found)} undefined)" if len(found) < len(values) else ""
    if not found:
        return f"–{undefined}"
    mean = float(np.mean(found))
    if len(found) == 1:
        return f"{mean:.4g}{undefined}"
    return _with_spread(mean, float(np.std(found, ddof=1))) + undefined


def _with_spread(mean: float, sd: float) -> str:
    """Format mean ± sd, with two digits of the sd and at most four digits of the mean."""
    if sd <= 1e-9 * abs(mean):
        return f"{mean:.4g} ± 0"
    if max(abs(mean), sd) < 1e-4:
        return f"{mean:.2g} ± {sd:.2g}"
    places = min(_places(sd, 2), _places(mean, 4)) if mean else _places(sd, 2)
    spread = f"{sd:.{_places(sd, 2)}f}" if sd >= 1e-5 else f"{sd:.2g}"
    return f"{mean:.{places}f} ± {spread}"


def _places(value: float, n_digits: int) -> int:
    """Return the decimal places that show `n_digits` digits of a number."""
    return max(0, n_digits - 1 - math.floor(math.log10(abs(value))))

"""What a reproduction is made of: cells to run and claims to judge by their figures."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

JSON = str | int | float | bool | None | Sequence["JSON"] | Mapping[str, "JSON"]
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One thing to run.

    Attributes
    ----------
    paper : str
        "000", "002", "003" or "004".
    name : str
        Row or condition, such as "I-STAR lam=-1".
    task : str
        Data set, such as "cola"; "gaussian" for synthetic points.
    seed : int
        Seed of everything random in it.
    settings : mapping
        All else that changes the result; plain JSON values.
    run : callable
        Gives the figures: numbers, or lists of numbers, by name.
    decides : int, default=0
        Rank of the question that the cell helps to answer; low ranks run first.
    cached : callable
        Tells whether its fine-tuning is kept from another cell, so that it costs little.
    """

    paper: str
    name: str
    task: str
    seed: int
    settings: Mapping[str, JSON]
    run: Callable[[], Mapping[str, JSON]]
    decides: int = 0
    cached: Callable[[], bool] = lambda: False

    @property
    def key(self) -> str:
        """Name of the cell for ever: readable, then a digest of the settings."""
        return f"{self.paper}/{self.name}/{self.task}/{self.seed}/{digest(self.settings)}"

    def fields(self) -> dict[str, Any]:
        """Return the record of a cell that has not run."""
        return {
            "key": self.key,
            "paper": self.paper,
            "name": self.name,
            "task": self.task,
            "seed": self.seed,
        }


class Judged(NamedTuple):
    """What the figures say of a claim; `holds` is None where they decide nothing."""

    ours: str
    holds: bool | None
    n_seeds: int
    reason: str = ""


# Takes a record for each cell of a suite: one that failed has an `error` in place of `figures`, one
# that has not run has neither.
Judge = Callable[[Sequence[Record]], Judged]

NOT_RUN = Judged("–", None, 0, "not all its conditions have run yet")


class Claim(NamedTuple):
    """A line of a paper's table of verdicts."""

    paper: str
    where: str
    claim: str
    theirs: str
    judge: Judge


class Suite(NamedTuple):
    """How much is run: at most `max_rows` training rows of each task, None for all.

    By `model` another encoder takes the MiniLM's place, and with `from_hub` the tasks come from
    GLUE on the Hub.
    """

    name: str
    seeds: int
    max_rows: int | None
    tasks: tuple[str, ...]
    epochs: int | None  # None: as the paper says
    model: str | None = None
    from_hub: bool = False


QUICK = Suite("quick", seeds=1, max_rows=1_000, tasks=("cola",), epochs=1)
CPU = Suite("cpu", seeds=3, max_rows=2_000, tasks=("cola", "sst2", "mrpc"), epochs=3)
GPU = Suite("gpu", seeds=5, max_rows=None, tasks=("cola", "sst2", "mrpc", "rte"), epochs=None)
SUITES = {suite.name: suite for suite in (QUICK, CPU, GPU)}


def not_testable(reason: str) -> Judge:
    """Return the judge of a claim that needs what is not to be had here."""
    return lambda records: Judged("–", None, 0, reason)


def digest(settings: Mapping[str, JSON]) -> str:
    """Digest of settings: the same whatever the order of the names."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain(figures: Any) -> Any:
    """Put None where a figure, or an entry of a list, is not finite: JSON has no NaN."""
    if isinstance(figures, Mapping):
        return {name: plain(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [plain(value) for value in figures]
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures

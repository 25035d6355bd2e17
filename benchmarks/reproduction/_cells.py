"""What a reproduction is made of: cells to run and claims to judge by their figures."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from isoadapt.finetune._recipes import Recipe

JSON = str | int | float | bool | None | Sequence["JSON"] | Mapping[str, "JSON"]
Record = Mapping[str, Any]

CHOICE, BASE_RUN, POST_HOC, PENALTY, POINTS = "recipe", "base", "post-hoc", "penalty", "points"


@dataclass(frozen=True)
class Cell:
    """One thing to run.

    Attributes
    ----------
    kind : {"recipe", "base", "post-hoc", "penalty", "points"}
        What is run: a training to choose the recipe by, one without a penalty, an adapter on its
        embeddings, a training with a penalty, or synthetic points.
    name : str
        Row or condition, such as "I-STAR lam=-1".
    task : str
        Data set, such as "cola"; "gaussian" for synthetic points.
    seed : int
        Seed of everything random in it.
    settings : mapping
        All else that changes the result; plain JSON values.
    run : callable
        Returns the figures by name: numbers, lists of numbers or packed predictions.
    needs : str or None, default=None
        Key of the cell that has to have run before.
    """

    kind: str
    name: str
    task: str
    seed: int
    settings: Mapping[str, JSON]
    run: Callable[[], Mapping[str, JSON]]
    needs: str | None = None

    @property
    def key(self) -> str:
        """Permanent name of the cell: readable, then a digest of the settings."""
        return f"{self.kind}/{self.name}/{self.task}/{self.seed}/{digest(self.settings)}"

    def fields(self) -> dict[str, Any]:
        """Return the record of a cell that has not run."""
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.name,
            "task": self.task,
            "seed": self.seed,
        }


class Suite(NamedTuple):
    """How much is run: at most `max_rows` training rows of each task, None for all.

    Without a `recipe` each task's is chosen on its training rows. With `model` another encoder
    takes the place of MiniLM, and with `from_hub` the tasks come from GLUE on the Hub.
    """

    name: str
    max_rows: int | None = None
    recipe: Recipe | None = None
    model: str | None = None
    from_hub: bool = False
    cache: Path | None = None  # None: beside the results of the benchmarks

    @property
    def is_published(self) -> bool:
        """Whether its bases are those whose dev figures are known."""
        return self.model is None and not self.from_hub


WHOLE = Suite("whole")
QUICK = Suite("quick", max_rows=1_000, recipe=Recipe(epochs=1, lr=1e-4))
SUITES = {suite.name: suite for suite in (QUICK, WHOLE)}


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

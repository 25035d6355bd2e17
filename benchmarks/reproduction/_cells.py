"""The parts of a reproduction: cells to run, and their records."""

import hashlib
import json
import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._commit import commit
from benchmarks._store import CellStore
from benchmarks._versions import versions

JSON = str | int | float | bool | None | Sequence["JSON"] | Mapping[str, "JSON"]
Record = Mapping[str, Any]

CHOICE, BASE_RUN, POST_HOC, PENALTY, POINTS = "recipe", "base", "post-hoc", "penalty", "points"
TRY, FRESH = "try", "fresh"


@dataclass(frozen=True)
class Cell:
    """One experiment to run.

    `kind` is "recipe" (a training to choose the recipe), "base" (a training without a penalty),
    "post-hoc" (an adapter on the embeddings of a base), "penalty" (a training with a penalty),
    "try" (a training to choose λ and ζ), "fresh" (a training to judge that choice) or "points"
    (synthetic points, with the task "gaussian"). `name` is the row or condition, such as
    "I-STAR lam=-1". `settings` holds, as JSON values, all else that affects the result. `run`
    returns the figures by name: numbers, lists of numbers or packed predictions. `needs` is the key
    of the cell that must run first, or None.
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
        """Permanent identifier of the cell: a readable part and a digest of the settings."""
        return f"{self.kind}/{self.name}/{self.task}/{self.seed}/{digest(self.settings)}"

    def fields(self) -> dict[str, Any]:
        """Return the record of the cell before it has run."""
        return fields_of(self, self.key)


class Slot(NamedTuple):
    """An entry of the plan; `make` creates its cell from the records.

    It returns None before what the cell depends on has been chosen: the recipe of its task, or λ
    and ζ.
    """

    block: int
    kind: str
    name: str
    task: str
    seed: int
    make: Callable[[Sequence[Record]], Cell | None]


def fields_of(planned: Cell | Slot, key: str | None = None) -> dict[str, Any]:
    """Return the record of a cell before it has run; `key` is None if it is not yet known."""
    names = ("kind", "name", "task", "seed")
    return {"key": key} | {name: getattr(planned, name) for name in names}


def known_slot(block: int, cell: Cell) -> Slot:
    """Return the slot of a cell that depends on no choice."""
    return Slot(block, cell.kind, cell.name, cell.task, cell.seed, lambda records: cell)


def digest(settings: Mapping[str, JSON]) -> str:
    """Return a digest of settings that does not depend on the order of the names."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plain(figures: Any) -> Any:
    """Replace figures and list entries that are not finite by None, since JSON has no NaN."""
    if isinstance(figures, Mapping):
        return {name: plain(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [plain(value) for value in figures]
    return None if isinstance(figures, float) and not math.isfinite(figures) else figures


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell; its record has `figures`, or an `error` if it failed."""
    begun, used = time.perf_counter(), time.process_time()
    try:
        figures = plain(cell.run())
        json.dumps(figures, allow_nan=False)
        outcome: dict[str, Any] = {"figures": figures}
    except Exception as error:  # continue with the other cells
        traceback.print_exc()
        outcome = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return {
        **cell.fields(),
        "settings": dict(cell.settings),
        **outcome,
        "seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - used,
        "commit": commit(),
        "versions": versions(),
    }


def record_store(path: Path) -> CellStore:
    """Open a file of records."""
    return CellStore(path, ("key",))


def read_records(path: Path) -> list[Record]:
    """Return the latest record of each key, in the order of the file; empty without a file."""
    return record_store(path).entries()

"""Cells of the quality tables: each is one fit, evaluated once and saved in a file."""

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import isoadapt
from benchmarks._data import Embeddings
from benchmarks._store import CellStore

SOURCES = ("adapters", "losses", "geometry", "metrics", "heads.py")


class MeasuredCell(NamedTuple):
    """Figures, as a dataclass, and the versions and hardware they were measured with."""

    figures: Any
    setting: str


class Key(NamedTuple):
    """Everything a cell depends on; other code, data or parameters give another cell."""

    task: str
    row: str
    seed: int | None
    parameters: str
    version: str
    sources: str
    data: str


Cells = CellStore[Key, MeasuredCell]


def cell_store(path: Path, figures: type, fresh: bool = False) -> Cells:
    """Open a file of cells whose figures are instances of the dataclass `figures`."""

    def parse(line: Mapping[str, Any]) -> tuple[Key, MeasuredCell]:
        key = Key(*(line[name] for name in Key._fields))
        return key, MeasuredCell(figures(**line["figures"]), line["setting"])

    return CellStore(path, parse, fresh)


def cell_line(key: Key, cell: MeasuredCell) -> dict[str, Any]:
    """Return the entry of a cell in the file."""
    return {**key._asdict(), "setting": cell.setting, "figures": asdict(cell.figures)}


class Progress:
    """Prints one line per cell to stderr; `counted` says what is repeated, such as "seed"."""

    def __init__(self, total: int, counted: str = "seed") -> None:
        self.total, self.done, self.counted = total, 0, counted

    def tell(self, task: str, row: str, seed: int | None, what: str) -> None:
        self.done += 1
        named = row if seed is None else f"{row}, {self.counted} {seed}"
        line = f"[{self.done}/{self.total}] {task}: {named}: {what}"
        print(line, file=sys.stderr, flush=True)


def obtain_cell(
    key: Key, measure: Callable[[], MeasuredCell], cells: Cells, progress: Progress
) -> MeasuredCell | str:
    """Return a cell from the file or measure and save it; return a message if that fails."""
    place = key.task, key.row, key.seed
    cell = cells.get(key)
    if cell is not None:
        progress.tell(*place, "measured before")
        return cell
    begun = time.perf_counter()
    try:
        cell = measure()
    except Exception as error:  # continue with the other cells
        failure = " ".join(f"{type(error).__name__}: {error}".split())
        progress.tell(*place, f"failed, {failure}")
        return failure if key.seed is None else f"{progress.counted} {key.seed}: {failure}"
    cells.add(cell_line(key, cell))
    progress.tell(*place, f"{time.perf_counter() - begun:.1f} s")
    return cell


def cell_key(
    task: str, row: str, seed: int | None, estimator: Any, data: str, *measuring: Path
) -> Key:
    """Return what the cell of an estimator depends on.

    `data` is the digest of its rows; `measuring` are the source files that evaluate the fit.
    """
    params = estimator.get_params(deep=False)
    given = ", ".join(f"{name}={params[name]!r}" for name in sorted(params) if name != "head")
    return Key(
        task,
        row,
        seed,
        f"{type(estimator).__name__}({given})",
        isoadapt.__version__,
        sources_fingerprint(*measuring),
        data,
    )


@cache
def sources_fingerprint(*measuring: Path) -> str:
    """Return a digest of the source files that affect the figures; the first result is cached."""
    package = Path(isoadapt.__file__).parent
    places = [package / name for name in SOURCES]
    files = [*measuring, *(file for place in places for file in _modules(place))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _modules(place: Path) -> list[Path]:
    found = [place] if place.is_file() else sorted(place.rglob("*.py"))
    if not found:
        raise FileNotFoundError(f"{place} holds no code that the figures could come from")
    return found


def data_fingerprint(data: Embeddings) -> str:
    """Return a digest of all rows, labels and the head."""
    return arrays_fingerprint(*data[1:5], data.head.coef_, data.head.intercept_)


def arrays_fingerprint(*arrays: NDArray[Any]) -> str:
    """Return a digest of the dtypes, shapes and entries of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).data)
    return digest.hexdigest()

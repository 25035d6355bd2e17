"""Cells of the table of adapters: one fit each, judged once and kept in a file."""

import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

import isoadapt
from benchmarks._data import Embeddings
from benchmarks._versions import versions
from isoadapt._utils.files import writable_folder
from isoadapt.metrics import isotropy_report

SOURCES = ("adapters", "losses", "geometry", "heads.py", "_points.py", "_report.py")


@dataclass(frozen=True)
class Figures:
    """What is judged of one fit, on the test rows; `changed` counts predictions that differ."""

    accuracy: float
    matthews: float
    cross_entropy: float
    isoscore: float
    corrected: float
    ev1: float
    anisotropy1: float
    mean_cosine: float
    two_nn: float
    seconds: float
    changed: int


class Cell(NamedTuple):
    """Figures, a dataclass, and the versions and sizes under which they were measured."""

    figures: Any
    setting: str


class Key(NamedTuple):
    """What a cell depends on; another code, data set or parameter makes it another cell."""

    task: str
    row: str
    seed: int | None
    parameters: str
    version: str
    sources: str
    data: str


class CellFile:
    """Finished cells in a file of JSON lines, each on the disk as soon as it is measured.

    Parameters
    ----------
    path : Path
        The file; made when the first cell is added.
    fresh : bool, default=False
        Look at no cell of earlier runs.
    figures : type, default=Figures
        The dataclass of the figures of a cell.

    Raises
    ------
    ValueError
        If a line cannot be read, other than a last one that was cut off.
    """

    def __init__(self, path: Path, fresh: bool = False, figures: type = Figures) -> None:
        self.path, self.figures = path, figures
        self._cells: dict[Key, Cell] = {}
        if path.exists():
            _drop_torn_line(path)
            if not fresh:
                self._read()

    def get(self, key: Key) -> Cell | None:
        """Return the cell, None if it is to be measured."""
        return self._cells.get(key)

    def add(self, key: Key, cell: Cell) -> None:
        """Keep a cell."""
        line = {**key._asdict(), "setting": cell.setting, "figures": asdict(cell.figures)}
        writable_folder(self.path.parent)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._cells[key] = cell

    def _read(self) -> None:
        for number, text in enumerate(self.path.read_text("utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                key = Key(*(line[name] for name in Key._fields))
                cell = Cell(self.figures(**line["figures"]), line["setting"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number} holds no cell ({error!r}): delete the line, or "
                    "the file to measure all anew"
                ) from error
            self._cells[key] = cell


def _drop_torn_line(path: Path) -> None:
    """Cut off what a killed run left of its last line, so that the next one starts afresh."""
    whole = path.read_bytes()
    kept = whole.rfind(b"\n") + 1
    if kept < len(whole):
        os.truncate(path, kept)


class Progress:
    """One line on stderr for each cell; `counted` names what a row is fitted several times for."""

    def __init__(self, total: int, counted: str = "seed") -> None:
        self.total, self.done, self.counted = total, 0, counted

    def tell(self, task: str, row: str, seed: int | None, what: str) -> None:
        self.done += 1
        named = row if seed is None else f"{row}, {self.counted} {seed}"
        line = f"[{self.done}/{self.total}] {task}: {named}: {what}"
        print(line, file=sys.stderr, flush=True)


def obtain_cell(
    key: Key, measure: Callable[[], Cell], cells: CellFile, progress: Progress
) -> Cell | str:
    """Return the cell, measured and kept if the file has none, or in words why there is none."""
    place = key.task, key.row, key.seed
    cell = cells.get(key)
    if cell is not None:
        progress.tell(*place, "measured before")
        return cell
    begun = time.perf_counter()
    try:
        cell = measure()
    except Exception as error:  # the other cells are worth having
        failure = " ".join(f"{type(error).__name__}: {error}".split())
        progress.tell(*place, f"failed, {failure}")
        return failure if key.seed is None else f"{progress.counted} {key.seed}: {failure}"
    cells.add(key, cell)
    progress.tell(*place, f"{time.perf_counter() - begun:.1f} s")
    return cell


def cell_key(
    task: str, row: str, seed: int | None, estimator: Any, data: str, *measuring: Path
) -> Key:
    """Return what the cell of an estimator depends on.

    `data` is the digest of its rows; `measuring` are the files of code that judges the fit, besides
    this one.
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
    """Digest of the code that the figures come from, as it was at the first call."""
    package = Path(isoadapt.__file__).parent
    places = [package / name for name in SOURCES]
    files = [Path(__file__), *measuring, *(file for place in places for file in _modules(place))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _modules(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def data_fingerprint(data: Embeddings) -> str:
    """Digest of all rows, labels and the head."""
    return arrays_fingerprint(*data[1:5], data.head.coef_, data.head.intercept_)


def arrays_fingerprint(*arrays: NDArray[Any]) -> str:
    """Digest of arrays: their types, shapes and entries."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).data)
    return digest.hexdigest()


def measure_cell(estimator: Any, data: Embeddings) -> Cell:
    """Fit on the training rows, judge on the test rows."""
    begun = time.perf_counter()
    estimator.fit(data.X_train, data.y_train)
    seconds = time.perf_counter() - begun
    predicted = estimator.predict(data.X_test)
    with warnings.catch_warnings():  # few rows bias the plain score: the table shows both
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        report = isotropy_report(estimator.transform(data.X_test))
    figures = Figures(
        accuracy=float(accuracy_score(data.y_test, predicted)),
        matthews=float(matthews_corrcoef(data.y_test, predicted)),
        cross_entropy=float(log_loss(data.y_test, estimator.predict_proba(data.X_test))),
        isoscore=report.isoscore,
        corrected=report.isoscore_corrected,
        ev1=report.ev1,
        anisotropy1=report.anisotropy1,
        mean_cosine=report.mean_cosine,
        two_nn=report.two_nn,
        seconds=seconds,
        changed=int((predicted != data.head.predict(data.X_test)).sum()),
    )
    return Cell(figures, setting())


def setting() -> str:
    """Name the versions and sizes that the figures depend on."""
    return ", ".join(f"{name} {value}" for name, value in versions().items() if value is not None)

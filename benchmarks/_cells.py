"""Cells of the table of adapters: one fit each, judged once and kept in a file."""

import hashlib
import json
import os
import time
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

import isoadapt
from benchmarks._data import Embeddings
from benchmarks._harness import versions
from isoadapt._files import writable_folder
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
    """Figures, and the versions and sizes under which they were measured."""

    figures: Figures
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

    Raises
    ------
    ValueError
        If a line cannot be read, other than a last one that was cut off.
    """

    def __init__(self, path: Path, fresh: bool = False) -> None:
        self.path = path
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
                cell = Cell(Figures(**line["figures"]), line["setting"])
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


def cell_key(task: str, row: str, seed: int | None, estimator: Any, data: Embeddings) -> Key:
    """Return what the cell of an estimator depends on."""
    params = estimator.get_params(deep=False)
    given = ", ".join(f"{name}={params[name]!r}" for name in sorted(params) if name != "head")
    return Key(
        task,
        row,
        seed,
        f"{type(estimator).__name__}({given})",
        isoadapt.__version__,
        sources_fingerprint(),
        data_fingerprint(data),
    )


@cache
def sources_fingerprint() -> str:
    """Digest of the code that the figures come from, as it was at the first call."""
    package = Path(isoadapt.__file__).parent
    places = [package / name for name in SOURCES]
    files = [Path(__file__), *(file for place in places for file in _modules(place))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _modules(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def data_fingerprint(data: Embeddings) -> str:
    """Digest of all rows, labels and the head."""
    digest = hashlib.sha256()
    for array in (*data[1:5], data.head.coef_, data.head.intercept_):
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

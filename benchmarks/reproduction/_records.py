"""Cells of the plan, their records, and the records as a table of figures."""

import base64
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks._places import ROOT
from benchmarks._store import CellStore
from benchmarks._versions import versions

KEY = ("kind", "name", "task", "seed")
COLLAPSED_SHARE = 0.99  # share of the most frequent prediction


class Cell(NamedTuple):
    """One run of the plan; `settings` are recorded, and `run` returns the figures by name.

    A cell is known by the first four fields. One whose settings change needs another name, since
    the newest record of each cell counts, whatever its settings.
    """

    kind: str
    name: str
    task: str
    seed: int
    settings: Mapping[str, Any]
    run: Callable[[], Mapping[str, Any]]

    @property
    def key(self) -> tuple[Any, ...]:
        """What the record of the cell is found by."""
        return self[: len(KEY)]


def record_store(path: Path) -> CellStore:
    """Open a file of records."""
    return CellStore(path, KEY)


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell; its record has `figures`, or an `error` if it failed."""
    begun, used = time.perf_counter(), time.process_time()
    try:
        found = json.dumps(cell.run())  # which writes what is not finite as NaN, unlike JSON
        outcome: dict[str, Any] = {"figures": json.loads(found, parse_constant=lambda text: None)}
    except Exception as error:  # continue with the other cells
        traceback.print_exc()
        outcome = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    return {
        **dict(zip(KEY, cell.key, strict=True)),
        "settings": dict(cell.settings),
        **outcome,
        "seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - used,
        "commit": commit(),
        "versions": versions(),
    }


@cache
def commit() -> str:
    """Return the commit, with the suffix "-dirty" if files were changed; else "unknown"."""
    git = partial(subprocess.check_output, cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    try:
        head = git(["git", "rev-parse", "HEAD"]).strip()
        return f"{head}-dirty" if git(["git", "status", "--porcelain"]) else head
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table_of(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a row for each record: its key, commit, versions, settings and figures.

    `failed` says whether the cell has no figures, and `collapsed` whether the model predicts one
    class for nearly all rows.
    """
    names = (*KEY, "settings", "commit", "versions")
    rows = [
        {name: record.get(name) for name in names}
        | {"failed": "figures" not in record, "metric": None, "dev": None}
        | record.get("figures", {})
        for record in records
    ]
    table = pd.DataFrame(rows, columns=None if rows else [*names, "failed", "metric", "dev"])
    collapsed = [isinstance(dev, dict) and _one_class(dev) for dev in table["dev"]]
    return table.astype({"metric": float, "failed": bool}).assign(collapsed=collapsed)


def by_seed(table: pd.DataFrame, task: str, name: str, figure: str) -> pd.Series:
    """Return a figure of a condition on a task for each seed that has run."""
    own = table[(table["task"] == task) & (table["name"] == name)]
    return own.set_index("seed").sort_index().reindex(columns=[figure])[figure]


def pack(labels: NDArray[Any], predicted: NDArray[Any]) -> dict[str, Any]:
    """Encode binary labels and predictions as JSON, with one bit each."""
    return {"rows": len(labels), "labels": _packed(labels), "predicted": _packed(predicted)}


def _packed(classes: NDArray[Any]) -> str:
    if not np.isin(classes, (0, 1)).all():
        raise ValueError(f"classes {np.unique(classes)} cannot be packed; only 0 and 1 can")
    return base64.b64encode(np.packbits(classes.astype(bool))).decode()


def _one_class(packed: Mapping[str, Any]) -> bool:
    bits = np.frombuffer(base64.b64decode(packed["predicted"]), np.uint8)
    share = float(np.unpackbits(bits, count=packed["rows"]).mean())
    return max(share, 1 - share) >= COLLAPSED_SHARE

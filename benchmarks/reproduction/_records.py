"""Records of cells that have run, and the file they are saved in."""

import json
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks._commit import commit
from benchmarks._store import CellStore
from benchmarks._versions import versions
from benchmarks.reproduction._cells import Cell, Record, plain


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


def record_store(path: Path) -> CellStore[str, Record]:
    """Open a file of records."""
    return CellStore(path, lambda record: (record["key"], record))


def n_lines(path: Path) -> int:
    """Return the number of lines of a file of records; 0 without a file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def read_records(path: Path) -> list[Record]:
    """Return the latest record of each key, in the order of the file; empty without a file."""
    return record_store(path).entries()

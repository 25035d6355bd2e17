"""Finished cells in a file of JSON lines, each on the disk as soon as it is there."""

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks._commit import commit
from benchmarks._versions import versions
from benchmarks.reproduction._cells import Cell, Record, plain


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run a cell; the record holds its `figures`, or the `error` that ended it."""
    begun, used = time.perf_counter(), time.process_time()
    try:
        figures = plain(cell.run())
        json.dumps(figures, allow_nan=False)
        outcome: dict[str, Any] = {"figures": figures}
    except Exception as error:  # the other cells are worth having
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


def append_record(path: Path, record: Record) -> None:
    """Add a line and sync it, after cutting off what a killed run left of its last one."""
    line = json.dumps(record).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(len(_whole_lines(path)))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Return the newest record of each key, in the order of the file; none without a file.

    Raises
    ------
    ValueError
        If a line cannot be read, other than a last one that was cut off.
    """
    records: dict[str, Record] = {}
    for number, text in enumerate(_whole_lines(path).splitlines(), 1):
        try:
            record = json.loads(text)
            records[record["key"]] = record
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number} holds no cell ({error!r}): delete the line, or the file "
                "to run all cells again"
            ) from error
    return list(records.values())


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]

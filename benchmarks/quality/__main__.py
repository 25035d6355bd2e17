"""`python -m benchmarks.quality`: measure what is missing of each table, and print the tables.

Each finished cell is saved in a file, so that an interrupted run goes on when it is started again.
The records do not tell when code or data have changed: `--fresh` measures again.
"""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks._markdown import replace_section
from benchmarks._places import RECORDS_FOLDER
from benchmarks._store import CellStore, locked
from benchmarks._versions import versions, written
from benchmarks.quality import Cells

TABLES = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
ON_REQUEST = {"advice", "anchored", "grid_stability", "isoscore_bias"}  # if named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected tables; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    choices = [*TABLES, []]  # none named is all of them
    parser.add_argument("tables", nargs="*", choices=choices, metavar="TABLE", help=str(TABLES))
    parser.add_argument("--only", nargs="+", default=[], help="cells that hold all these texts")
    parser.add_argument("--fresh", action="store_true", help="measure the cells again")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--write", type=Path, help="Markdown file whose sections to replace")
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.tables or [name for name in TABLES if name not in ON_REQUEST]:
        table, path = table_of(name)
        if not options.report:
            with locked(path):
                store = CellStore(path, table.KEY, options.fresh)
                failed += measure(table.cells(), store, options.only)
        text = section(name)
        print(text)
        if options.write is not None:
            replace_section(options.write, name, text)
    return int(failed > 0)


def table_of(name: str) -> tuple[Any, Path]:
    """Return the module of a table and its file of records."""
    return importlib.import_module(f"benchmarks.quality.{name}"), RECORDS_FOLDER / f"{name}.jsonl"


def section(name: str) -> str:
    """Return the section that is made from the records of a table."""
    table, path = table_of(name)
    records = pd.DataFrame(CellStore(path, table.KEY).entries())
    first, last = records["day"].min(), records["day"].max()
    days = first if first == last else f"{first} to {last}"
    return f"{table.text(records)}\n\nMeasured {days}."


def measure(cells: Cells, store: CellStore, only: Sequence[str]) -> int:
    """Measure and save the cells that are missing; return how many failed."""
    failed = 0
    for key, run in cells:
        name = " · ".join(map(str, key))
        if key in store.cells or not all(text.lower() in name.lower() for text in only):
            continue
        print(name, file=sys.stderr, flush=True)
        names = dict(zip(store.names, key, strict=True))
        setting = {"day": date.today().isoformat(), "setting": written(versions())}
        try:
            store.add({**names, **setting, **run()})
        except Exception:  # continue with the other cells
            traceback.print_exc()
            failed += 1
    return failed


if __name__ == "__main__":
    sys.exit(main())

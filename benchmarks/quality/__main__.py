"""`python -m benchmarks.quality`: measure what is missing of each table, and print the tables.

Each finished cell is saved in a file, so that an interrupted run goes on when it is started again.
The records do not tell when code or data have changed: `--fresh` measures again.
"""

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks._markdown import replace_section
from benchmarks._store import HELD, Busy, CellStore, locked
from benchmarks._versions import versions, written

TABLES = (
    "embeddings_table",
    "few_rows",
    "isoscore_bias",
    "grid_stability",
    "dual_use",
    "comparison",
    "trials",
    "advice",
    "growth",
    "match_threshold",
    "moving_vectors",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected tables; return 1 if a cell failed, 2 if another run holds a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="cells that hold all these texts")
    parser.add_argument("--fresh", action="store_true", help="measure the cells again")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--write", type=Path, help="Markdown file whose sections to replace")
    options = parser.parse_args(arguments)
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"{unknown.pop()!r} must be one of {', '.join(TABLES)}")
    failed = 0
    for name in options.tables or TABLES:
        table = importlib.import_module(f"benchmarks.quality.{name}")
        try:
            if not options.report:
                with locked(table.RECORDS):
                    failed += measure(table, options.only or [], options.fresh)
        except Busy as busy:
            print(busy, file=sys.stderr)
            return HELD
        text = table.text(records(table).entries())
        print(text)
        if options.write is not None:
            replace_section(options.write, table.SECTION, text)
    return int(failed > 0)


def records(table: ModuleType, fresh: bool = False) -> CellStore:
    """Open the records of a table."""
    return CellStore(table.RECORDS, table.KEY, fresh)


def measure(table: ModuleType, only: Sequence[str], fresh: bool) -> int:
    """Measure and save the cells that are missing; return how many failed."""
    store, failed = records(table, fresh), 0
    for key, run in table.cells():
        name = " · ".join(map(str, key))
        if key in store.cells or not all(text.lower() in name.lower() for text in only):
            continue
        print(name, file=sys.stderr, flush=True)
        try:
            found = run()
        except Exception:  # continue with the other cells
            traceback.print_exc()
            failed += 1
            continue
        store.add(
            {**dict(zip(table.KEY, key, strict=True)), "setting": written(versions()), **found}
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())

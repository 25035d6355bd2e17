"""Run the papers' experiments: `python -m benchmarks.reproduction`, for days.

Each finished cell is saved in a file, so that the run can be ended at any time and resumed with the
same command. docs/reproducing.md says how to run it from a commit that stays.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._store import locked
from benchmarks.reproduction._plan import plan, plan_table
from benchmarks.reproduction._records import record_store, run_cell
from benchmarks.reproduction._report import PAGE, write_report
from isoadapt._utils.files import writable_folder

RECORDS = Path(__file__).parent / "results" / "whole.jsonl"


def run_cells(path: Path) -> int:
    """Run the cells of the plan that have no figures yet; return 1 if one failed."""
    store = record_store(path)
    cells = plan()
    missing = [cell for cell in cells if "figures" not in store.cells.get(cell.key, ())]
    code = 0
    for number, cell in enumerate(missing, 1 + len(cells) - len(missing)):
        record = run_cell(cell)
        store.add(record)
        code = max(code, int("error" in record))
        outcome = record.get("error", f"{record['seconds']:.1f} s")
        named = f"{cell.kind}: {cell.name}, {cell.task}, seed {cell.seed}"
        print(f"[{number}/{len(cells)}] {named}: {outcome}", file=sys.stderr, flush=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run missing cells and write the report; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--plan", action="store_true", help="print the cells of the plan and end")
    where = "folder of finished cells and report, in place of the ones in benchmarks/"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=where)
    options = parser.parse_args(arguments)
    if options.plan:
        print(plan_table())
        return 0
    path = writable_folder(options.out or RECORDS.parent) / RECORDS.name
    code = 0
    if not options.report_only:
        with locked(path):
            code = run_cells(path)
    page = options.out / PAGE.name if options.out else PAGE
    write_report(path, page)
    print(f"report: {page}")
    return code


if __name__ == "__main__":
    sys.exit(main())

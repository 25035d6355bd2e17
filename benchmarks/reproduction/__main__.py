"""Run the papers' experiments: `python -m benchmarks.reproduction`, for days.

Each finished cell is saved in a file, so that the run can be ended at any time and resumed with the
same command. docs/reproducing.md says how to run it from a commit that stays.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import _places
from benchmarks._store import HELD, Busy, locked
from benchmarks.reproduction import (
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
    istar_sign,
    persistent_entropy,
)
from benchmarks.reproduction._cells import (
    Cell,
    Record,
    Slot,
    record_store,
    run_cell,
)
from benchmarks.reproduction._plan import next_cell, order_table, plan
from benchmarks.reproduction._report import SIGN, Papers, reproduction_text
from isoadapt._utils.files import atomic_path, writable_folder

PAPERS: Papers = {
    SIGN: (istar_sign,),
    "002": (istar_scores, istar),
    "003": (isotropy_layer,),
    "000": (persistent_entropy,),
    "004": (isotropy_calibration,),
}
RECORDS = Path(__file__).parent / "results" / "whole.jsonl"
PLAN = Path(__file__).parent / "PLAN.md"


def run_cells(slots: Sequence[Slot], path: Path) -> int:
    """Run missing cells in order; return 1 if a cell failed."""
    store = record_store(path)
    tried: set[str] = set()
    code = 0
    while cell := next_cell(slots, store.entries(), tried):
        tried.add(cell.key)
        record = run_cell(cell)
        store.add(record)
        code = max(code, int("error" in record))
        _tell(cell, record, store.entries(), slots)
    return code


def _tell(cell: Cell, record: Record, records: Sequence[Record], slots: Sequence[Slot]) -> None:
    outcome = record.get("error", f"{record['seconds']:.1f} s")
    finished = sum("figures" in item for item in records)
    named = f"{cell.kind}: {cell.name}, {cell.task}, seed {cell.seed}"
    print(f"[{finished}/{len(slots)}] {named}: {outcome}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run missing cells and write the report; return 1 if one failed, 2 if another run has them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("--report-only", action="store_true", help="run nothing")
    parser.add_argument("--plan", action="store_true", help="print the cells of the plan and end")
    where = "folder of finished cells and report, in place of the ones in benchmarks/"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=where)
    options = parser.parse_args(arguments)
    if options.plan:
        print(order_table(plan()))
        return 0
    path = writable_folder(options.out or RECORDS.parent) / RECORDS.name
    code = 0
    if not options.report_only:
        try:
            with locked(path):
                code = run_cells(plan(), path)
        except Busy as busy:
            print(busy, file=sys.stderr)
            return HELD
    target = (options.out or _places.FOLDER) / "REPRODUCTION.md"
    with atomic_path(target) as temporary:
        temporary.write_text(reproduction_text(PAPERS, path), "utf-8")
    print(f"report: {target}")
    return code


if __name__ == "__main__":
    sys.exit(main())

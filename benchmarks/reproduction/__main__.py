"""Run the papers' experiments: `python -m benchmarks.reproduction --suite quick|whole`.

Each finished cell is saved in a file, so that the run can be ended at any time and resumed with the
same command. docs/reproducing.md says how to run the whole suite from a commit that stays.
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
    QUICK,
    SUITES,
    WHOLE,
    Cell,
    Record,
    Slot,
    record_store,
    run_cell,
)
from benchmarks.reproduction._plan import next_cell, order_table, plan
from benchmarks.reproduction._report import SIGN, Papers, reproduction_text, suite_file
from isoadapt._utils.files import atomic_path, writable_folder

PAPERS: Papers = {
    SIGN: (istar_sign,),
    "002": (istar_scores, istar),
    "003": (isotropy_layer,),
    "000": (persistent_entropy,),
    "004": (isotropy_calibration,),
}
RESULTS = Path(__file__).parent / "results"
SMOKE = _places.RESULTS / "reproduction-quick"
PLAN = Path(__file__).parent / "PLAN.md"
HOW_MUCH = (
    "how much to run. quick: a smoke run of one seed, 1,000 CoLA rows and one epoch, about 10 "
    "minutes on one core; whole: the plan in benchmarks/reproduction/PLAN.md, which takes days "
    "(default: %(default)s)"
)


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


def run(options: argparse.Namespace) -> int:
    """Run missing cells and write the report; return 1 if one failed, 2 if another run has them."""
    suite = SUITES[options.suite]._replace(
        model=options.model, from_hub=options.data == "hub", cache=options.cache
    )
    of_whole = suite.name == WHOLE.name
    results = writable_folder(options.out or (RESULTS if of_whole else SMOKE))
    target = (options.out or (_places.FOLDER if of_whole else SMOKE)) / "REPRODUCTION.md"
    path = suite_file(results, suite)
    code = 0
    if not options.report_only:
        try:
            with locked(path):
                code = run_cells(plan(suite), path)
        except Busy as busy:
            print(busy, file=sys.stderr)
            return HELD
    with atomic_path(target) as temporary:
        temporary.write_text(reproduction_text(PAPERS, suite, results), "utf-8")
    print(f"report: {target}")
    return code


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("--suite", choices=list(SUITES), default=QUICK.name, help=HOW_MUCH)
    parser.add_argument(
        "--report-only", action="store_true", help="write the report from the records and end"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the cells of the whole plan and end"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where finished cells and the report go, in place of the ones in benchmarks/",
    )
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="where the bases' embeddings are kept"
    )
    parser.add_argument(
        "--model",
        help="another encoder, by folder or name on the Hub such as bert-base-cased; needs --out",
    )
    parser.add_argument(
        "--data",
        choices=["shared", "hub"],
        default="shared",
        help="where the tasks come from: the shared folder, or GLUE on the Hub (needs --out)",
    )
    options = parser.parse_args(arguments)
    if (options.model or options.data == "hub") and options.out is None:
        parser.error("--model and --data hub need --out: their cells must not mix with MiniLM's")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected suite and write the report."""
    options = parse(arguments)
    if options.plan:
        print(order_table(plan(WHOLE)))
        return 0
    return run(options)


if __name__ == "__main__":
    sys.exit(main())

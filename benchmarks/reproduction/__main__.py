"""Run the papers' experiments: `python -m benchmarks.reproduction --suite quick|whole`.

Each finished cell is saved in a file, so that the run can be stopped at any time and resumed with
the same command. `make reproduction` runs the whole suite from a frozen copy of a commit.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

import isoadapt
from benchmarks import _places
from benchmarks._store import HELD, Busy, locked
from benchmarks.reproduction import (
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
    persistent_entropy,
)
from benchmarks.reproduction._cells import QUICK, SUITES, WHOLE, Cell, Record, Suite
from benchmarks.reproduction._pictures import draw_pictures
from benchmarks.reproduction._plan import Slot, next_cell, order_table, plan
from benchmarks.reproduction._records import record_store, run_cell
from benchmarks.reproduction._report import Papers, planned, reproduction_text, suite_file
from benchmarks.reproduction._running import Budget, Stop, Stopped
from isoadapt._utils.files import atomic_path, writable_folder

PAPERS: Papers = {
    "000": (persistent_entropy,),
    "002": (istar_scores, istar),
    "003": (isotropy_layer,),
    "004": (isotropy_calibration,),
}
RESULTS = Path(__file__).parent / "results"
SMOKE = _places.RESULTS / "reproduction-quick"
PLAN = Path(__file__).parent / "PLAN.md"
CELLS_BETWEEN_REPORTS = 5
HOW_MUCH = (
    "how much to run. quick: a smoke run of one seed, 1,000 CoLA rows and one epoch, about 10 "
    "minutes on one core; whole: the plan in benchmarks/reproduction/PLAN.md, which takes days "
    "(default: %(default)s)"
)


def run_cells(
    slots: Sequence[Slot], suite: Suite, path: Path, budget: Budget, stop: Stop, target: Path
) -> int:
    """Run missing cells in order until one exceeds the budget; return 1 if a cell failed."""
    store = record_store(path)
    tried: set[str] = set()
    code = 0
    while cell := next_cell(slots, store.entries(), suite, tried):
        if not budget.allows(cell, [item for item in store.entries() if "figures" in item]):
            break
        tried.add(cell.key)
        record = run_cell(cell)
        stop.check()
        with stop.shielded():
            store.add(record)
        code = max(code, int("error" in record))
        _tell(cell, record, store.entries(), slots)
        if len(tried) % CELLS_BETWEEN_REPORTS == 0:
            _try_write_reproduction(suite, path.parent, target)
    return code


def _tell(cell: Cell, record: Record, records: Sequence[Record], slots: Sequence[Slot]) -> None:
    outcome = record.get("error", f"{record['seconds']:.1f} s")
    finished = sum("figures" in item for item in records)
    named = f"{cell.kind}: {cell.name}, {cell.task}, seed {cell.seed}"
    print(f"[{finished}/{len(slots)}] {named}: {outcome}", file=sys.stderr, flush=True)


def write_reproduction(suite: Suite, folder: Path, target: Path) -> None:
    """Write the report, atomically, and the pictures beside it."""
    text = reproduction_text(PAPERS, suite, folder)
    draw_pictures(planned(suite, folder)[-1], target.parent)
    with atomic_path(target) as temporary:
        temporary.write_text(text, "utf-8")


def _try_write_reproduction(suite: Suite, folder: Path, target: Path) -> None:
    """Write the report; if that fails, print the reason and continue with the next cells."""
    try:
        write_reproduction(suite, folder, target)
    except Exception:
        traceback.print_exc()


def run(options: argparse.Namespace) -> int:
    """Run missing cells; return 1 if one failed, 2 if locked, and 128 + n for signal n."""
    suite = SUITES[options.suite]._replace(
        model=options.model, from_hub=options.data == "hub", cache=options.cache
    )
    target = options.report or _default_target(options, suite)
    results = writable_folder(options.out or (RESULTS if suite.name == WHOLE.name else SMOKE))
    path = suite_file(results, suite)
    if options.report_only:
        write_reproduction(suite, results, target)
        return 0
    try:
        with Stop() as stop, locked(path):
            code = run_cells(plan(suite), suite, path, Budget(options.budget), stop, target)
    except Busy as busy:
        print(busy, file=sys.stderr)
        return HELD
    except Stopped as stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        code = 128 + stopped.number
    write_reproduction(suite, results, target)
    print(f"report: {target}")
    return code


def _default_target(options: argparse.Namespace, suite: Suite) -> Path:
    if options.out:
        return options.out / "REPRODUCTION.md"
    return (_places.FOLDER if suite.name == WHOLE.name else SMOKE) / "REPRODUCTION.md"


def check_frozen(root: Path = _places.ROOT) -> None:
    """Raise unless the library is imported from the same copy as the benchmarks."""
    library = Path(isoadapt.__file__).resolve()
    if not library.is_relative_to(root.resolve()):
        raise SystemExit(
            f"isoadapt comes from {library.parent}, not from the copy at {root}: set PYTHONPATH to "
            "that copy, as make reproduction does"
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("--suite", choices=list(SUITES), default=QUICK.name, help=HOW_MUCH)
    parser.add_argument(
        "--budget",
        type=float,
        metavar="MINUTES",
        help="end before the first cell that is expected to end after this many minutes",
    )
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
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the report goes")
    parser.add_argument(
        "--cache", type=Path, metavar="FOLDER", help="where the bases' embeddings are kept"
    )
    parser.add_argument(
        "--frozen",
        action="store_true",
        help="end unless the library is that of this copy, and use one thread",
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
    if options.budget is not None and not options.budget >= 0:
        parser.error(f"--budget {options.budget} must be 0 or more minutes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected suite and write the report."""
    options = parse(arguments)
    if options.plan:
        print(order_table(plan(WHOLE)))
        return 0
    if options.frozen:
        check_frozen()
        torch.set_num_threads(1)
    return run(options)


if __name__ == "__main__":
    sys.exit(main())

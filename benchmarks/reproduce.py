"""Run the papers' experiments in small: `python -m benchmarks.reproduce --suite quick|cpu|gpu`.

Each finished cell is kept in a file, so that it may be stopped at any time: the same command goes
on. The report is written anew as cells finish. Set OMP_NUM_THREADS to the cores to use.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.reproduction import (
    paper000,
    paper002,
    paper002_scores,
    paper003,
    paper004,
)
from benchmarks.reproduction._cells import SUITES, Cell, Record, Suite
from benchmarks.reproduction._report import Papers, read_suite, report, suite_cells, suite_file
from benchmarks.reproduction._store import append_record, run_cell
from benchmarks.reproduction._verdicts import selected
from isoadapt._files import atomic_path, writable_folder

PAPERS: Papers = {
    "000": (paper000,),
    "002": (paper002_scores, paper002),
    "003": (paper003,),
    "004": (paper004,),
}
FOLDER = Path(__file__).parent
RESULTS = FOLDER / "reproduction" / "results"
CELLS_BETWEEN_REPORTS = 5
HOW_MUCH = (
    "how much to run. quick: one seed of at most 1,000 training rows, about 10 minutes on one "
    "core; cpu: 3 seeds of at most 2,000 rows, about 170 minutes on one core; gpu: 5 seeds of "
    "whole tasks as the papers train, for a GPU (default: %(default)s)"
)


class Budget:
    """Time left, and whether a cell fits into it by what such cells have cost so far."""

    def __init__(self, minutes: float | None) -> None:
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes

    def allows(self, cell: Cell, finished: Sequence[Record]) -> bool:
        """Whether to begin a cell."""
        if self._ends is None:
            return True
        left = self._ends - time.monotonic()
        return left > 0 and expected_seconds(cell, finished) <= left


def expected_seconds(cell: Cell, finished: Sequence[Record]) -> float:
    """Median cost of the same condition, else of the paper's cells on that task, else of all there.

    Of those only that were fine-tuned anew, or only of those that were not, as the cell will be.
    """
    fields = {"task": cell.task, "cached": cell.cached()}
    for more in ({"paper": cell.paper, "name": cell.name}, {"paper": cell.paper}, {}):
        if kin := selected(finished, {**fields, **more}):
            return median(item["seconds"] for item in kin)
    return 0.0


def run_missing(
    cells: Sequence[Cell], finished: list[Record], budget: Budget, path: Path
) -> Iterator[Record]:
    """Run the cells that fit into the budget and are not finished; keep each as it ends."""
    done = {record["key"] for record in finished}
    missing = [cell for cell in cells if cell.key not in done]
    progress = tqdm(missing, disable=not sys.stderr.isatty(), unit="cell")
    for number, cell in enumerate(progress, 1):
        if not budget.allows(cell, finished):
            continue
        progress.set_description(f"{cell.paper} {cell.name}, {cell.task}, seed {cell.seed}")
        record = run_cell(cell)
        append_record(path, record)
        if "figures" in record:
            finished.append(record)
        if progress.disable:
            _tell(number, len(missing), cell, record)
        yield record


def _tell(number: int, total: int, cell: Cell, record: Record) -> None:
    outcome = record.get("error", f"{record['seconds']:.1f} s")
    named = f"{cell.paper} {cell.name}, {cell.task}, seed {cell.seed}"
    print(f"[{number}/{total}] {named}: {outcome}", file=sys.stderr, flush=True)


def write_report(papers: Papers, suites: Sequence[Suite], folder: Path, target: Path) -> None:
    """Write the report, whole or not at all."""
    text = report(papers, suites, folder)
    with atomic_path(target) as temporary:
        temporary.write_text(text, "utf-8")


def _try_report(papers: Papers, suites: Sequence[Suite], folder: Path, target: Path) -> None:
    """Write the report, or say why not: the cells to come are worth more."""
    try:
        write_report(papers, suites, folder, target)
    except Exception:
        traceback.print_exc()


def run(options: argparse.Namespace) -> int:
    """Run what is missing; 1 if a cell failed, 130 if it was stopped."""
    changes = {"model": options.model, "from_hub": options.data == "hub"}
    suites = [suite._replace(**changes) for suite in SUITES.values()]
    (suite,) = (suite for suite in suites if suite.name == options.suite)
    results = writable_folder(options.out or RESULTS)
    target = (options.out or FOLDER) / "REPRODUCTION.md"
    cells = suite_cells({name: PAPERS[name] for name in options.only}, suite)
    finished = read_suite(PAPERS, suite, results).finished
    budget = Budget(options.budget)
    code = 0
    try:
        missing = run_missing(cells, finished, budget, suite_file(results, suite))
        for number, record in enumerate(missing, 1):
            code = max(code, int("error" in record))
            if number % CELLS_BETWEEN_REPORTS == 0:
                _try_report(PAPERS, suites, results, target)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        code = 130
    write_report(PAPERS, suites, results, target)
    print(f"report: {target}")
    return code


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("--suite", choices=list(SUITES), default="quick", help=HOW_MUCH)
    parser.add_argument(
        "--budget",
        type=float,
        metavar="MINUTES",
        help="start no cell that is expected to end after this many minutes",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(PAPERS),
        default=list(PAPERS),
        metavar="PAPER",
        help="run cells of these papers only: %(choices)s",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where finished cells and the report go, in place of the ones in benchmarks/",
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
        parser.error("--model and --data hub need --out, lest they mix with the MiniLM's report")
    if options.budget is not None and not options.budget >= 0:
        parser.error(f"--budget {options.budget} must be 0 or more minutes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite asked for and write the report."""
    return run(parse(arguments))


if __name__ == "__main__":
    sys.exit(main())

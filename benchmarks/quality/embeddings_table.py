"""Effect of all adapters on stored embeddings: `python -m benchmarks.quality.embeddings_table`.

Adapters are fitted to the training rows and evaluated on the test rows, or on the dev rows if there
is no test split. No model is loaded. Each finished fit is saved in a file, so that an interrupted
run can be resumed. The result is printed as Markdown; `--write FILE` writes it to a section of that
file.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._data import Embeddings, load_embeddings, stored_tasks
from benchmarks._markdown import markdown_table
from benchmarks.quality import _table_cells
from benchmarks.quality._adapter_rows import (
    BASE,
    EXACT,
    NO_PENALTY,
    NO_PENALTY_RAW,
    ROWS,
    Row,
)
from benchmarks.quality._cells import (
    Cells,
    MeasuredCell,
    Progress,
    cell_key,
    cell_store,
    data_fingerprint,
    obtain_cell,
)
from benchmarks.quality._claims import RowFigures, Table, check_lines, claim_rows, format_figure
from benchmarks.quality._command import TableCommand, publish, run_resumable
from benchmarks.quality._exact_over_alpha import exact_section
from benchmarks.quality._table_cells import Figures, measure_cell

COLUMNS = {
    "accuracy": "accuracy",
    "matthews": "Matthews",
    "cross_entropy": "cross-entropy",
    "isoscore": "IsoScore",
    "corrected": "corrected",
    "ev1": "EV1",
    "anisotropy1": "anisotropy_1",
    "mean_cosine": "mean cosine",
    "two_nn": "TwoNN",
    "seconds": "fit, s",
}
OVERLAPS = {
    "cola": "16 of CoLA's 1,043 dev sentences",
    "sst2_sentence": "one of SST-2's 1,821 test sentences",
}
WITH_SPREAD = ("accuracy", "matthews")


class TaskResult(NamedTuple):
    """The rows of one task, and the versions and hardware of its cells."""

    data: Embeddings
    table: Table
    settings: list[str]


def judge_task(
    task: str, rows: Sequence[Row], n_seeds: int, cells: Cells, progress: Progress
) -> TaskResult:
    """Read every cell of a task from the file, or fit and evaluate it."""
    data = load_embeddings(task)
    table, settings = {}, []
    for row in rows:
        judged = RowFigures(row.name, {})
        for seed in _seeds(row, n_seeds):
            cell = _judge_cell(task, row, seed, data, cells, progress)
            if isinstance(cell, str):
                judged.failures.append(cell)
                continue
            judged.figures[seed] = cell.figures
            settings.append(cell.setting)
        table[row.name] = judged
    return TaskResult(data, table, settings)


def _seeds(row: Row, n_seeds: int) -> list[int | None]:
    return list(range(n_seeds)) if row.takes_seed() else [None]


def _judge_cell(
    task: str,
    row: Row,
    seed: int | None,
    data: Embeddings,
    cells: Cells,
    progress: Progress,
) -> MeasuredCell | str:
    """Return the cell, or a message if it failed."""
    estimator = row.make_seeded(data.head, seed)
    measuring = Path(_table_cells.__file__)
    key = cell_key(task, row.name, seed, estimator, data_fingerprint(data), measuring)
    return obtain_cell(key, lambda: measure_cell(estimator, data), cells, progress)


def bootstrap_error(accuracy: float, n: int, draws: int = 2000) -> float:
    """Return the bootstrap standard error of an accuracy on n rows.

    The number of correct rows in a bootstrap sample is binomial and is drawn directly.
    """
    return float(np.random.default_rng(0).binomial(n, accuracy, draws).std(ddof=1) / n)


def task_section(result: TaskResult) -> str:
    """Return the table of a task and the checks under it."""
    n = len(result.data.y_test)
    error = bootstrap_error(result.table[BASE].mean("accuracy"), n)
    rows = [_cells(judged) for judged in result.table.values()]
    blank = [""] * (len(COLUMNS) - 1)
    rows.insert(1, ["its bootstrap standard error", f"{error:.4f}", *blank])
    header = [f"{result.data.name}, n={n}", *COLUMNS.values()]
    failures = [
        f"not measured: {judged.name}: {failure}"
        for judged in result.table.values()
        for failure in judged.failures
    ]
    lines = [f"- {line}" for line in (*check_lines(result.table, error), *failures)]
    return f"{markdown_table(header, rows)}\n\n" + "\n".join(lines)


def _cells(judged: RowFigures) -> list[str]:
    if not judged.figures:
        return [judged.name, "failed", *[""] * (len(COLUMNS) - 1)]
    return [judged.name, *(_cell(judged, column) for column in COLUMNS)]


def _cell(judged: RowFigures, column: str) -> str:
    mean, values = format_figure(judged.mean(column), column), judged.values(column)
    if column not in WITH_SPREAD or len(values) == 1:
        return mean
    return f"{mean} ± {values.std(ddof=1):.3f}"


def directions(results: Mapping[str, TaskResult]) -> str:
    """Return the section on the claims of the papers that hold on these tasks."""
    tables = [result.table for result in results.values()]
    return (
        "### Directions\n\n"
        "Whether what the papers claim of geometry holds on these embeddings: means of the "
        "control → of the adapter, and for how many seeds. IsoBN is compared with “no adapter”, "
        f"CosReg and persistent entropy with “{NO_PENALTY_RAW}”, I-STAR and spectrum control "
        f"with “{NO_PENALTY}”. Of epochs that do the task equally well, each adapter keeps the one "
        "that its own penalty likes best; trained to the last epoch, as in "
        "tests/adapters/test_papers_directions.py, selected bars lower EV1 more than all bars do."
        "\n\n" + markdown_table(["claim", *results], claim_rows(tables))
    )


def embeddings_text(results: Mapping[str, TaskResult], n_seeds: int, with_exact: bool) -> str:
    """Return the whole section."""
    parts = [_introduction(results, n_seeds)]
    parts += [task_section(result) for result in results.values()]
    parts.append(directions(results))
    if with_exact and "cola" in results:
        parts.append(exact_section(results["cola"].data))
    settings = sorted({setting for result in results.values() for setting in result.settings})
    return "\n\n".join([*parts, *(f"Measured with {setting}." for setting in settings)])


def _introduction(results: Mapping[str, TaskResult], n_seeds: int) -> str:
    shared = " and ".join(text for task, text in OVERLAPS.items() if task in results)
    overlap = f" ({shared} also stand in the train split)" if shared else ""
    seeds = (
        "from one fit"
        if n_seeds == 1
        else f"means over {n_seeds} seeds, accuracy and Matthews ± standard deviation"
    )
    return (
        "Adapters fitted on the training rows, judged on rows that neither they nor the encoder "
        f"was fitted to{overlap}. Rows that depend on a seed: {seeds}. Closed forms and the exact "
        "solver have no seed and were fitted once. “Head refit”: a logistic regression on the "
        "adapted training rows in place of the stored head, which all other adapters keep. "
        "Corrected: IsoScore corrected for few rows. anisotropy_1 is of the rows as they "
        "are; EV1 is the same after centring. A gain counts only against “head refit only” and "
        f"“{NO_PENALTY}”; for CosReg and persistent entropy, which are trained in raw "
        f"coordinates, against “{NO_PENALTY_RAW}”."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; the tasks are the stored ones."""
    meaning = "fits of each row that has a seed"
    tasks = stored_tasks()
    return TableCommand("embeddings_table", "seeds", meaning, tasks, ROWS, BASE).parse(arguments)


def run(options: argparse.Namespace) -> int:
    """Measure missing cells, then print and write the report."""
    cells = cell_store(options.cells, Figures, options.fresh)
    per_task = sum(len(_seeds(row, options.seeds)) for row in options.rows)
    progress = Progress(per_task * len(options.tasks))
    results = {
        task: judge_task(task, options.rows, options.seeds, cells, progress)
        for task in options.tasks
    }
    with_exact = any(row.name == EXACT for row in options.rows)
    text = embeddings_text(results, options.seeds, with_exact)
    publish(text, options.write, "embeddings")
    failed = any(row.failures for result in results.values() for row in result.table.values())
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the selected tables."""
    options = parse(arguments)
    if not options.tasks:
        print("no stored embeddings: set ISOADAPT_SHARED to the folder that holds embeddings/")
        return 0
    return run_resumable(run, options)


if __name__ == "__main__":
    sys.exit(main())

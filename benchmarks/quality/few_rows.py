"""Effect of adapters that are fitted to few rows: `python -m benchmarks.quality.few_rows`.

All rows are ones that the encoder was not trained on. Some are drawn as training rows, the others
are test rows. Each finished fit is saved in a file, so that an interrupted run can be resumed. The
result is printed as Markdown; `--write FILE` writes it to a section of that file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._data import UnseenRows, load_unseen, stored_tasks
from benchmarks._markdown import markdown_table
from benchmarks.quality import _few_rows_cells, _phenomena
from benchmarks.quality._adapter_rows import (
    EXACT,
    MINIBATCH,
    NO_PENALTY,
    PRESERVING,
    PROBE,
    Row,
    Unchanged,
)
from benchmarks.quality._cells import (
    Cells,
    MeasuredCell,
    Progress,
    cell_key,
    cell_store,
    obtain_cell,
)
from benchmarks.quality._claims import RowFigures, format_figure, measured
from benchmarks.quality._command import TableCommand, publish, run_resumable
from benchmarks.quality._few_rows_cells import FitFigures, Split, measure_fit, splits
from benchmarks.quality._few_rows_checks import (
    SizeResult,
    differences,
    few_rows_checks,
    probe_standard_error,
)
from isoadapt import IsotropyLayer, IStarAdapter, LogitPreservingWhitening

SIZES = (100, 300, 600, 1200)
ROWS = (
    Row(PROBE, lambda head: Unchanged(head, refit=True)),
    Row(MINIBATCH, IsotropyLayer),
    Row(EXACT, lambda head: IsotropyLayer(head, solver="exact")),
    Row(NO_PENALTY, lambda head: IsotropyLayer(head, alpha=1.0)),
    Row("IStarAdapter", IStarAdapter),
    Row(PRESERVING, LogitPreservingWhitening),
)
HEADER = (
    "n",
    "judged on",
    "accuracy",
    "to the probe",
    "corrected",
    "harm",
    "convergence",
    "median fit, s",
)
INTRODUCTION = (
    "Adapters fitted to few rows, with the head that they fit by default, a logistic probe. The "
    "encoder was fitted to none of the rows; those that also stand in its training split are left "
    "out. n rows are drawn to fit on, stratified, and the others judge; “all” is five-fold "
    "cross-validation, in which four fifths fit. Accuracy: mean ± standard deviation over the "
    "draws or folds. To the probe: mean difference to a probe that is fitted to the same n rows; "
    "adapters with validation rows fit theirs to 70 % of them. Beside the probe itself stands the "
    "binomial standard error of its accuracy, over the rows that judge one draw or all folds. "
    "Corrected: IsoScore of the rows that judge, corrected for few rows. Harm, convergence: "
    "fits that ended with the warning that the fit harms the task, or with a ConvergenceWarning, "
    "the probe's own included."
)
PHENOMENA = (
    "The classes “phenomenon” are what sentences of the generated corpus are about. MiniLM was "
    f"fine-tuned to tell {_phenomena.N_PHENOMENA} of them apart, on {_phenomena.N_TRAINING} "
    f"sentences of each for {_phenomena.RECIPE['epochs']} epochs; the rows are longer sentences of "
    "other words, one of each pair of twins. Fewer classes: the rows of the first ones. With "
    "acceptability: each of six phenomena is two classes, acceptable and not, which the encoder "
    "was not trained to tell apart."
)


def known_tasks() -> list[str]:
    """Return the names of the tasks: the stored ones, then those with many classes."""
    return [*stored_tasks(), *_phenomena.TASKS]


def load_unseen_rows(task: str) -> UnseenRows:
    """Return the rows of a task."""
    if task in _phenomena.TASKS:
        return _phenomena.phenomenon_task(task)
    return load_unseen(task, SIZES)


def judge_size(
    data: UnseenRows,
    n: int | None,
    found: Sequence[Split],
    rows: Sequence[Row],
    cells: Cells,
    progress: Progress,
) -> SizeResult:
    """Read every cell of a task and number of rows from the file, or fit and evaluate it."""
    result = SizeResult(data.name, n, data.X.shape[1], {}, [])
    for row in rows:
        judged = result.table[row.name] = RowFigures(row.name, {})
        for split in found:
            cell = _judge_cell(result.title(), row, data, split, cells, progress)
            if isinstance(cell, str):
                judged.failures.append(cell)
                continue
            judged.figures[split.draw] = cell.figures
            result.settings.append(cell.setting)
    return result


def _judge_cell(
    task: str,
    row: Row,
    data: UnseenRows,
    split: Split,
    cells: Cells,
    progress: Progress,
) -> MeasuredCell | str:
    """Return the cell, or a message if it failed."""
    estimator = row.make_seeded("logistic", split.draw if row.takes_seed() else None)
    measuring = Path(_few_rows_cells.__file__)
    key = cell_key(task, row.name, split.draw, estimator, split.fingerprint(data), measuring)
    return obtain_cell(key, lambda: measure_fit(estimator, data, split), cells, progress)


def judge_all(
    tasks: Sequence[UnseenRows], rows: Sequence[Row], draws: int, cells: Cells
) -> list[SizeResult]:
    """Measure all rows of the table, for all tasks and numbers of training rows."""
    plan = [
        (data, n, found)
        for data in tasks
        for n in (*data.sizes, None)
        if (found := splits(data, n, draws))
    ]
    progress = Progress(len(rows) * sum(len(found) for *_, found in plan), "draw")
    return [judge_size(*part, rows, cells, progress) for part in plan]


def few_rows_text(results: Sequence[SizeResult], failures: Sequence[str]) -> str:
    """Return the whole section: a table for each task, then the checks."""
    parts = [INTRODUCTION]
    if any(result.name.startswith("phenomenon") for result in results):
        parts.append(PHENOMENA)
    for name in dict.fromkeys(result.name for result in results):
        lines = [
            _cells(result, judged)
            for result in results
            if result.name == name
            for judged in result.table.values()
        ]
        parts.append(markdown_table([name, *HEADER], lines))
    lines = [*few_rows_checks(results), *(f"not measured: {failure}" for failure in failures)]
    parts.append("### Checks\n\n" + "\n".join(f"- {line}" for line in lines))
    settings = sorted({setting for result in results for setting in result.settings})
    return "\n\n".join([*parts, *(f"Measured with {setting}." for setting in settings)])


def _cells(result: SizeResult, judged: RowFigures) -> list[str]:
    n = "all" if result.n is None else str(result.n)
    if not judged.figures:
        return [judged.name, n, "failed", *[""] * (len(HEADER) - 2)]
    n_judged, accuracy = judged.values("n_judged"), judged.values("accuracy")
    if result.n is None:
        n = f"all, {judged.values('n_fitted').min():.0f}"
    spread = f" ± {accuracy.std(ddof=1):.3f}" if len(accuracy) > 1 else ""
    return [
        judged.name,
        n,
        f"{n_judged.sum() if result.n is None else n_judged[0]:.0f}",
        f"{accuracy.mean():.3f}{spread}",
        _to_the_probe(result, judged),
        format_figure(judged.mean("corrected"), "corrected"),
        *(
            f"{judged.values(column).sum():.0f}/{len(accuracy)}"
            for column in ("harmful", "unconverged")
        ),
        format_figure(float(np.median(judged.values("seconds"))), "seconds"),
    ]


def _to_the_probe(result: SizeResult, judged: RowFigures) -> str:
    if not measured(result.table, PROBE):
        return "–"
    if judged.name == PROBE:
        return f"± {probe_standard_error(result):.4f}"
    beside = list(differences(result.table, judged.name).values())
    return f"{np.mean(beside):z.4f}" if beside else "–"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    meaning = "fits of each row; folds at most"
    return TableCommand("few_rows", "draws", meaning, known_tasks(), ROWS, PROBE).parse(arguments)


def run(options: argparse.Namespace) -> int:
    """Measure missing cells, then print and write the report."""
    cells = cell_store(options.cells, FitFigures, options.fresh)
    tasks, failures = [], []
    for task in options.tasks:
        try:
            tasks.append(load_unseen_rows(task))
        except ImportError as error:  # continue with the other tasks
            failures.append(f"{task}: ImportError: {error}")
    results = judge_all(tasks, options.rows, options.draws, cells)
    failures += [
        f"{result.title()}: {judged.name}: {failure}"
        for result in results
        for judged in result.table.values()
        for failure in judged.failures
    ]
    text = few_rows_text(results, failures)
    publish(text, options.write, "few-rows")
    return int(bool(failures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the selected tables."""
    return run_resumable(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())

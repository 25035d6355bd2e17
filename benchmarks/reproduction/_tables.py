"""Tables of conditions: a row for each, mean ± standard deviation over the seeds."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks._report import markdown_table
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._verdicts import by_seed, mean_sd, selected

TASKS = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sst2": "SST-2", "stsb": "STS-B"}
METRICS = {"cola": "Matthews", "mrpc": "F1", "stsb": "Pearson"}


def metric_name(task: str) -> str:
    """Name the task's own metric."""
    return METRICS.get(task, "accuracy")


def tasks_of(records: Sequence[Record], paper: str) -> list[str]:
    """Name the tasks that a paper has records of."""
    found = {record["task"] for record in selected(records, {"paper": paper})}
    return [task for task in TASKS if task in found]


def condition_table(
    records: Sequence[Record],
    paper: str,
    task: str,
    names: Sequence[str],
    columns: Mapping[str, str],
) -> str:
    """Return a Markdown table of the conditions that have records; `columns` are titles."""
    rows = []
    for name in names:
        fields = {"paper": paper, "name": name, "task": task}
        n_seeds = len(selected(records, fields))
        if n_seeds:
            values = [list(by_seed(records, fields, figure).values()) for figure in columns]
            rows.append([name, str(n_seeds), *map(mean_sd, values)])
    return markdown_table([TASKS[task], "seeds", *columns.values()], rows)


def layer_table(
    records: Sequence[Record], paper: str, task: str, names: Sequence[str], figure: str
) -> str:
    """Return a Markdown table of a figure layer by layer, means over the seeds."""
    rows = []
    for name in names:
        found = selected(records, {"paper": paper, "name": name, "task": task})
        if found:
            layers = zip(*(record["figures"][figure] for record in found), strict=True)
            rows.append([name, *(mean_sd(np.array(layer, float)) for layer in layers)])
    n_layers = max((len(row) for row in rows), default=1) - 1
    return markdown_table([TASKS[task], *(f"layer {k + 1}" for k in range(n_layers))], rows)

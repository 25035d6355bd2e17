"""Tables with one row per condition, as mean ± standard deviation over the seeds."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import by_seed, matching_records, mean_sd, of

TASKS = {
    "cola": "CoLA",
    "mrpc": "MRPC",
    "rte": "RTE",
    "sst2_sentence": "SST-2",
    "sst2": "SST-2 (phrases)",
}
SCORES = {"cola": "matthews"}  # accuracy for other tasks
WORDS = {"matthews": "Matthews", "accuracy": "accuracy"}


def task_score(task: str) -> str:
    """Return the name of the figure that a task is evaluated with."""
    return SCORES.get(task, "accuracy")


def metric_name(task: str) -> str:
    """Return the title of the metric of a task."""
    return WORDS[task_score(task)]


def score_of(figure: str, task: str) -> str | None:
    """Return the name of the score that a figure is, or None if it is not a score."""
    score = task_score(task) if figure == "metric" else figure
    return score if score in WORDS else None


def tasks_of(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Return the tasks with figures for these conditions."""
    found = {
        record["task"] for record in records if record["name"] in names and "figures" in record
    }
    return [task for task in TASKS if task in found]


def condition_table(
    records: Sequence[Record], task: str, names: Sequence[str], columns: Mapping[str, str]
) -> str:
    """Return a Markdown table of the conditions with records; `columns` maps to titles.

    Of two columns with one title, such as metric and accuracy, one is shown.
    """
    figures = {title: figure for figure, title in columns.items()}
    rows = []
    for name in names:
        n_seeds = sum("figures" in record for record in matching_records(records, of(name, task)))
        if n_seeds:
            values = [
                [*by_seed(records, of(name, task), figure).values()] for figure in figures.values()
            ]
            rows.append([name, str(n_seeds), *map(mean_sd, values)])
    return markdown_table([TASKS[task], "seeds", *figures], rows)


def layer_table(records: Sequence[Record], task: str, names: Sequence[str], figure: str) -> str:
    """Return a Markdown table of a figure by layer, as means over the seeds."""
    rows = []
    for name in names:
        found = [
            record["figures"][figure]
            for record in matching_records(records, of(name, task))
            if figure in record.get("figures", {})
        ]
        if found:
            layers = zip(*found, strict=True)
            rows.append([name, *(mean_sd(np.array(layer, float)) for layer in layers)])
    n_layers = max((len(row) for row in rows), default=1) - 1
    return markdown_table([TASKS[task], *(f"layer {k + 1}" for k in range(n_layers))], rows)

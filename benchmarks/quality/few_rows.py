"""Adapters that are fitted to few rows, all of which the encoder was not trained on.

Some rows are drawn as training rows, the others are test rows.
"""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._data import Embeddings, load_unseen
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _adapter_rows as rows
from isoadapt import ExactIsotropyLayer, IsotropyLayer, IStarAdapter, LogitPreservingWhitening
from isoadapt.adapters._heads import fit_head

KEY = ("task", "size", "row", "draw")
SIZES = {
    "cola": (100, 300, 600),
    "mrpc": (100, 300, 600, 1200),
    "rte": (100,),
    "sst2_sentence": (100, 300, 600, 1200),
    "bbbp": (100, 300),
    "esol": (100, 200),
    "cola_distilbert": (100, 300, 600),
}
PROBE, ISTAR, PRESERVING = "probe", "IStarAdapter", "LogitPreservingWhitening"
N_DRAWS = 5
ROWS = (
    rows.Row(PROBE, lambda head: rows.Unchanged(head, refit=True)),
    rows.Row(rows.MINIBATCH, IsotropyLayer),
    rows.Row(rows.EXACT, ExactIsotropyLayer),
    rows.Row(ISTAR, IStarAdapter),
    rows.Row(PRESERVING, LogitPreservingWhitening),
    rows.Row(rows.NO_PENALTY, lambda head: IsotropyLayer(head, alpha=1.0)),
)


def cells() -> Cells:
    """Yield a fit for each task, number of training rows, row and draw."""
    for task, sizes in SIZES.items():
        for size, row, draw in product(sizes, ROWS, range(N_DRAWS)):
            yield (task, size, row.name, draw), partial(fit, task, size, row, draw)


def fit(task: str, size: int, row: rows.Row, draw: int) -> dict[str, Any]:
    """Fit an adapter, with the head that it fits by default, to drawn rows."""
    name, X, y = load_unseen(task)
    fitting, judging = rows.drawn_rows(y, size, draw)
    head = fit_head(rows.probe(y), X[fitting], y[fitting])
    data = Embeddings(name, X[fitting], y[fitting], X[judging], y[judging], head)
    found = rows.measure_adapter(row.make_seeded(rows.probe(y), draw), data)
    return {"name": name, **found, "n_fitted": len(fitting), "n_judged": len(judging)}


def text(frame: pd.DataFrame) -> str:
    """Return a row for each task at its smallest number of training rows, and the losses."""
    keys = ["task", "size"]
    figures = frame.pivot_table(["accuracy", "corrected"], [*keys, "draw"], "row")
    accuracy, corrected = figures["accuracy"], figures["corrected"].groupby(keys).mean()
    n = frame.groupby(keys)["n_judged"].first()
    before = accuracy[PROBE].groupby(keys)
    mean, spread = before.mean(), before.std()
    error = np.sqrt(mean * (1 - mean) / n)  # of the accuracy, by the binomial distribution
    of_draws = mean.index.get_level_values("task").isin(rows.REGRESSIONS)
    error = error.mask(of_draws, spread / np.sqrt(before.count()))
    steps = accuracy.sub(accuracy[PROBE], axis=0).drop(columns=PROBE).groupby(keys).mean()
    losing = steps.lt(-error, axis=0)
    smallest = [(task, min(sizes)) for task, sizes in SIZES.items()]
    table = pd.DataFrame(index=pd.MultiIndex.from_tuples(smallest, names=keys))
    table["rows"] = frame.groupby(keys)["name"].first()
    table["n"] = table.index.get_level_values("size").astype(str)
    table["judged on"] = n.astype(str)
    table["accuracy"] = mean.map("{:.3f}".format) + spread.map(" ± {:.3f}".format)
    table["error"] = error.map("{:.4f}".format)
    for row in ROWS[1:]:
        table[row.name] = steps[row.name].map("{:z.4f}".format)
    table["corrected, before"] = corrected[PROBE].map(rows.format_figure)
    for name in (ISTAR, PRESERVING):
        table[f"{name}, corrected"] = corrected[name].map(rows.format_figure)
    n_losing, n_compared = losing.sum().sum(), steps.count().sum()
    return (
        f"{frame_table(table.set_index('rows'))}\n\nMean accuracy more than one standard error "
        f"below the probe's: {n_losing} of {n_compared} cells."
    )

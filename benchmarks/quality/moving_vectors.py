"""Stored vectors of one encoder in the space of another one, by vectors of common texts."""

from collections import namedtuple
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import RidgeCV

from benchmarks._data import Floats, read_table
from benchmarks._markdown import markdown_table
from benchmarks.quality import Cells, _texts as texts
from benchmarks.quality._checkpoints import Checkpoint
from benchmarks.quality._figures import mean, neighbours, reciprocal_rank
from isoadapt import TeacherReadout

KEY = ("old", "new", "map", "n")
ENCODERS = {"all-MiniLM": "minilm", "paraphrase-L3": "paraphrase-l3", "all-mpnet": "mpnet"}
SIZES, N_DOCUMENTS, N_QUERIES, NEAREST = (300, 1000, 3000, 6000), 2000, 500, 10
N_PAIRS = 800
ALONE = "old encoder alone"
Space = namedtuple("Space", "common documents queries second first")  # vectors of an encoder


@cache
def space(encoder: str) -> Space:
    """Embed all texts."""
    ends = np.cumsum([0, max(SIZES), N_DOCUMENTS, N_QUERIES])
    found = texts.drawn(texts.own_texts("cola").fit, ends[-1])
    parts = [found[start:end] for start, end in pairwise(ends)]
    embed = Checkpoint("", "cola", ENCODERS[encoder]).teacher_vectors
    return Space(*map(embed, (*parts, paraphrases().documents, paraphrases().queries)))


@cache
def paraphrases() -> texts.Retrieval:
    """Return a search by the first sentences of paraphrases among all second sentences."""
    pairs, labels = (part[:N_PAIRS] for part in read_table("mrpc", "test"))
    kept = [pair for pair, label in zip(pairs, labels, strict=True) if label == 1]
    return texts.search(list(dict.fromkeys(second for _, second in pairs)), kept)


def procrustes(old: Floats, new: Floats) -> Callable[[Floats], Floats]:
    """Return the best rotation; zeros fill the vectors of less width."""
    width = max(old.shape[1], new.shape[1])
    ends = [((0, 0), (0, width - rows.shape[1])) for rows in (old, new)]
    rotation, _ = orthogonal_procrustes(np.pad(old, ends[0]), np.pad(new, ends[1]))
    return lambda rows: (np.pad(rows, ends[0]) @ rotation)[:, : new.shape[1]]


MAPS: dict[str, Callable[[Floats, Floats], Callable[[Floats], Floats]]] = {
    "TeacherReadout": lambda old, new: TeacherReadout().fit(old, new).transform,
    "RidgeCV": lambda old, new: RidgeCV(np.logspace(-4, 2, 13)).fit(old, new).predict,
    "orthogonal Procrustes": procrustes,
}
COMPARED = [(name, SIZES[-1]) for name in list(MAPS)[1:]]
SHOWN = [(ALONE, 0), *(("TeacherReadout", n) for n in SIZES), *COMPARED]


def cells() -> Cells:
    """Yield each map at each number of common texts, and the old encoder alone."""
    first, *others = ENCODERS
    for old, new in [pair for other in others for pair in ((first, other), (other, first))]:
        yield (old, new, ALONE, 0), partial(measure, old, new, None, 0)
        for n, name in product(SIZES, MAPS):
            yield (old, new, name, n), partial(measure, old, new, name, n)


def measure(old: str, new: str, name: str | None, n: int) -> dict[str, Any]:
    """Fit a map to n common texts and search the mapped vectors."""
    before, after = space(old), space(new)
    wanted = neighbours(after.documents, NEAREST, after.queries)[1]
    if name is None:
        move, asked = (lambda rows: rows), before
    else:
        move, asked = MAPS[name](before.common[:n], after.common[:n]), after
    found = neighbours(move(before.documents), NEAREST, asked.queries)[1]
    shared = np.array([np.isin(a, b).mean() for a, b in zip(wanted, found, strict=True)])
    relevant = paraphrases().relevant
    return {
        "recall": mean(shared),
        "mrr": reciprocal_rank(asked.first, move(before.second), relevant, NEAREST),
        "new_mrr": reciprocal_rank(after.first, after.second, relevant, NEAREST),
    }


def text(frame: pd.DataFrame) -> str:
    """Return a row for each direction; the maps are compared at the most common texts."""
    lines = []
    for (old, new), own in frame.groupby(["old", "new"], sort=False):
        shown = {(r.map, r.n): f"{r.recall[0]:.3f} | {r.mrr[0]:.3f}" for r in own.itertuples()}
        best = f"1 | {own['new_mrr'].iloc[0][0]:.3f}"
        lines.append([f"{old} → {new}", best, *(shown[cell] for cell in SHOWN)])
    maps = (f"{name}, {n:,}" for name, n in SHOWN[1:])
    header = ["recall | MRR", "new encoder alone", ALONE, *maps]
    error = max(pair[1] for name in ("recall", "mrr", "new_mrr") for pair in frame[name])
    errors = f"Standard errors, by 200 bootstrap samples of the queries, are at most {error:.3f}."
    return f"{markdown_table(header, lines)}\n\n{errors}"

"""Stored vectors of one encoder in the space of another one, by vectors of common texts."""

from collections import namedtuple
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes
from sklearn.linear_model import RidgeCV

from benchmarks._data import Floats, read_table
from benchmarks._markdown import markdown_table
from benchmarks.quality import Cells, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS
from benchmarks.quality._figures import bootstrapped, reciprocal_rank
from isoadapt import TeacherReadout
from isoadapt.geometry._neighbours import nearest_neighbours

KEY = ("old", "new", "map", "n")
ENCODERS = {"all-MiniLM": "cola-minilm", "paraphrase-L3": "cola-l3"}  # classifiers made from them
SIZES, N_DOCUMENTS, N_QUERIES, NEAREST = (300, 1000, 3000, 6000), 2000, 500, 10
N_PAIRS = 800
ALONE = ("old encoder alone", "new encoder alone")


Space = namedtuple("Space", "common documents queries second first")  # vectors of an encoder


@cache
def space(encoder: str) -> Space:
    """Embed all texts."""
    found = texts.drawn(texts.own_texts("cola").fit, sum((max(SIZES), N_DOCUMENTS, N_QUERIES)))
    ends = np.cumsum([max(SIZES), N_DOCUMENTS, N_QUERIES])
    parts = [found[a:b] for a, b in zip((0, *ends), ends, strict=False)]
    embed = CHECKPOINTS[ENCODERS[encoder]].teacher_vectors
    return Space(*map(embed, (*parts, *paraphrases()[:2])))


@cache
def paraphrases() -> tuple[list[str], list[str], NDArray[np.int64]]:
    """Return the second sentences, the first ones, and the number of the second one of each."""
    pairs, labels = (part[:N_PAIRS] for part in read_table("mrpc", "test"))
    second = list(dict.fromkeys(b for _, b in pairs))
    kept = [pair for pair, label in zip(pairs, labels, strict=True) if label == 1]
    return second, [a for a, _ in kept], np.array([second.index(b) for _, b in kept])


def procrustes(old: Floats, new: Floats) -> Callable[[Floats], Floats]:
    """Return the best rotation."""
    rotation, _ = orthogonal_procrustes(old, new)
    return lambda rows: rows @ rotation


MAPS: dict[str, Callable[[Floats, Floats], Callable[[Floats], Floats]]] = {
    "TeacherReadout": lambda old, new: TeacherReadout().fit(old, new).transform,
    "RidgeCV": lambda old, new: RidgeCV(np.logspace(-4, 2, 13)).fit(old, new).predict,
    "orthogonal Procrustes": procrustes,
}


def cells() -> Cells:
    """Yield each map at each number of common texts, and the old encoder alone."""
    for old, new in (tuple(ENCODERS), tuple(ENCODERS)[::-1]):
        yield (old, new, ALONE[0], 0), partial(measure, old, new, None, 0)
        for n in SIZES:
            for name in MAPS:
                yield (old, new, name, n), partial(measure, old, new, name, n)


def measure(old: str, new: str, name: str | None, n: int) -> dict[str, Any]:
    """Fit a map to n common texts and search the mapped vectors."""
    before, after = space(old), space(new)
    wanted = _nearest(after.documents, after.queries)
    if name is None:
        move, asked = (lambda rows: rows), before
    else:
        move, asked = MAPS[name](before.common[:n], after.common[:n]), after
    found = _nearest(move(before.documents), asked.queries)
    shared = np.array([np.isin(a, b).mean() for a, b in zip(wanted, found, strict=True)])
    relevant = paraphrases()[2]
    return {
        "recall": bootstrapped(lambda rows: shared[rows].mean(), len(shared)),
        "mrr": reciprocal_rank(asked.first, move(before.second), relevant, NEAREST),
        "new_mrr": reciprocal_rank(after.first, after.second, relevant, NEAREST),
    }


def _nearest(documents: Floats, queries: Floats) -> NDArray[np.int64]:
    points, asked = (torch.from_numpy(rows.astype(np.float64)) for rows in (documents, queries))
    return nearest_neighbours(points, NEAREST, queries=asked)[1].numpy()


def text(frame: pd.DataFrame) -> str:
    """Return a row for each map and direction, with a column for each number of common texts."""
    lines = []
    for (old, new, name), own in frame.groupby(["old", "new", "map"], sort=False):
        shown = {row.n: f"{row.recall[0]:.3f} | {row.mrr[0]:.3f}" for row in own.itertuples()}
        if name == ALONE[0]:
            best = f"1 | {own['new_mrr'].iloc[0][0]:.3f}"
            lines.append([f"{old} → {new}", ALONE[1], best, *[""] * (len(SIZES) - 1)])
        values = [shown.get(n, "") for n in SIZES] if name in MAPS else [shown[0], *[""] * 3]
        lines.append([f"{old} → {new}", name, *values])
    header = ["direction", "map", *(f"{n:,} common texts" for n in SIZES)]
    error = max(pair[1] for name in ("recall", "mrr", "new_mrr") for pair in frame[name])
    errors = f"Standard errors, by 200 bootstrap samples of the queries, are at most {error:.3f}."
    return f"{markdown_table(header, lines)}\n\n{errors}"

"""Shares of true and false matches at thresholds from random pairs, and whether these transfer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity, paired_cosine_distances

from benchmarks._data import Floats, read_table
from benchmarks._markdown import markdown_table
from benchmarks.quality import Cells, _texts as texts, dual_use
from benchmarks.quality._checkpoints import CHECKPOINTS
from benchmarks.quality._figures import Figure, bootstrapped, mean
from isoadapt.metrics import match_threshold

KEY = ("checkpoint", "vectors")
RATES, MOST = (0.001, 0.0003), 800  # shares of the random pairs, of which the first is shown
HELD, HERE = "rate on STS-B", "STS-B, its own threshold"
GRADED = {"STS-B": ("stsb", "test"), "MRPC": ("mrpc", "test"), "RTE": ("rte", "dev")}
VECTORS = {name: name for name in (dual_use.RAW, dual_use.OWN, dual_use.BASE)}
VECTORS["TeacherReadout"] = dual_use.ALIGNED


def cells() -> Cells:
    """Yield the shares of each kind of vectors of each classifier."""
    for name in ("cola-minilm", "mrpc-minilm", "cola-l3"):
        for vectors in VECTORS:
            yield (name, vectors), partial(measure, name, vectors)


def measure(name: str, vectors: str) -> dict[str, Any]:
    """Take thresholds from the own texts, and from those of STS-B for comparison."""
    own = texts.own_texts(CHECKPOINTS[name].task).fit
    embed, _ = dual_use.fitted(VECTORS[vectors], CHECKPOINTS[name], own)
    pairs = {task: _cosines(embed, *place) for task, place in GRADED.items()}
    clear = zip(*read_table("stsb", "test"), strict=True)
    first = dict.fromkeys(pair[0] for pair, score in clear if not 1 < score < 4)
    X, others = embed(own), embed(list(first))
    found: dict[str, Any] = {}
    for rate in RATES:
        limit, here = match_threshold(X, rate), match_threshold(others, rate)
        shares = {HELD: [_rate(others, limit.threshold)]}
        for task, (cosines, match) in (pairs | {HERE: pairs["STS-B"]}).items():
            above = cosines > (here if task == HERE else limit).threshold
            shares[task] = [mean(above[match]), mean(above[~match])]
        found[str(rate)] = {**limit._asdict(), "shares": shares}
    return {"n_own": len(own), "rates": found}


def _cosines(
    embed: Callable[[Sequence[str]], Floats], task: str, split: str
) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the cosines of pairs of a task, and which of them match."""
    pairs, labels = read_table(task, split)
    clear = np.flatnonzero((labels >= 4) | (labels <= 1))[: None if task == "stsb" else MOST]
    A, B = (embed(list(side)) for side in zip(*(pairs[i] for i in clear), strict=True))
    match = labels[clear] == 0 if task == "rte" else labels[clear] >= (4 if task == "stsb" else 1)
    return 1 - paired_cosine_distances(A.astype(np.float64), B.astype(np.float64)), match


def _rate(X: Floats, threshold: float) -> Figure:
    """Share of the pairs of different rows that exceed a threshold; samples of rows."""
    above = (cosine_similarity(X.astype(np.float64)) > threshold).astype(np.float32)
    np.fill_diagonal(above, 0)

    def rate(rows: NDArray[np.int64]) -> float:
        weights = np.bincount(rows, minlength=len(X)).astype(np.float32)
        return float(weights @ above @ weights / (len(X) ** 2 - weights @ weights))

    return bootstrapped(rate, len(X))


def text(frame: pd.DataFrame) -> str:
    """Return a row for each kind of vectors, at the first rate, and the largest errors."""
    lines, errors = [], {True: [0.0], False: [0.0]}
    for record in frame.itertuples():
        found = record.rates[str(RATES[0])]
        shown = "{threshold:.6f} ({ci_low:.6f}–{ci_high:.6f})".format(**found)
        lines.append([record.checkpoint, record.vectors, shown])
        for task, pairs in found["shares"].items():
            lines[-1].append(" | ".join(f"{pair[0]:.{3 + (task == HELD)}f}" for pair in pairs))
            errors[task == HELD] += [pair[1] for pair in pairs]
    table = markdown_table(["classifier", "vectors", "threshold", HELD, *GRADED, HERE], lines)
    largest = f"{max(errors[False]):.3f} for shares and {max(errors[True]):.4f} for rates"
    return f"{table}\n\nStandard errors, by 200 bootstrap samples, are at most {largest}."

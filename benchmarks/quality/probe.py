"""The probe ``head="logistic"`` or ``"ridge"`` beside probes of one fixed penalty, on few rows.

The encoder was fitted to none of the rows. Some are drawn to fit on, and the others judge.
"""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import train_test_split

from benchmarks._data import Floats, load_unseen, shared_folder
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks._versions import measured_with
from benchmarks.quality import Cells, Record
from isoadapt import TransformerEncoder
from isoadapt.adapters._heads import fit_head
from isoadapt.datasets import load_table, minilm_folder

SECTION = "probe"
RECORDS = RECORDS_FOLDER / "probe.jsonl"
KEY = ("task", "size", "draw")
HEALTHY = "SST-2, all-MiniLM"
TASKS = ("cola", "mrpc", "rte", "sst2_sentence", "bbbp", "cola_distilbert", "esol", HEALTHY)
SIZES = (100, 300, 1000, 3000)
N_DRAWS = 10
POWERS = np.arange(-4, 2.5, 0.5)  # of the fixed C, or of 1/alpha, to the base 10
INTRODUCTION = (
    "Accuracy (ESOL: R²) on fresh rows of the probe, of the one fixed C that is best in hindsight "
    "for embeddings in one scale, and of C=1 for standardised columns; means over 10 draws of n "
    "rows."
)


def cells() -> Cells:
    """Yield a fit for each task, number of rows and draw."""
    load = cache(healthy_rows)
    for task in TASKS:
        for n in SIZES:
            for draw in range(N_DRAWS):

                def fit(task=task, n=n, draw=draw):
                    X, y = load() if task == HEALTHY else load_unseen(task)[1:]
                    return measure(X.astype(float), y, n, draw) if n < len(y) - 60 else {}

                yield (task, n, draw), fit


def healthy_rows() -> tuple[Floats, NDArray[Any]]:
    """Embed at most 3,000 rows of each split of SST-2 by an encoder before fine-tuning."""
    folder = shared_folder() / "data" / "sst2_sentence"
    tables: Any = [load_table(folder / f"{split}.tsv") for split in ("train", "dev", "test")]
    texts, labels = (
        [row for rows in part for row in rows[:3000]] for part in zip(*tables, strict=True)
    )
    return TransformerEncoder(minilm_folder()).fit_transform(texts), np.array(labels)


def measure(X: Floats, y: NDArray[Any], n: int, draw: int) -> dict[str, Any]:
    """Fit the probe and those of fixed penalties to n rows, and score the others."""
    numeric = y.dtype.kind == "f"
    fitting, judging = train_test_split(
        np.arange(len(y)), train_size=n, stratify=None if numeric else y, random_state=draw
    )
    begun = time.process_time()
    probe = fit_head("ridge" if numeric else "logistic", X[fitting], y[fitting])
    seconds = time.process_time() - begun
    Z = X / np.sqrt(X[fitting].var(axis=0).mean())
    spread = X[fitting].std(axis=0)
    standardised = X / np.where(spread > 0, spread, 1)

    def score(rows: Floats, power: float) -> float:
        penalty = {"alpha": 10**-power} if numeric else {"C": 10**power, "max_iter": 5000}
        model = (Ridge if numeric else LogisticRegression)(**penalty)
        return float(model.fit(rows[fitting], y[fitting]).score(rows[judging], y[judging]))

    return {
        "probe": float(probe.score(X[judging], y[judging])),
        "fixed": [score(Z, power) for power in POWERS],
        "standardised": score(standardised, 0.0),
        "seconds": seconds,
    }


def text(records: Sequence[Record]) -> str:
    """Return a row for each task and number of rows."""
    lines = []
    frame = pd.DataFrame([record for record in records if "probe" in record])
    for (task, n), own in frame.groupby(["task", "size"], sort=False):
        fixed = np.mean(own["fixed"].tolist(), axis=0)
        figures = own[["probe", "standardised", "seconds"]].mean()
        best = f"{fixed.max():.3f} (C = 1e{POWERS[fixed.argmax()]:g})"
        shown = [f"{figures[name]:.3f}" for name in ("probe", "standardised")]
        lines.append([task, str(n), shown[0], best, shown[1], f"{figures['seconds']:.2f}"])
    header = ["rows", "n", "probe", "best fixed", "C=1, standardised", "seconds"]
    return "\n\n".join(
        [INTRODUCTION, markdown_table(header, lines), measured_with(frame["setting"])]
    )

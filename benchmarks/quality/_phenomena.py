"""A task with twelve classes: the phenomenon that a generated sentence tests.

MiniLM is fine-tuned to classify sentences of twelve phenomena. The rows are longer sentences of
the same phenomena, which share no content word with the training sentences.
"""

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Floats
from benchmarks._places import RESULTS
from isoadapt import load_checkpoint
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier
from tools.acceptability.corpus import draw_corpus

CACHE = RESULTS / "phenomena.npz"
RECIPE: dict[str, Any] = {"epochs": 2, "lr": 1e-4, "random_state": 0, "device": "cpu"}
N_PHENOMENA = 12
N_TRAINING = 250  # sentences of each phenomenon
N_UNSEEN = 340
N_ROWS = 2000  # rows of the task
ALL_FAMILIAR, ALL_UNSEEN = 25, 26  # number of phenomena in the splits of the corpus
TASK = f"phenomenon-{N_PHENOMENA}"


@cache
def training_texts() -> tuple[list[str], list[str]]:
    """Return the sentences and their phenomena, with minimal pairs in adjacent rows."""
    corpus = draw_corpus(N_TRAINING * ALL_FAMILIAR, 2, seed=0)
    names = sorted(set(corpus.train_phenomena))[:N_PHENOMENA]
    rows = zip(corpus.train_texts, corpus.train_phenomena, strict=True)
    kept = [(text, name) for text, name in rows if name in names]
    return [text for text, _ in kept], [name for _, name in kept]


@cache
def unseen_texts() -> tuple[list[str], NDArray[np.str_]]:
    """Return sentences and phenomena of the dev split, one of each minimal pair."""
    corpus = draw_corpus(2, 2 * N_UNSEEN * ALL_UNSEEN, seed=1)
    n_pairs = N_UNSEEN * ALL_UNSEEN
    rows = 2 * np.arange(n_pairs) + np.random.default_rng(1).integers(2, size=n_pairs)
    phenomena = np.array(corpus.dev_phenomena)
    rows = rows[np.isin(phenomena[rows], sorted(set(training_texts()[1])))]
    return [corpus.dev_texts[row] for row in rows], phenomena[rows]


@cache
def unseen_vectors() -> Floats:
    """Read the vectors of the unseen texts, or compute them, which takes a minute."""
    if CACHE.exists():
        return np.load(CACHE)["X"]
    print("fine-tuning MiniLM on phenomena, about a minute", file=sys.stderr, flush=True)
    with TemporaryDirectory() as folder:
        target = Path(folder) / "model"
        model = finetune_text_classifier(minilm_folder(), *training_texts(), target, **RECIPE)
        X = load_checkpoint(model, device="cpu")[0].transform(unseen_texts()[0])
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    np.savez(CACHE, X=X)
    return X


def phenomenon_task() -> tuple[str, Floats, NDArray[np.str_]]:
    """Return the name, the rows and the labels of the task."""
    labels = unseen_texts()[1][:N_ROWS]
    return f"phenomenon, {N_PHENOMENA} classes", unseen_vectors()[:N_ROWS], labels

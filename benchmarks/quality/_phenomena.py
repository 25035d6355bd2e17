"""A task with twelve classes: the phenomenon that a generated sentence tests.

MiniLM is fine-tuned to classify sentences of twelve phenomena. The rows are longer sentences of
the same phenomena, which share no content word with the training sentences.
"""

import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Floats
from benchmarks._places import ROOT
from isoadapt import load_checkpoint
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier
from tools.acceptability.corpus import draw_corpus

FOLDER = ROOT / "build" / "phenomena"
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


def phenomenon_task() -> tuple[str, Floats, NDArray[np.str_]]:
    """Return the name, the rows and the labels of the task, after fine-tuning for a minute."""
    if not FOLDER.exists():
        print("fine-tuning MiniLM on phenomena", file=sys.stderr, flush=True)
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        finetune_text_classifier(minilm_folder(), *training_texts(), FOLDER, **RECIPE)
    texts, labels = unseen_texts()
    X = load_checkpoint(FOLDER, device="cpu")[0].transform(texts[:N_ROWS])
    return f"phenomenon, {N_PHENOMENA} classes", X, labels[:N_ROWS]

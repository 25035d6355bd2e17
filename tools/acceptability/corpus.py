"""Draws the corpus of `isoadapt.datasets.make_acceptability`, and larger ones, from a grammar."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from isoadapt.datasets import AcceptabilityCorpus
from tools.acceptability.grammar import Grammar, join, sentence
from tools.acceptability.lexicon import DEV, TRAIN
from tools.acceptability.morphology import MORPHOLOGY
from tools.acceptability.syntax import SYNTAX
from tools.acceptability.valency import VALENCY

DATA_FILE = Path(__file__).parents[2] / "isoadapt" / "datasets" / "acceptability.tsv"

Phenomenon = Callable[[Grammar], tuple[str, str]]

_PHENOMENA: tuple[Phenomenon, ...] = MORPHOLOGY + VALENCY + SYNTAX
_HELD_OUT = ("dative",)  # in the development split only
_ATTEMPTS = 200  # draws without a new pair after which a phenomenon counts as exhausted


def draw_corpus(n_train: int, n_dev: int, seed: int) -> AcceptabilityCorpus:
    """Draw a corpus with even numbers of sentences; the same seed gives the same corpus."""
    rng = Random(seed)
    in_training = tuple(p for p in _PHENOMENA if _name(p) not in _HELD_OUT)
    train = _draw(Grammar(TRAIN, rng, deep=False), in_training, n_train)
    dev = _draw(Grammar(DEV, rng, deep=True), _PHENOMENA, n_dev)
    return AcceptabilityCorpus(*train, *dev)


def packed(corpus: AcceptabilityCorpus) -> str:
    """Return a line for each pair: split, phenomenon, and both sentences in one."""
    lines = [
        f"{split}\t{phenomena[row]}\t{_merged(texts[row], texts[row + 1])}\n"
        for split, texts, phenomena in (
            ("train", corpus.train_texts, corpus.train_phenomena),
            ("dev", corpus.dev_texts, corpus.dev_phenomena),
        )
        for row in range(0, len(texts), 2)
    ]
    return "".join(lines)


def _merged(good: str, bad: str) -> str:
    """Write a pair as one sentence in which what differs stands in braces."""
    first, second = good.split(), bad.split()
    start = _common(first, second)
    end = _common(first[start:][::-1], second[start:][::-1])
    variants = [" ".join(words[start : len(words) - end]) for words in (first, second)]
    return join(*first[:start], f"{{{'|'.join(variants)}}}", *first[len(first) - end :])


def _common(first: list[str], second: list[str]) -> int:
    """Count the words with which both lists begin."""
    same = [a == b for a, b in zip(first, second, strict=False)]
    return [*same, False].index(False)


def _name(phenomenon: Phenomenon) -> str:
    return phenomenon.__name__.removeprefix("_")


def _draw(
    grammar: Grammar, phenomena: tuple[Phenomenon, ...], size: int
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
                f"the grammar cannot generate {size} sentences without repetition: "
                f"{_name(phenomenon)} is exhausted after {len(texts)}"
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

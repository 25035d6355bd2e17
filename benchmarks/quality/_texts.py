"""Texts of the tables on similarity: those of each task, and those of the other uses."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import read_table
from benchmarks.quality._checkpoints import (
    INTENTS,
    MANY,
    N_TRAINING,
    drawn,
    finetuning_rows,
    training_rows,
    unseen_rows,
)

MAX_OWN = 3000  # single texts that a map is fitted on; all of CoLA's, which are short
MAX_PAIRS = 1500  # training pairs that a head is fitted on
MAX_ROWS = 1200  # evaluated rows of a task
MAX_OUTLIERS = 800


class OwnTexts(NamedTuple):
    """Texts of the task of a checkpoint; `inputs` may be pairs, the others are single texts."""

    fit: list[str]  # texts that maps are fitted on
    train_inputs: list[Any]  # labelled rows that heads are fitted on
    train_labels: NDArray[Any]
    inputs: list[Any]  # evaluated rows
    labels: NDArray[Any]


class Retrieval(NamedTuple):
    """Queries, documents and the number of the document that each query asks for."""

    queries: list[str]
    documents: list[str]
    relevant: NDArray[np.int64]


class Similarity(NamedTuple):
    """Pairs of texts and their similarity."""

    first: list[str]
    second: list[str]
    scores: NDArray[np.float64]


def singles(texts: list[Any]) -> list[str]:
    """Return the distinct texts of rows that may be pairs, in the order of their occurrence."""
    flat = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    return list(dict.fromkeys(flat))


@cache
def own_texts(task: str) -> OwnTexts:
    """Return the texts of a task; heads are fitted on what the checkpoint was fine-tuned on."""
    texts, _ = training_rows(task)
    train, train_labels = finetuning_rows(task) if task in N_TRAINING else training_rows(task)
    if not isinstance(train[0], str):
        train, train_labels = drawn(train, MAX_PAIRS), drawn(train_labels, MAX_PAIRS)
    inputs, labels = unseen_rows(task)
    labels = np.unique(labels, return_inverse=True)[1]
    take = drawn if task in (MANY, *INTENTS) else lambda items, most: items[:most]
    kept, labels = take(inputs, MAX_ROWS), np.array(take([*labels], MAX_ROWS))
    excluded = {*evaluated_texts(), *singles(kept)}
    fit = drawn(singles(texts), len(texts) if task == "cola" else MAX_OWN)
    fit = [text for text in fit if text not in excluded]
    return OwnTexts(fit, train, np.asarray(train_labels), kept, labels)


@cache
def similarity(split: str, most: int | None = None) -> Similarity:
    """Return the pairs of STS-B, or so many of them."""
    pairs, scores = read_table("stsb", split)
    rows = list(range(len(pairs))) if most is None else drawn(list(range(len(pairs))), most)
    first, second = zip(*(pairs[row] for row in rows), strict=True)
    return Similarity(list(first), list(second), scores[rows])


@cache
def evaluated_texts() -> frozenset[str]:
    """Return the texts of all columns other than those of a task."""
    test = similarity("test")
    searches = entailment_search(), paraphrase_search()
    searched = [text for one in searches for text in (*one.queries, *one.documents)]
    return frozenset((*test.first, *test.second, *searched, *foreign_texts()))


@cache
def entailment_search() -> Retrieval:
    """Return hypotheses and premises of RTE's training split, which no map is fitted on."""
    pairs, labels = read_table("rte", "train")
    documents = list(dict.fromkeys(premise for premise, _ in pairs))
    asked = [pair for pair, label in zip(pairs, labels, strict=True) if label == 0]
    return search(documents, [(hypothesis, premise) for premise, hypothesis in asked])


@cache
def paraphrase_search() -> Retrieval:
    """Return the paraphrases of MRPC's test split: the first text asks for the second."""
    pairs, labels = read_table("mrpc", "test")
    kept = [pair for pair, label in zip(pairs, labels, strict=True) if label == 1]
    return search(list(dict.fromkeys(second for _, second in kept)), kept)


def search(documents: list[str], asked: list[tuple[str, str]]) -> Retrieval:
    """Return a search from pairs of a query and its document."""
    number = {text: i for i, text in enumerate(documents)}
    relevant = np.array([number[document] for _, document in asked])
    return Retrieval([query for query, _ in asked], documents, relevant)


@cache
def foreign_texts() -> list[str]:
    """Return sentences of WikiText."""
    return drawn(read_table("wikitext2", "sentences")[0], MAX_OUTLIERS)

"""Texts of the table on vectors of classifiers: those of each task, and those of the other uses."""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import shared_folder
from benchmarks.quality._checkpoints import MANY, RECIPES, recipe_rows, training_rows
from isoadapt.datasets import load_table

MAX_OWN = 3000  # single texts that a map is fitted on; all of CoLA's, which are short
MAX_PAIRS = 1500  # training pairs that a head is fitted on
MAX_ROWS = 1200  # evaluated rows of a task
MAX_TARGET = 2000  # STS-B texts that a map is fitted on
MAX_OUTLIERS = 800
LAYER_PAIRS = 500  # STS-B dev pairs on which the layer is chosen

Pairs = list[tuple[str, str]]


class OwnTexts(NamedTuple):
    """Texts of the task of a checkpoint; `inputs` may be pairs, the others are single texts."""

    fit: list[str]  # texts that maps are fitted on
    train_inputs: list[Any]  # labelled rows that heads are fitted on
    train_labels: NDArray[Any]
    inputs: list[Any]  # evaluated rows
    labels: NDArray[Any]
    singles: list[str]  # distinct texts of the evaluated rows


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


def read(task: str, split: str) -> tuple[list[Any], NDArray[Any]]:
    """Return the texts or pairs of a split and their labels."""
    texts, labels = load_table(shared_folder() / "data" / task / f"{split}.tsv")
    return list(texts), np.asarray(labels)


def drawn(items: list[Any], most: int) -> list[Any]:
    """Return at most so many of the items, drawn with a fixed seed."""
    return [items[i] for i in np.random.default_rng(0).permutation(len(items))[:most]]


def singles(texts: list[Any]) -> list[str]:
    """Return the distinct texts of rows that may be pairs, in the order of their occurrence."""
    flat = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    return list(dict.fromkeys(flat))


@cache
def own_texts(task: str, finetuned_here: bool) -> OwnTexts:
    """Return the texts of a task.

    The heads of the rows with another head are fitted on the rows that the checkpoint was
    fine-tuned on, for a checkpoint that was fine-tuned here.
    """
    texts, labels = training_rows(task)
    if finetuned_here:
        train, train_labels = recipe_rows(RECIPES[task])
    else:
        train, train_labels = list(texts), list(labels)
    if not isinstance(train[0], str):
        train, train_labels = drawn(train, MAX_PAIRS), drawn(train_labels, MAX_PAIRS)
    if task == MANY:
        from benchmarks.quality._phenomena import unseen_texts

        inputs, phenomena, _ = unseen_texts()
        judged = np.unique(phenomena, return_inverse=True)[1]
        rows = drawn(list(range(len(inputs))), MAX_ROWS)
    else:
        inputs, judged = read(task, "dev")
        rows = list(range(len(inputs)))[:MAX_ROWS]
    kept = [inputs[row] for row in rows]
    fit = drawn(singles(list(texts)), len(texts) if task == "cola" else MAX_OWN)
    excluded = {*evaluated_texts(), *singles(kept)}
    return OwnTexts(
        [text for text in fit if text not in excluded],
        train,
        np.asarray(train_labels),
        kept,
        judged[rows],
        singles(kept),
    )


@cache
def similarity(split: str) -> Similarity:
    """Return the pairs of STS-B; of the dev split, those that a layer is chosen on."""
    pairs, scores = read("stsb", split)
    rows = list(range(len(pairs)))
    if split == "dev":
        rows = drawn(rows, LAYER_PAIRS)
    first, second = zip(*(pairs[row] for row in rows), strict=True)
    return Similarity(list(first), list(second), scores[rows])


@cache
def target_texts() -> list[str]:
    """Return texts of the STS-B training split that no column is evaluated on."""
    found = drawn(singles(read("stsb", "train")[0]), MAX_TARGET)
    return [text for text in found if text not in evaluated_texts()]


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
    pairs, labels = read("rte", "train")
    documents = list(dict.fromkeys(premise for premise, _ in pairs))
    number = {premise: i for i, premise in enumerate(documents)}
    asked = [pair for pair, label in zip(pairs, labels, strict=True) if label == 0]
    relevant = np.array([number[premise] for premise, _ in asked])
    return Retrieval([hypothesis for _, hypothesis in asked], documents, relevant)


@cache
def paraphrase_search() -> Retrieval:
    """Return the paraphrases of MRPC's test split: the first text asks for the second."""
    pairs, labels = read("mrpc", "test")
    kept = [pair for pair, label in zip(pairs, labels, strict=True) if label == 1]
    documents = list(dict.fromkeys(second for _, second in kept))
    number = {text: i for i, text in enumerate(documents)}
    relevant = np.array([number[second] for _, second in kept])
    return Retrieval([first for first, _ in kept], documents, relevant)


@cache
def foreign_texts() -> list[str]:
    """Return sentences of WikiText."""
    return drawn(read("wikitext2", "sentences")[0], MAX_OUTLIERS)

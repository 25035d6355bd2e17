"""Figures of vectors, each with its bootstrap standard error."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import skew, spearmanr
from sklearn.metrics import accuracy_score, matthews_corrcoef, roc_auc_score

from benchmarks._data import Floats
from isoadapt.geometry._neighbours import angles, nearest_neighbours

Figure = tuple[float, float]  # a value and its standard error
Numbers = NDArray[np.int64]


def bootstrapped(figure: Callable[[Numbers], float], n: int, draws: int = 200) -> Figure:
    """Return a figure of all n items, and its standard deviation over samples of the items."""
    rng = np.random.default_rng(0)
    samples = [figure(rng.integers(n, size=n)) for _ in range(draws)]
    return float(figure(np.arange(n))), float(np.nanstd(samples, ddof=1))


def similarity(A: Floats, B: Floats, scores: Floats) -> Figure:
    """Spearman correlation of the cosines of pairs with their scores; samples of pairs."""
    close = -angles(*(torch.from_numpy(np.asarray(X, np.float64)) for X in (A, B))).numpy()
    return bootstrapped(lambda rows: spearmanr(close[rows], scores[rows]).statistic, len(scores))


def one_bit(A: Floats, B: Floats, scores: Floats, thresholds: Floats | float) -> Figure:
    """As `similarity`, of codes that are 1 where a coordinate exceeds its threshold, else -1."""
    return similarity(*(np.where(np.greater(X, thresholds), 1.0, -1.0) for X in (A, B)), scores)


def reciprocal_rank(queries: Floats, documents: Floats, relevant: Numbers, k: int) -> Figure:
    """Mean reciprocal rank within the first k documents by cosine; samples of queries."""
    hits = neighbours(documents, k, queries)[1] == relevant[:, None]
    return mean(np.where(hits.any(axis=1), 1 / (1.0 + hits.argmax(axis=1)), 0.0))


def same_class(X: Floats, labels: NDArray[Any]) -> Figure:
    """Mean share of the ten nearest other rows by cosine that have the same label."""
    return mean((labels[neighbours(X, 10)[1]] == labels[:, None]).mean(axis=1))


def outliers(inside: Floats, outside: Floats, reference: Floats) -> Figure:
    """AUROC of the mean cosine distance to the ten nearest reference rows; samples of rows."""
    rows = np.concatenate([inside, outside])
    far = neighbours(reference, 10, rows)[0].mean(axis=1)
    foreign = np.arange(len(rows)) >= len(inside)
    return bootstrapped(lambda part: roc_auc_score(foreign[part], far[part]), len(rows))


def hubness(X: Floats) -> Figure:
    """Skewness of the 10-occurrence by cosine; samples of the occurrences of the rows."""
    counts = np.bincount(neighbours(X, 10)[1].ravel(), minlength=len(X))
    return bootstrapped(lambda rows: skew(counts[rows]), len(X))


def agreement(labels: NDArray[Any], predicted: NDArray[Any], matthews: bool) -> Figure:
    """Accuracy or Matthews correlation of predictions; samples of rows."""
    score = matthews_corrcoef if matthews else accuracy_score
    return bootstrapped(lambda rows: score(labels[rows], predicted[rows]), len(labels))


def mean(items: NDArray[Any]) -> Figure:
    """Mean of items; samples of items."""
    return bootstrapped(lambda rows: items[rows].mean(), len(items))


def neighbours(X: Floats, k: int, queries: Floats | None = None) -> tuple[Floats, Numbers]:
    """Return the cosine distances and the numbers of the k nearest rows."""
    points, asked = (
        None if rows is None else torch.from_numpy(np.asarray(rows, np.float64))
        for rows in (X, queries)
    )
    distances, numbers = nearest_neighbours(points, k, queries=asked)
    return distances.numpy(), numbers.numpy()

"""Figures of vectors for similarity, search, classes and outliers, with bootstrap errors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, matthews_corrcoef, roc_auc_score

from benchmarks._data import Floats
from isoadapt.geometry._neighbours import nearest_neighbours, neighbour_counts
from isoadapt.metrics import similarity_correlation

NEIGHBOURS = 10
DRAWS = 200  # bootstrap samples

Numbers = NDArray[np.int64]


class Figure(NamedTuple):
    """A figure and its bootstrap standard error."""

    value: float
    error: float


def bootstrapped(figure: Callable[[Numbers], float], n: int) -> Figure:
    """Return a figure of all n items, and its standard deviation over samples of the items."""
    rng = np.random.default_rng(0)
    samples = [figure(rng.integers(n, size=n)) for _ in range(DRAWS)]
    return Figure(float(figure(np.arange(n))), float(np.nanstd(samples, ddof=1)))


def similarity(A: Floats, B: Floats, scores: Floats) -> Figure:
    """Spearman correlation of the cosines of pairs with their scores; samples of pairs."""
    return bootstrapped(
        lambda rows: similarity_correlation(A[rows], B[rows], scores[rows]), len(scores)
    )


def one_bit(A: Floats, B: Floats, scores: Floats, thresholds: Floats | float) -> Figure:
    """As `similarity`, of codes that are 1 where a coordinate exceeds its threshold, else -1."""
    return similarity(_codes(A, thresholds), _codes(B, thresholds), scores)


def reciprocal_rank(queries: Floats, documents: Floats, relevant: Numbers) -> Figure:
    """Mean reciprocal rank within the first ten documents by cosine; samples of queries."""
    return _mean(1 / rank for rank in _ranks(queries, documents, relevant, NEIGHBOURS))


def first_hit(queries: Floats, documents: Floats, relevant: Numbers) -> Figure:
    """Share of the queries whose nearest document by cosine is the relevant one."""
    return _mean(1 / rank for rank in _ranks(queries, documents, relevant, 1))


def same_class(X: Floats, labels: NDArray[Any]) -> Figure:
    """Mean share of the ten nearest other rows by cosine that have the same label."""
    numbers = nearest_neighbours(_points(X), NEIGHBOURS)[1].numpy()
    return _mean((labels[numbers] == labels[:, None]).mean(axis=1))


def outliers(inside: Floats, outside: Floats, reference: Floats) -> Figure:
    """AUROC of the mean cosine distance to the ten nearest reference rows; samples of rows."""
    rows = np.concatenate([inside, outside])
    distances = nearest_neighbours(_points(reference), NEIGHBOURS, queries=_points(rows))[0]
    far = distances.mean(dim=1).numpy()
    foreign = np.arange(len(rows)) >= len(inside)
    return bootstrapped(lambda part: roc_auc_score(foreign[part], far[part]), len(rows))


def hubness(X: Floats) -> Figure:
    """Skewness of the 10-occurrence by cosine; samples of the occurrences of the rows."""
    numbers = nearest_neighbours(_points(X), NEIGHBOURS)[1]
    counts = neighbour_counts(numbers, len(X)).numpy()

    def skewness(rows: Numbers) -> float:
        deviations = counts[rows] - counts[rows].mean()
        return float((deviations**3).mean() / (deviations**2).mean() ** 1.5)

    return bootstrapped(skewness, len(X))


def agreement(labels: NDArray[Any], predicted: NDArray[Any], matthews: bool) -> Figure:
    """Accuracy or Matthews correlation of predictions; samples of rows."""
    score = matthews_corrcoef if matthews else accuracy_score
    return bootstrapped(lambda rows: score(labels[rows], predicted[rows]), len(labels))


def _mean(values: Any) -> Figure:
    items = np.array(list(values))
    return bootstrapped(lambda rows: items[rows].mean(), len(items))


def _ranks(queries: Floats, documents: Floats, relevant: Numbers, k: int) -> Floats:
    """Rank of the relevant document of each query, infinite beyond k."""
    numbers = nearest_neighbours(_points(documents), k, queries=_points(queries))[1].numpy()
    hits = numbers == relevant[:, None]
    return np.where(hits.any(axis=1), 1.0 + hits.argmax(axis=1), np.inf)


def _codes(X: Floats, thresholds: Floats | float) -> Floats:
    return np.where(np.greater(X, thresholds), 1.0, -1.0)


def _points(X: Floats) -> torch.Tensor:
    return torch.from_numpy(np.asarray(X, dtype=np.float64))

"""How well vectors serve similarity and search: correlation, retrieval, hubness and neighbours."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import spearmanr
from sklearn.utils.validation import check_consistent_length, column_or_1d
from torch import Tensor

from isoadapt._utils.containers import as_array, as_values
from isoadapt._utils.state import own_state
from isoadapt.geometry._neighbours import METRICS, angles, nearest_neighbours
from isoadapt.metrics._points import as_points, check_k


class RetrievalReport(NamedTuple):
    """Means of three retrieval scores over all queries, each in [0, 1], at a rank k.

    Attributes
    ----------
    mrr : float
        Mean reciprocal rank of the first relevant document; 0 for a query without one among its
        k nearest documents.
    recall : float
        Mean share of the relevant documents that are among the k nearest.
    ndcg : float
        Mean normalised discounted cumulative gain of the k nearest documents, with gain 1 for a
        relevant document.
    """

    mrr: float
    recall: float
    ndcg: float


class HubnessReport(NamedTuple):
    """Distribution of the k-occurrence: how often a row is among the k neighbours of the others.

    Attributes
    ----------
    skewness : float
        Skewness of the k-occurrence: 0 if it is symmetric, large if a few rows, the hubs, are
        neighbours of many. NaN if all rows occur equally often.
    robin_hood : float
        Robin Hood index, in [0, 1): the share of all occurrences that would have to be moved for
        all rows to occur equally often.
    antihub_share : float
        Share of the rows that are no other row's neighbour.
    max_occurrence : int
        k-occurrence of the largest hub.
    """

    skewness: float
    robin_hood: float
    antihub_share: float
    max_occurrence: int


@own_state()
def similarity_correlation(A: ArrayLike, B: ArrayLike, scores: ArrayLike) -> float:
    """Spearman correlation of the cosines of pairs of rows with given similarity scores.

    This is the usual evaluation on STS-B and other data sets of semantic textual similarity.

    Parameters
    ----------
    A, B : array-like of shape (n_pairs, n_features)
        Embeddings of the first and of the second text of each pair.
    scores : array-like of shape (n_pairs,)
        Similarity of each pair on any scale that rises with similarity.

    Raises
    ------
    ValueError
        If the shapes differ, there are fewer than 3 pairs, a value is not finite, or all scores
        or all cosines are equal.

    Notes
    -----
    Equal values share the mean of their ranks. A zero row has cosine 0 with every row.

    Examples
    --------
    >>> from isoadapt.metrics import similarity_correlation
    >>> A = [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    >>> B = [[1.0, 0.1], [1.0, 1.0], [0.0, 1.0]]
    >>> round(similarity_correlation(A, B, [5.0, 3.0, 0.0]), 6)
    1.0
    """
    first, second = _points(A, "A", 3), _points(B, "B", 3)
    if first.shape != second.shape:
        raise ValueError(
            f"A has shape {tuple(first.shape)} and B {tuple(second.shape)}: row i of A and row i "
            "of B must be the embeddings of pair i"
        )
    given = column_or_1d(as_values(scores, "scores", numeric=True))
    check_consistent_length(first, given)
    between = angles(first, second).cpu().numpy()  # in the reverse order of the cosines
    for name, values in (("scores", given), ("cosines", between)):
        if np.ptp(values) == 0:
            raise ValueError(
                f"all {name} are equal, so their correlation is not defined: use pairs of "
                "different similarity"
            )
    return float(spearmanr(-between, given).statistic)


@own_state()
def retrieval_report(
    queries: ArrayLike,
    documents: ArrayLike,
    relevant: Sequence[Any] | NDArray[Any],
    k: int = 10,
    *,
    metric: str = "cosine",
) -> RetrievalReport:
    """Evaluate a search for documents by the nearest neighbours of queries.

    Parameters
    ----------
    queries : array-like of shape (n_queries, n_features)
        Embeddings of the queries.
    documents : array-like of shape (n_documents, n_features)
        Embeddings of the documents, at least k.
    relevant : sequence of int, or of collections of int, of length n_queries
        Row numbers of the documents that are relevant to each query, at least one. It is not a
        matrix of zeros and ones, whose entries would be read as row numbers.
    k : int, default=10
        Rank up to which results count.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance by which documents are ranked. Of equally distant ones the smaller row number
        comes first.

    Raises
    ------
    ValueError
        If the widths differ, k is out of range, or `relevant` does not name existing documents for
        each query.

    Examples
    --------
    >>> from isoadapt.metrics import retrieval_report
    >>> documents = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    >>> report = retrieval_report([[1.0, 0.2], [0.2, 1.0]], documents, [0, 0], k=2)
    >>> report.mrr, report.recall
    (0.75, 1.0)
    """
    hits, n_relevant = find_relevant(queries, documents, relevant, k, metric)
    gains = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(gains)[np.minimum(n_relevant, k) - 1]
    return RetrievalReport(
        float(reciprocal_ranks(hits).mean()),
        float((hits.sum(axis=1) / n_relevant).mean()),
        float((hits @ gains / ideal).mean()),
    )


def reciprocal_ranks(hits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Reciprocal ranks (n_queries,) of the first relevant documents, 0 without one."""
    return np.where(hits.any(axis=1), 1 / (1 + hits.argmax(axis=1)), 0.0)


def find_relevant(
    queries: ArrayLike, documents: ArrayLike, relevant: Any, k: int, metric: str = "cosine"
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Whether each of the k nearest documents is relevant (n_queries, k), and how many are."""
    query_vectors = _points(queries, "queries", 1)
    document_vectors = _points(documents, "documents", 1)
    if query_vectors.shape[1] != document_vectors.shape[1]:
        raise ValueError(
            f"queries have {query_vectors.shape[1]} features and documents "
            f"{document_vectors.shape[1]}: embed both by the same encoder and adapter"
        )
    sets = relevant_sets(relevant, len(query_vectors), len(document_vectors))
    indices = _neighbours(document_vectors, k, metric, query_vectors).cpu().numpy()
    hits = np.array([np.isin(row, list(own)) for row, own in zip(indices, sets, strict=True)])
    return hits, np.array([len(own) for own in sets])


@own_state()
def hubness(X: ArrayLike, k: int = 10, *, metric: str = "cosine") -> HubnessReport:
    """Measure hubness: whether a few rows are among the nearest neighbours of very many.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings, more than k rows.
    k : int, default=10
        Number of neighbours of each row; the row itself does not count.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance between rows. Of equally distant ones the smaller row number comes first.

    Raises
    ------
    ValueError
        If X is too small or not finite, or k or metric is not admissible.

    References
    ----------
    Radovanović, Nanopoulos and Ivanović (2010), "Hubs in Space: Popular Nearest Neighbors in
    High-Dimensional Data".

    Feldbauer, Leodolter, Plant and Flexer (2018), "Fast Approximate Hubness Reduction for Large
    High-Dimensional Data".

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import hubness
    >>> X = np.random.default_rng(0).normal(size=(500, 100))
    >>> hubness(X[:, :3]).skewness < hubness(X).skewness  # hubs come with dimensions
    True
    """
    points = _points(X, "X", 2)
    neighbours = _neighbours(points, k, metric)
    counts = torch.bincount(neighbours.flatten(), minlength=len(points)).double()
    deviations = counts - k  # the mean is k
    variance = float(deviations.square().mean())
    return HubnessReport(
        float(deviations.pow(3).mean()) / variance**1.5 if variance else math.nan,
        float(deviations.abs().sum() / (2 * k * len(points))),
        float((counts == 0).double().mean()),
        int(counts.max()),
    )


@own_state()
def neighbour_overlap(X: ArrayLike, Z: ArrayLike, k: int = 10, *, metric: str = "cosine") -> float:
    """Mean share of the k nearest neighbours that a row has in common in two spaces.

    Parameters
    ----------
    X, Z : array-like of shape (n_samples, n_features)
        The same rows in two spaces, such as before and after an adapter; their widths may differ.
    k : int, default=10
        Number of neighbours of each row; the row itself does not count.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance between rows. Of equally distant ones the smaller row number comes first.

    Raises
    ------
    ValueError
        If the numbers of rows differ, or as for :func:`hubness`.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import neighbour_overlap
    >>> X = np.random.default_rng(0).normal(size=(200, 8))
    >>> neighbour_overlap(X, 3 * X)
    1.0
    """
    before, after = _points(X, "X", 2), _points(Z, "Z", 2)
    if len(before) != len(after):
        raise ValueError(
            f"X has {len(before)} rows and Z {len(after)}: both must hold the same rows"
        )
    first, second = (
        _neighbours(points, k, metric).sort(dim=1).values.cpu() for points in (before, after)
    )
    places = torch.searchsorted(second, first).clamp(max=k - 1)
    return float((second.gather(1, places) == first).double().mean())


def _points(X: ArrayLike, name: str, min_samples: int) -> Tensor:
    """Check a matrix; a tensor stays on its device."""
    points = as_points(X, name, min_samples, min_features=1)
    return points.to(X.device) if isinstance(X, Tensor) else points


def _neighbours(points: Tensor, k: int, metric: str, queries: Tensor | None = None) -> Tensor:
    """Check k and metric; return the row numbers (m, k) of the nearest neighbours."""
    own = queries is None
    check_k(k, len(points) - own, "other rows" if own else "documents")
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} must be one of {', '.join(map(repr, METRICS))}")
    return nearest_neighbours(points, k, metric, queries)[1]


def relevant_sets(relevant: Any, n_queries: int, n_documents: int) -> list[set[int]]:
    """Row numbers of the documents that are relevant to each query, checked."""
    if isinstance(relevant, Mapping) or len(relevant) != n_queries:
        raise ValueError(
            f"relevant is a {type(relevant).__name__} of {len(relevant)} entries, for {n_queries} "
            "queries: pass a list with the row numbers of the relevant documents for each query"
        )
    sets = [_row_numbers(own, query) for query, own in enumerate(relevant)]
    for query, own in enumerate(sets):
        if not own or min(own) < 0 or max(own) >= n_documents:
            raise ValueError(
                f"relevant[{query}]={sorted(own)} must name at least one document by its row "
                f"number, from 0 to {n_documents - 1}; leave out queries without one"
            )
    return sets


def _row_numbers(own: Any, query: int) -> set[int]:
    """Row numbers of the documents that are relevant to one query: an integer, or several."""
    indices = np.atleast_1d(np.asarray(list(own) if isinstance(own, Set) else as_array(own)))
    if indices.size and (indices.dtype.kind not in "iu" or indices.ndim > 1):
        raise TypeError(
            f"relevant[{query}]={own!r} must hold integers, the row numbers of documents; pass "
            "np.flatnonzero(row) for a row of booleans"
        )
    return set(indices.tolist())

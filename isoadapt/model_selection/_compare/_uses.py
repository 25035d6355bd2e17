"""Uses of vectors beside the task, and the data by which a comparison judges them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Similarity:
    """Pairs of graded similarity, for :func:`compare_adapters`.

    The metric is the Spearman correlation of the cosines of the pairs with their scores. Pairs that
    share a text are recognised by vectors that are equal up to rounding, and tested together. If
    texts are also alike within topics or documents, name these by `groups`: without them, tests
    find differences that do not exist (in up to 20 % of the trials in simulations).

    Parameters
    ----------
    A, B : array-like of shape (n_pairs, n_features)
        Embeddings of the first and of the second part of each pair.
    scores : array-like of shape (n_pairs,)
        Similarity of each pair.
    groups : array-like of shape (n_pairs, 2), default=None
        Groups of the first and of the second text of each pair, such as topics or documents. Pairs
        with a group in common are tested together.
    """

    A: ArrayLike
    B: ArrayLike
    scores: ArrayLike
    groups: ArrayLike | None = None


@dataclass(frozen=True, eq=False)
class Search:
    """Queries and the documents to find, for :func:`compare_adapters`.

    The metric is the mean reciprocal rank, up to rank 10, of the first relevant document.

    Parameters
    ----------
    queries, documents : array-like of shape (n, n_features)
        Embeddings.
    relevant : sequence of int, or of collections of int
        Row numbers of the documents that are relevant to each query.
    """

    queries: ArrayLike
    documents: ArrayLike
    relevant: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Outliers:
    """Rows of another distribution, for :func:`compare_adapters`.

    The metric is the AUROC of the mean cosine distance to the 10 nearest training rows, judged rows
    against foreign rows.

    Parameters
    ----------
    foreign : array-like of shape (n_foreign, n_features)
        Embeddings of what does not belong to the distribution of X.
    """

    foreign: ArrayLike


GIVEN = (Similarity, Search, Outliers)


class Wording(NamedTuple):
    """How a use and its metric are called in sentences and tables."""

    phrase: str
    metric: str
    of_vectors: bool = True


USES = {
    "classify": Wording("On classification", "accuracy", of_vectors=False),
    "regress": Wording("On regression", "R²", of_vectors=False),
    "similarity": Wording("For similarity", "Spearman correlation"),
    "search": Wording("For search", "MRR@10"),
    "index": Wording("For search in the teacher's index", "MRR@10"),
    "neighbours": Wording("For neighbours of the same class", "precision@10"),
    "outliers": Wording("For outliers", "AUROC"),
}

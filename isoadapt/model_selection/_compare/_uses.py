"""Uses of vectors: their data, what is measured of adapted vectors, and which items are tested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.stats import rankdata
from sklearn.utils.validation import check_array, check_consistent_length

from isoadapt._utils.containers import as_values
from isoadapt._utils.copies import copy_hashes
from isoadapt.geometry._neighbours import angles, nearest_neighbours
from isoadapt.metrics._neighbours import find_relevant, reciprocal_ranks, relevant_sets
from isoadapt.metrics._points import codes_of
from isoadapt.model_selection._compare._paired_tests import (
    FEWEST_UNITS,
    Evidence,
    Floats,
    joined,
    linked,
    mean,
    rank_correlation,
    rests_on_few,
    two_means,
)

K = 10  # number of neighbours and rank of a search
FEWEST = 3  # rows that are judged, and pairs
TASKS = {"classify": "accuracy", "regress": "R²"}  # uses of the head, and their metrics
MAX_SOFTMAX = "max softmax"  # a control of outliers
_PHRASES = {
    "classify": "On classification",
    "regress": "On regression",
    "index": "For search in the teacher's index",
    "neighbours": "For neighbours of the same class",
}


def phrase_of(use: str) -> str:
    """Return how a sentence on a use begins."""
    return _PHRASES.get(use, f"For {use}")


class Transform(NamedTuple):
    """A fitted adapter as a function of rows, and the rows of its split."""

    function: Callable[[NDArray[Any]], Floats]
    train: NDArray[Any]  # before the adapter
    judged: Any = None  # adapted; None if the split has no rows to judge
    y: Any = None  # of the judged rows
    head: Any = None  # the fitted estimator, for a control that reads its predictions alone

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return the adapted vectors (n, d) of rows."""
        return self.function(rows)


class Use(ABC):
    """Base class of the uses of vectors that :func:`compare_adapters` judges beside the task.

    A subclass is a dataclass with the data of a use. It says what is measured of vectors and which
    items depend on each other. The differences are tested, adjusted for all adapters and worded in
    the verdict, as for :class:`Similarity`. The user guide on comparing adapters has an example.

    Attributes
    ----------
    vectors : tuple of str
        Names of the parameters that hold embeddings, array-like of shape (n, n_features). They are
        matrices when the methods are called.
    name : str
        Name of the use in tables and, after "For", in the verdict. Each use needs another one.
    metric : str
        Name of the score. Greater is better.
    highest : float, default=1.0
        Greatest possible score, at which intervals end.
    """

    vectors: ClassVar[tuple[str, ...]]
    metric: ClassVar[str]
    highest: ClassVar[float] = 1.0
    of_rows: ClassVar[bool] = False  # whether items are the judged rows of each split and own ones
    _control: ClassVar[str | None] = None  # name of a control that reads predictions alone
    name: str

    def check(self) -> Self:
        """Return the use with its other data checked, before anything is fitted."""
        return self

    @abstractmethod
    def measure(self, transform: Transform) -> Any:
        """Return a value for each item, array-like of shape (n_items,).

        The function `transform` returns the adapted vectors of the rows of a matrix, in float64.
        """

    def evidence(self, values: Floats) -> tuple[float, Floats]:
        """Return the score of values (n_items,), their mean, and the influence of each on it.

        Influences (n_items,) sum to 0: of a mean, they are the deviations divided by n_items.
        """
        return mean(values)

    @abstractmethod
    def units(self) -> Any:
        """Return a label for each item, array-like of shape (n_items,), equal for dependent ones.

        Items that are in several units need a sparse array (n_units, n_items) of zeros and ones.
        """

    def _is_untested(self, difference: Evidence, units: csr_array) -> bool:
        """Whether too few units change for a test."""
        return rests_on_few(difference, units)


@dataclass(frozen=True, eq=False)
class Similarity(Use):
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
    name : str, default="similarity"
        Name of the use.
    """

    vectors = ("A", "B")
    metric = "Spearman correlation"

    A: Any
    B: Any
    scores: Any
    groups: Any = None
    name: str = "similarity"

    def check(self) -> Self:
        given = as_values(self.scores, "scores", numeric=True)
        scores = check_array(given, dtype=np.float64, ensure_2d=False, input_name="scores")
        check_consistent_length(self.A, self.B, scores)
        if len(scores) < FEWEST or np.ptp(scores) == 0:
            raise ValueError(
                f"Similarity has {len(scores)} pairs with {len(np.unique(scores))} different "
                "score(s): a correlation needs at least 3 pairs and different scores"
            )
        groups = self.groups
        if groups is not None:
            names = np.ravel(as_values(groups, "groups of Similarity"), order="F")
            groups = codes_of(names, 2 * len(scores), "groups of Similarity", "A and B")[1]
        return replace(self, scores=scores, groups=groups)

    @cached_property
    def _texts(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The different vectors, and the numbers (2, n) of those of each pair."""
        both = np.concatenate([self.A, self.B])
        _, places, ends = np.unique(copy_hashes(both), return_index=True, return_inverse=True)
        return both[places], ends.reshape(2, -1)

    @cached_property
    def _linked(self) -> tuple[csr_array, NDArray[np.int64]]:
        """Units of the different pairs, and the number (n,) of each pair among them."""
        ends = self._texts[1]
        if self.groups is not None:
            ends = joined(self.groups, ends.ravel()).reshape(2, -1)
        return linked(ends)

    def measure(self, transform: Transform) -> Floats:
        vectors, ends = self._texts
        first, second = torch.from_numpy(transform(vectors))[ends]
        return -angles(first, second).numpy()  # ordered as the cosines

    def evidence(self, values: Floats) -> Evidence:
        found = rank_correlation(values, self.scores)
        return found._replace(influence=np.bincount(self._linked[1], found.influence).astype(float))

    def units(self) -> csr_array:
        return self._linked[0]


@dataclass(frozen=True, eq=False)
class Search(Use):
    """Queries and the documents to find, for :func:`compare_adapters`.

    The metric is the mean reciprocal rank, up to rank 10, of the first relevant document.

    Parameters
    ----------
    queries, documents : array-like of shape (n, n_features)
        Embeddings.
    relevant : sequence of int, or of collections of int
        Row numbers of the documents that are relevant to each query.
    name : str, default="search"
        Name of the use.
    """

    vectors = ("queries", "documents")
    metric = "MRR@10"

    queries: Any
    documents: Any
    relevant: Sequence[Any]
    name: str = "search"

    def check(self) -> Self:
        sizes = len(self.queries), len(self.documents)
        return replace(self, relevant=relevant_sets(self.relevant, *sizes))

    def measure(self, transform: Transform) -> Floats:
        return self._ranks(transform(self.queries), transform(self.documents))

    def _ranks(self, queries: Floats, documents: NDArray[Any]) -> Floats:
        n_ranks = min(K, len(documents))
        return reciprocal_ranks(find_relevant(queries, documents, self.relevant, n_ranks)[0])

    def units(self) -> NDArray[np.int64]:
        # Equal queries, and those of the same relevant documents, depend on each other.
        hashes, queries = copy_hashes(self.documents), copy_hashes(self.queries)
        found = [hash(frozenset(hashes[list(own)].tolist())) for own in self.relevant]
        return joined(np.arange(len(queries)), queries, np.array(found).view(np.uint64))


@dataclass(frozen=True, eq=False)
class Index(Search):
    """Queries by the classifier among documents by the teacher, for methods in its space."""

    def measure(self, transform: Transform) -> Floats:
        return self._ranks(transform(self.queries), self.documents)


@dataclass(frozen=True, eq=False)
class Outliers(Use):
    """Rows of another distribution, for :func:`compare_adapters`.

    The metric is the AUROC of the cosine to the nearest training row, the score of
    :class:`~isoadapt.NoveltyDetector`, judged rows against foreign rows. The largest probability of
    a frozen `head` is a control.

    Parameters
    ----------
    foreign : array-like of shape (n_foreign, n_features)
        Embeddings of what does not belong to the distribution of X.
    name : str, default="outliers"
        Name of the use.
    """

    vectors = ("foreign",)
    metric = "AUROC"
    of_rows = True
    _control = MAX_SOFTMAX

    foreign: Any
    name: str = "outliers"

    def measure(self, transform: Transform) -> Floats:
        rows = transform.judged, transform(self.foreign)
        if transform.head is not None:
            far = [-transform.head.predict_proba(each).max(axis=1) for each in rows]
        else:
            nearest = partial(nearest_neighbours, torch.from_numpy(transform(transform.train)), 1)
            far = [nearest(queries=torch.from_numpy(each))[0][:, 0].numpy() for each in rows]
        return np.concatenate(placements(*far))

    def evidence(self, values: Floats) -> Evidence:
        return two_means(*np.split(values, [len(values) - len(self.foreign)]))

    def units(self) -> NDArray[np.uint64]:
        return copy_hashes(self.foreign)

    def _is_untested(self, difference: Evidence, units: csr_array) -> bool:
        n_foreign = np.unique(units[:, -len(self.foreign) :].nonzero()[0]).size
        return min(n_foreign, units.shape[0] - n_foreign) < FEWEST_UNITS


class Neighbours(Use):
    """Nearest judged rows of the same class, for classifiers."""

    vectors = ()
    metric = "precision@10"
    of_rows = True
    name = "neighbours"

    def measure(self, transform: Transform) -> Floats:
        return same_class_shares(transform.judged, transform.y)

    def units(self) -> list[Any]:
        return []


def same_class_shares(Z: Floats, y: NDArray[Any]) -> Floats:
    """Contribution (n,) of each row, as a neighbour too, to the share of equal classes."""
    k = min(K, len(Z) - 1)
    numbers = nearest_neighbours(torch.from_numpy(Z), k)[1].numpy()
    labels = np.asarray(y).reshape(len(Z), -1)
    same = (labels[numbers] == labels[:, None]).all(axis=-1).astype(np.float64)
    precision = same.mean()
    excess = same - precision
    as_neighbour = np.bincount(numbers.ravel(), weights=excess.ravel(), minlength=len(Z))
    return precision + (excess.sum(axis=1) + as_neighbour) / k


def placements(inner: Floats, outer: Floats) -> tuple[Floats, Floats]:
    """Share of outer values above each inner one (n,), and of inner below each outer one (m,)."""
    n, ranks = len(inner), rankdata(np.concatenate([inner, outer]))
    outer_below, inner_below = ranks[:n] - rankdata(inner), ranks[n:] - rankdata(outer)
    return 1 - outer_below / len(outer), inner_below / n

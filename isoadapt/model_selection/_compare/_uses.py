"""Uses of vectors: their data, what is measured of adapted vectors, and which items are tested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
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
from isoadapt.metrics._neighbours import reciprocal_ranks, relevant_sets
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

    def __call__(self, rows: NDArray[Any]) -> Floats:
        """Return the adapted vectors (n, d) of rows."""
        return self.function(rows)


class Use(ABC):
    """Use of vectors beside the task, for :func:`compare_adapters`: base class of all uses.

    A subclass holds the data of a use and says what is measured of vectors. Its instances are
    passed in the list `uses`. Scores and differences of its items are tested, adjusted for all
    adapters and worded in the verdict, as for :class:`Similarity` or :class:`Search`.

    Attributes
    ----------
    vectors : tuple of str
        Names of the attributes that hold embeddings, array-like of shape (n, n_features). They are
        matrices when a method below is called.
    name : str
        Name of the use in tables and in the verdict, where it follows "For". Each use of a
        comparison needs another one.
    metric : str
        Name of the score, of which more is better.
    highest : float, default=1.0
        Greatest possible score, at which intervals end.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.metrics.pairwise import paired_cosine_distances
    >>> from isoadapt.model_selection import Use, compare_adapters
    >>> @dataclass
    ... class Triplets(Use):
    ...     anchors: np.ndarray
    ...     near: np.ndarray
    ...     far: np.ndarray
    ...     vectors, name, metric = ("anchors", "near", "far"), "triplets", "accuracy"
    ...
    ...     def measure(self, transform):
    ...         a, b, c = (transform(rows) for rows in (self.anchors, self.near, self.far))
    ...         return paired_cosine_distances(a, b) < paired_cosine_distances(a, c)
    ...
    ...     def units(self):
    ...         return np.arange(len(self.anchors))  # all are independent
    >>> X, y = make_classification(100, 8, n_informative=5, random_state=0)
    >>> uses = [Triplets(X[:60], X[:60] + 1, X[40:])]
    >>> comparison = compare_adapters(X, y, "Whitening", encoder_saw=False, uses=uses)
    >>> comparison.verdict("triplets").startswith("For triplets, ")
    True
    """

    vectors: ClassVar[tuple[str, ...]]
    metric: ClassVar[str]
    highest: ClassVar[float] = 1.0
    of_rows: ClassVar[bool] = False  # whether items are the judged rows of a split and own ones
    name: str

    def check(self) -> Self:
        """Return the use with its other data checked, before anything is fitted.

        Returns
        -------
        Use
            By default, the use as it is.
        """
        return self

    @abstractmethod
    def measure(self, transform: Transform) -> Any:
        """Return a value of each item, from vectors of an adapter.

        Parameters
        ----------
        transform : callable
            Returns the adapted vectors, (n, d) in float64, of the rows of a matrix.

        Returns
        -------
        array-like of shape (n_items,)
            Numbers or booleans.
        """

    def evidence(self, values: Floats) -> tuple[float, Floats]:
        """Return the score, and the influence of each item on it.

        Parameters
        ----------
        values : ndarray of shape (n_items,)
            What `measure` returned.

        Returns
        -------
        score : float
            By default, the mean of the values.
        influence : ndarray of shape (n_items,)
            Influences, which sum to 0: by default, deviations from the mean divided by n_items.
        """
        return mean(values)

    @abstractmethod
    def units(self) -> Any:
        """Return which items depend on each other.

        Returns
        -------
        array-like of shape (n_items,), or sparse array of shape (n_units, n_items)
            Labels, which are equal for items that depend on each other; or ones where an item is
            in a unit, if items may be in several.
        """

    def _is_untested(self, difference: Evidence, units: csr_array) -> bool:
        """Whether too few units change for a test of a difference."""
        return rests_on_few(difference, units)

    def _with(self, **changes: Any) -> Self:
        """Copy with other values of attributes, of a frozen dataclass too."""
        copied = copy(self)
        vars(copied).update(changes)
        return copied


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
        """Check scores and groups; groups become numbers."""
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
        return self._with(scores=scores, groups=groups)

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
        """Return minus the angles of the pairs, which are ordered as the cosines."""
        vectors, ends = self._texts
        first, second = torch.from_numpy(transform(vectors))[ends]
        return -angles(first, second).numpy()

    def evidence(self, values: Floats) -> Evidence:
        """Return the correlation with the scores, and the influences of the different pairs."""
        found = rank_correlation(values, self.scores)
        return found._replace(influence=np.bincount(self._linked[1], found.influence).astype(float))

    def units(self) -> csr_array:
        """Return the units of pairs that have a text, or a group, in common."""
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
        """Check the numbers of the relevant documents."""
        sizes = len(self.queries), len(self.documents)
        return self._with(relevant=relevant_sets(self.relevant, *sizes))

    def measure(self, transform: Transform) -> Floats:
        """Return the reciprocal rank of each query."""
        return self._ranks(transform(self.queries), transform(self.documents))

    def _ranks(self, queries: Floats, documents: NDArray[Any]) -> Floats:
        return reciprocal_ranks(queries, documents, self.relevant, min(K, len(documents)))

    def in_index(self, teacher: NDArray[Any]) -> Index:
        """Return the same search among the teacher's vectors of the documents."""
        name = "index" if self.name == "search" else f"{self.name} index"
        return Index(self.queries, self.documents, self.relevant, name, teacher)

    def units(self) -> NDArray[np.int64]:
        """Return labels that equal queries and those of the same relevant documents share."""
        hashes, queries = copy_hashes(self.documents), copy_hashes(self.queries)
        found = [hash(frozenset(hashes[list(own)].tolist())) for own in self.relevant]
        return joined(np.arange(len(queries)), queries, np.array(found).view(np.uint64))


@dataclass(frozen=True, eq=False)
class Index(Search):
    """Queries by the classifier among documents by the teacher, for methods in its space."""

    teacher: Any = None  # its vectors of the documents

    def measure(self, transform: Transform) -> Floats:
        """Return the reciprocal rank of each query."""
        return self._ranks(transform(self.queries), self.teacher)


@dataclass(frozen=True, eq=False)
class Outliers(Use):
    """Rows of another distribution, for :func:`compare_adapters`.

    The metric is the AUROC of the mean cosine distance to the 10 nearest training rows, judged rows
    against foreign rows.

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

    foreign: Any
    name: str = "outliers"

    def measure(self, transform: Transform) -> Floats:
        """Return the placements of the judged and, after them, of the foreign rows."""
        reference, foreign = transform(transform.train), transform(self.foreign)
        inner, outer = (_mean_distance(rows, reference) for rows in (transform.judged, foreign))
        return np.concatenate(placements(inner, outer))

    def evidence(self, values: Floats) -> Evidence:
        """Return the AUROC, and the influence of the rows of both kinds."""
        return two_means(*np.split(values, [len(values) - len(self.foreign)]))

    def units(self) -> NDArray[np.uint64]:
        """Return labels that equal foreign rows share."""
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
        """Return the contributions of the judged rows."""
        return same_class_shares(transform.judged, transform.y)

    def units(self) -> list[Any]:
        """Return no labels: there are only judged rows."""
        return []


def same_class_shares(Z: Floats, y: NDArray[Any]) -> Floats:
    """Contribution (n,) of each row to the precision of its 10 nearest other rows.

    The precision, the share of neighbours of the same class, is the mean of the contributions. A
    row contributes by its neighbours and by the rows that it is a neighbour of. Both are needed for
    its variance: a label decides about all rows around it.
    """
    k = min(K, len(Z) - 1)
    numbers = nearest_neighbours(torch.from_numpy(Z), k)[1].numpy()
    labels = np.asarray(y).reshape(len(Z), -1)
    same = (labels[numbers] == labels[:, None]).all(axis=-1).astype(np.float64)
    precision = same.mean()
    excess = same - precision
    as_neighbour = np.bincount(numbers.ravel(), weights=excess.ravel(), minlength=len(Z))
    return precision + (excess.sum(axis=1) + as_neighbour) / k


def _mean_distance(Z: Floats, reference: Floats) -> Floats:
    """Mean cosine distance (n,) to the nearest rows of the reference, at most 10."""
    k = min(K, len(reference))
    distances = nearest_neighbours(torch.from_numpy(reference), k, queries=torch.from_numpy(Z))[0]
    return distances.mean(dim=1).numpy()


def placements(inner: Floats, outer: Floats) -> tuple[Floats, Floats]:
    """Share of outer values above each inner one (n,), and of inner values below each outer (m,).

    Ties count one half. The mean of either is the area under the ROC curve.
    """
    n, ranks = len(inner), rankdata(np.concatenate([inner, outer]))
    outer_below, inner_below = ranks[:n] - rankdata(inner), ranks[n:] - rankdata(outer)
    return 1 - outer_below / len(outer), inner_below / n

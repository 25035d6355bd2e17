"""Scorers of how well the transformed rows serve similarity and search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from isoadapt import metrics
from isoadapt.model_selection._scorers import transformed_rows

_MEASURES = metrics.RetrievalReport._fields


def make_similarity_scorer(A: Any, B: Any, scores: ArrayLike) -> Callable[..., float]:
    """Make a scorer of the correlation of cosines with given similarity scores.

    Parameters
    ----------
    A, B : array-like of shape (n_pairs, n_features), or sequence of str
        First and second part of each pair, in the form that the estimator transforms: embeddings,
        or texts for a pipeline that begins with an encoder.
    scores : array-like of shape (n_pairs,)
        Similarity of each pair.

    Returns
    -------
    callable
        A scorer ``scorer(estimator, X=None, y=None) -> float`` for the parameter ``scoring`` of a
        search. It transforms the pairs, whatever the fold, and returns
        :func:`~isoadapt.metrics.similarity_correlation`.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.model_selection import make_similarity_scorer
    >>> rng = np.random.default_rng(0)
    >>> A = rng.normal(size=(200, 4))
    >>> B = A + rng.normal(size=(200, 4)) * np.linspace(0, 2, 200)[:, None]
    >>> scorer = make_similarity_scorer(A, B, scores=np.linspace(5, 0, 200))
    >>> scorer(Whitening().fit(A)) > 0.5
    True
    """
    return _SimilarityScorer(A, B, scores)


def make_retrieval_scorer(
    queries: Any,
    documents: Any,
    relevant: Sequence[Any],
    *,
    measure: str = "mrr",
    k: int = 10,
    metric: str = "cosine",
) -> Callable[..., float]:
    """Make a scorer of a search for documents.

    Parameters
    ----------
    queries, documents : array-like of shape (n, n_features), or sequence of str
        In the form that the estimator transforms: embeddings, or texts for a pipeline that begins
        with an encoder.
    relevant : sequence of int, or of collections of int
        Row numbers of the documents that are relevant to each query.
    measure : {"mrr", "recall", "ndcg"}, default="mrr"
        Which figure of :func:`~isoadapt.metrics.retrieval_report` to return.
    k : int, default=10
        Rank up to which results count.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance by which documents are ranked.

    Returns
    -------
    callable
        A scorer ``scorer(estimator, X=None, y=None) -> float`` for the parameter ``scoring`` of a
        search. It transforms queries and documents, whatever the fold.

    Raises
    ------
    ValueError
        If `measure` is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.model_selection import make_retrieval_scorer
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> make_retrieval_scorer(X, X, range(100), k=1)(Whitening().fit(X))
    1.0
    """
    if measure not in _MEASURES:
        raise ValueError(f"measure={measure!r} must be one of {', '.join(map(repr, _MEASURES))}")
    return _RetrievalScorer(queries, documents, relevant, measure, k, metric)


def make_overlap_scorer(k: int = 10, *, metric: str = "cosine") -> Callable[..., float]:
    """Make a scorer of how many nearest neighbours a transformation keeps.

    Parameters
    ----------
    k : int, default=10
        Number of neighbours of each row.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance between rows.

    Returns
    -------
    callable
        A scorer ``scorer(estimator, X, y=None) -> float`` for the parameter ``scoring`` of a
        search. It returns :func:`~isoadapt.metrics.neighbour_overlap` of the embeddings X and the
        transformed embeddings.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt import Whitening
    >>> from isoadapt.model_selection import make_overlap_scorer
    >>> X = np.random.default_rng(0).normal(size=(100, 4)) * [9, 1, 1, 1]
    >>> scorer = make_overlap_scorer()
    >>> scorer(Whitening(strength=0.1).fit(X), X) > scorer(Whitening().fit(X), X)
    True
    """
    return _OverlapScorer(k, metric)


@dataclass(frozen=True, eq=False)
class _Scorer:
    """A scorer that does not use sample weights."""

    def _accept_sample_weight(self) -> bool:
        """Whether sample weights are used; scikit-learn asks every scorer of a dict."""
        return False


@dataclass(frozen=True, eq=False)
class _SimilarityScorer(_Scorer):
    """Result of `make_similarity_scorer`."""

    A: Any
    B: Any
    scores: Any

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        first, second = (transformed_rows(estimator, part) for part in (self.A, self.B))
        return metrics.similarity_correlation(first, second, self.scores)

    def __repr__(self) -> str:
        return f"make_similarity_scorer({len(self.A)} pairs)"


@dataclass(frozen=True, eq=False)
class _RetrievalScorer(_Scorer):
    """Result of `make_retrieval_scorer`."""

    queries: Any
    documents: Any
    relevant: Any
    measure: str
    k: int
    metric: str

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        queries, documents = (
            transformed_rows(estimator, part) for part in (self.queries, self.documents)
        )
        report = metrics.retrieval_report(
            queries, documents, self.relevant, self.k, metric=self.metric
        )
        return getattr(report, self.measure)

    def __repr__(self) -> str:
        return (
            f"make_retrieval_scorer({len(self.queries)} queries, {len(self.documents)} documents, "
            f"measure={self.measure!r}, k={self.k}, metric={self.metric!r})"
        )


@dataclass(frozen=True, eq=False)
class _OverlapScorer(_Scorer):
    """Result of `make_overlap_scorer`."""

    k: int
    metric: str

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        after = transformed_rows(estimator, X)
        return metrics.neighbour_overlap(X, after, self.k, metric=self.metric)

    def __repr__(self) -> str:
        return f"make_overlap_scorer(k={self.k}, metric={self.metric!r})"

"""Scorers for searches: of isotropy, and of how well rows serve similarity and search."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike
from sklearn.pipeline import Pipeline

from isoadapt import metrics


def hubness(X: ArrayLike, k: int = 10, metric: str = "cosine") -> float:
    """Skewness of the k-occurrence, of `metrics.hubness`."""
    return metrics.hubness(X, k, metric=metric).skewness


_RISING: list[Callable[..., float]] = [
    metrics.isoscore,
    metrics.isoscore_star,
    metrics.effective_rank,
    metrics.two_nn,
    metrics.partition_isotropy,
]
_FALLING: list[Callable[..., float]] = [
    metrics.partition_dispersion,
    metrics.cumulative_explained_variance,
    metrics.anisotropy,
    metrics.mean_cosine_similarity,
    hubness,
]
_BY_NAME = {metric.__name__: metric for metric in _RISING + _FALLING}
_MEASURES = metrics.RetrievalReport._fields


def make_isotropy_scorer(
    metric: str | Callable[..., float] = "isoscore",
    *,
    greater_is_better: bool | None = None,
    **kwargs: Any,
) -> Callable[..., float]:
    """Make a scorer of the isotropy of the transformed rows.

    The scorer applies the metric to the output of the estimator's ``transform``. For a pipeline
    that ends in an estimator without ``transform``, such as a classifier, it applies the metric to
    the input of that last step. Labels are not used.

    Parameters
    ----------
    metric : str or callable, default="isoscore"
        Name of a function of :mod:`isoadapt.metrics`: "isoscore", "isoscore_star",
        "effective_rank", "two_nn", "partition_isotropy", "partition_dispersion",
        "cumulative_explained_variance", "anisotropy", "mean_cosine_similarity" or "hubness", of
        which the skewness is taken; or a callable that takes the transformed matrix and returns a
        number.
    greater_is_better : bool, default=None
        Whether greater values of the metric are better. If False, the scorer returns the metric
        with its sign changed, so that a search can maximise it. None is False for the last five
        of the names above, and True for the other names and for other callables.
    **kwargs : dict
        Passed to the metric, for example ``bias_corrected=True`` or ``k=1``.

    Returns
    -------
    callable
        A scorer ``scorer(estimator, X, y=None) -> float`` for the parameter ``scoring`` of
        scikit-learn's searches and of :class:`AdapterSearchCV`, alone or in a dict of scorers.

    Raises
    ------
    TypeError
        If `metric` is neither a name nor callable, or does not take `kwargs`. When scoring, if
        the estimator has no ``transform``.
    ValueError
        If no metric has this name. When scoring, if the metric raises it, for example because
        the transformed rows are too few or constant; a search then uses its ``error_score``.

    Notes
    -----
    The plain IsoScore rises with the number of rows and cannot exceed
    (n_samples - 2) / (n_features - 1). If a fold has fewer than 3 n_features rows, use
    ``bias_corrected=True``, so that scores of folds of different sizes are comparable.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_validate
    >>> from isoadapt import Whitening
    >>> from isoadapt.model_selection import make_isotropy_scorer
    >>> X = np.random.default_rng(0).normal(size=(300, 4)) * [10, 1, 1, 1]
    >>> scorer = make_isotropy_scorer("isoscore", bias_corrected=True)
    >>> for strength in (0.0, 1.0):
    ...     scores = cross_validate(Whitening(strength=strength), X, scoring=scorer, cv=3)
    ...     print(round(scores["test_score"].mean(), 2))
    0.02
    0.99
    """
    function = _find_metric(metric)
    if _is_known(function):
        _check_kwargs(function, kwargs)
    if greater_is_better is None:
        greater_is_better = _default_greater_is_better(function)
    return _IsotropyScorer(function, kwargs, greater_is_better)


def _is_known(metric: Callable[..., float]) -> bool:
    return _BY_NAME.get(getattr(metric, "__name__", "")) is metric


def _default_greater_is_better(metric: Callable[..., float]) -> bool:
    return not any(metric is each for each in _FALLING)


class _Scorer:
    """A scorer that does not use sample weights."""

    def _accept_sample_weight(self) -> bool:
        """Whether sample weights are used; scikit-learn asks every scorer of a dict."""
        return False


@dataclass(frozen=True, eq=False, repr=False)
class _IsotropyScorer(_Scorer):
    """Scorer that `make_isotropy_scorer` returns."""

    metric: Callable[..., float]
    kwargs: dict[str, Any]
    greater_is_better: bool

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        score = float(self.metric(_transformed(estimator, X), **self.kwargs))
        return score if self.greater_is_better else -score

    def __repr__(self) -> str:
        known = _is_known(self.metric)
        name = getattr(self.metric, "__name__", repr(self.metric))
        shown = [repr(name) if known else name]
        if self.greater_is_better != _default_greater_is_better(self.metric):
            shown.append(f"greater_is_better={self.greater_is_better}")
        shown += [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"make_isotropy_scorer({', '.join(shown)})"


def _find_metric(metric: str | Callable[..., Any]) -> Callable[..., float]:
    if metric is metrics.hubness:
        return hubness
    if callable(metric):
        return metric
    if not isinstance(metric, str):
        raise TypeError(
            f"metric={metric!r} ({type(metric).__name__}) is not a metric: pass one of "
            f"{', '.join(map(repr, _BY_NAME))}, or a callable that takes a matrix"
        )
    if metric not in _BY_NAME:
        raise ValueError(
            f"metric={metric!r} is unknown: use one of {', '.join(map(repr, _BY_NAME))}, or pass a "
            "callable that takes a matrix"
        )
    return _BY_NAME[metric]


def _check_kwargs(metric: Callable[..., float], kwargs: Mapping[str, Any]) -> None:
    admitted = list(inspect.signature(metric).parameters)[1:]
    unknown = sorted(kwargs.keys() - set(admitted))
    if unknown:
        takes = ", ".join(admitted) or "no parameters"
        raise TypeError(f"{metric.__name__} does not take {', '.join(unknown)}: it takes {takes}")


def _transformed(estimator: Any, X: Any) -> ArrayLike:
    """Output of the estimator's transform or, without one, input of the pipeline's last step."""
    if hasattr(estimator, "transform"):
        return estimator.transform(X)
    if isinstance(estimator, Pipeline) and len(estimator) > 1:
        return estimator[:-1].transform(X)
    raise TypeError(
        f"{type(estimator).__name__} has no transform, so there are no embeddings whose isotropy "
        "could be scored: search over an adapter, an AdaptedEncoder, or a Pipeline in which all "
        "steps before the last have one"
    )


# --- similarity, search and neighbours ------------------------------------------------------------


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
class _SimilarityScorer(_Scorer):
    """Result of `make_similarity_scorer`."""

    A: Any
    B: Any
    scores: Any

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        first, second = (_transformed(estimator, part) for part in (self.A, self.B))
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
            _transformed(estimator, part) for part in (self.queries, self.documents)
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
        after = _transformed(estimator, X)
        return metrics.neighbour_overlap(X, after, self.k, metric=self.metric)

    def __repr__(self) -> str:
        return f"make_overlap_scorer(k={self.k}, metric={self.metric!r})"

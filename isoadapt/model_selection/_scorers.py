"""Scorers for searches: of isotropy, and of how well rows serve similarity and search."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
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
        "cumulative_explained_variance", "anisotropy", "mean_cosine_similarity" or "hubness", whose
        skewness is taken; or a callable that takes the transformed matrix and returns a number.
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
        If the metric does not take `kwargs`. When scoring, if the estimator has no ``transform``.
    ValueError
        If `metric` is neither such a name nor callable. When scoring, if the metric raises it, for
        example because the transformed rows are too few or constant; a search then uses its
        ``error_score``.

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
    function = _BY_NAME.get(metric, metric) if isinstance(metric, str) else metric
    if not callable(function):
        raise ValueError(
            f"metric={metric!r} is not a metric: use one of {', '.join(map(repr, _BY_NAME))}, or "
            "pass a callable that takes a matrix"
        )
    function = hubness if function is metrics.hubness else function
    if function in _BY_NAME.values():
        inspect.signature(function).bind(None, **kwargs)  # raises TypeError for unknown ones
    if greater_is_better is None:
        greater_is_better = function not in _FALLING
    shown = [repr(metric) if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))]
    shown += [f"{name}={value!r}" for name, value in kwargs.items()]
    sign = 1 if greater_is_better else -1
    score = partial(_isotropy, metric=function, sign=sign, options=kwargs)
    return _Scorer(score, f"make_isotropy_scorer({', '.join(shown)})")


@dataclass(frozen=True, eq=False)
class _Scorer:
    """A score of what an estimator transforms, which does not use labels or sample weights."""

    score: Callable[..., float]  # of a function that transforms, and of X
    name: str

    def __call__(self, estimator: Any, X: Any = None, y: Any = None) -> float:
        return float(self.score(partial(_transformed, estimator), X))

    def __repr__(self) -> str:
        return self.name

    def _accept_sample_weight(self) -> bool:
        """Whether sample weights are used; scikit-learn asks every scorer of a dict."""
        return False


def _isotropy(transform: Any, X: Any, *, metric: Any, sign: int, options: Any) -> float:
    return sign * metric(transform(X), **options)


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

    The scorer is used like :func:`make_isotropy_scorer`'s. In every fold, it transforms the same
    pairs, and returns their :func:`~isoadapt.metrics.similarity_correlation`.

    Parameters
    ----------
    A, B : array-like of shape (n_pairs, n_features), or sequence of str
        First and second part of each pair, in the form that the estimator transforms: embeddings,
        or texts for a pipeline that begins with an encoder.
    scores : array-like of shape (n_pairs,)
        Similarity of each pair.

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
    name = f"make_similarity_scorer({len(A)} pairs)"
    return _Scorer(partial(_similarity, A=A, B=B, scores=scores), name)


def _similarity(transform: Any, X: Any, *, A: Any, B: Any, scores: ArrayLike) -> float:
    return metrics.similarity_correlation(transform(A), transform(B), scores)


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

    The scorer is used like :func:`make_isotropy_scorer`'s. In every fold, it transforms the same
    queries and documents.

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
    sets = {"queries": queries, "documents": documents, "relevant": relevant}
    name = f"make_retrieval_scorer({len(queries)} queries, measure={measure!r}, k={k})"
    return _Scorer(partial(_retrieval, **sets, measure=measure, k=k, metric=metric), name)


def _retrieval(
    transform: Any, X: Any, *, queries: Any, documents: Any, measure: str, **options: Any
) -> float:
    found = metrics.retrieval_report(transform(queries), transform(documents), **options)
    return getattr(found, measure)


def make_overlap_scorer(k: int = 10, *, metric: str = "cosine") -> Callable[..., float]:
    """Make a scorer of how many nearest neighbours a transformation keeps.

    The scorer is used like :func:`make_isotropy_scorer`'s, and returns the
    :func:`~isoadapt.metrics.neighbour_overlap` of embeddings before and after.

    Parameters
    ----------
    k : int, default=10
        Number of neighbours of each row.
    metric : {"cosine", "euclidean"}, default="cosine"
        Distance between rows.

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
    return _Scorer(partial(_overlap, k=k, metric=metric), f"make_overlap_scorer(k={k})")


def _overlap(transform: Any, X: Any, *, k: int, metric: str) -> float:
    return metrics.neighbour_overlap(X, transform(X), k, metric=metric)

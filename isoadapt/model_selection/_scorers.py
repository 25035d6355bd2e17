"""Scorers of isotropy for searches, and the choice of a candidate by task and isotropy scores."""

import inspect
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.pipeline import Pipeline

from isoadapt import metrics
from isoadapt._utils.warn import warn


def hubness(X: ArrayLike, k: int = 10, metric: str = "cosine") -> float:
    """Skewness of the k-occurrence, of `metrics.hubness`."""
    return metrics.hubness(X, k, metric=metric).skewness


_GREATER_IS_BETTER: dict[Callable[..., float], bool] = {
    metrics.isoscore: True,
    metrics.isoscore_star: True,
    metrics.effective_rank: True,
    metrics.two_nn: True,
    metrics.partition_isotropy: True,
    metrics.partition_dispersion: False,
    metrics.cumulative_explained_variance: False,
    metrics.anisotropy: False,
    metrics.mean_cosine_similarity: False,
    hubness: False,
}
_BY_NAME = {metric.__name__: metric for metric in _GREATER_IS_BETTER}


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
    return isinstance(metric, Hashable) and metric in _GREATER_IS_BETTER


def _default_greater_is_better(metric: Callable[..., float]) -> bool:
    return _GREATER_IS_BETTER[metric] if _is_known(metric) else True


@dataclass(frozen=True, eq=False, repr=False)
class _IsotropyScorer:
    """Scorer that `make_isotropy_scorer` returns."""

    metric: Callable[..., float]
    kwargs: dict[str, Any]
    greater_is_better: bool

    def __call__(self, estimator: Any, X: Any, y: Any = None) -> float:
        score = float(self.metric(transformed_rows(estimator, X), **self.kwargs))
        return score if self.greater_is_better else -score

    def _accept_sample_weight(self) -> bool:
        """Whether sample weights are used; scikit-learn asks every scorer of a dict."""
        return False

    def __repr__(self) -> str:
        known = _is_known(self.metric)
        name = getattr(self.metric, "__name__", repr(self.metric))
        shown = [repr(name) if known else name]
        if self.greater_is_better != _default_greater_is_better(self.metric):
            shown.append(f"greater_is_better={self.greater_is_better}")
        shown += [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"make_isotropy_scorer({', '.join(shown)})"


@dataclass(frozen=True)
class BestAboveFloor:
    """Choose the candidate with the best task score among those that are isotropic enough.

    It is a callable for the parameter ``refit`` of a search with several metrics. Among the
    candidates whose mean isotropy over the folds reaches the floor, it chooses the one with the
    best mean task score. Ties are broken by isotropy, then by the order of the candidates.
    Candidates with a score of NaN are never chosen.

    Parameters
    ----------
    task : str
        Name of the task score among the scores of the search.
    isotropy : str
        Name of the isotropy score; see :func:`make_isotropy_scorer`.
    floor : float
        Smallest admissible mean isotropy, on the scale of that score. It is negative for a metric
        of which smaller values are better, because the scorer changes its sign.

    Raises
    ------
    ValueError
        If `floor` is not a finite number. At the end of a search, if the search has no score of
        one of these names, or if no candidate has both scores.

    Warns
    -----
    UserWarning
        If no candidate reaches the floor. The most isotropic one is then chosen, so that the
        results of the search are not lost.

    Notes
    -----
    As with any callable ``refit``, scikit-learn sets ``best_index_``, ``best_params_`` and
    ``best_estimator_``, but not ``best_score_``; the scores are in ``cv_results_``.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from sklearn.model_selection import GridSearchCV
    >>> from isoadapt import LogitPreservingWhitening
    >>> from isoadapt.model_selection import BestAboveFloor, make_isotropy_scorer
    >>> X, y = make_classification(300, 8, random_state=0)
    >>> search = GridSearchCV(
    ...     LogitPreservingWhitening(head="logistic"),
    ...     {"strength": [0.0, 0.5, 1.0]},
    ...     scoring={"accuracy": "accuracy", "isoscore": make_isotropy_scorer("isoscore")},
    ...     refit=BestAboveFloor("accuracy", "isoscore", floor=0.5),
    ... )
    >>> search.fit(X, y).best_params_
    {'strength': 1.0}
    """

    task: str
    isotropy: str
    floor: float

    def __post_init__(self) -> None:
        if not (isinstance(self.floor, Real) and math.isfinite(self.floor)):
            raise ValueError(f"floor={self.floor!r} must be a finite number, such as 0.5")

    def __call__(self, cv_results: Mapping[str, Any]) -> int:
        """Return the index of the chosen candidate in the ``cv_results_`` of a search."""
        task, isotropy = _means(cv_results, self.task), _means(cv_results, self.isotropy)
        scored = ~np.isnan(task) & ~np.isnan(isotropy)
        if not scored.any():
            raise ValueError(
                f"no candidate has both scores {self.task!r} and {self.isotropy!r}: all are NaN; "
                "set error_score='raise' to see why"
            )
        above_floor = scored & (isotropy >= self.floor)
        if above_floor.any():
            return _best(above_floor, task, isotropy)
        best = _best(scored, isotropy, task)
        warn(
            f"no candidate reaches floor={self.floor} of {self.isotropy!r}, so the most isotropic "
            f"one is chosen, with {isotropy[best]:.4g}; widen the grid, or lower the floor",
        )
        return best

    def check_names(self, scores: Iterable[str]) -> None:
        """Check that a search has both scores.

        Parameters
        ----------
        scores : iterable of str
            Names of the scores of a search.

        Raises
        ------
        ValueError
            If one of the two names is missing.
        """
        for name in (self.task, self.isotropy):
            _check_name(name, scores)


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


def transformed_rows(estimator: Any, X: Any) -> ArrayLike:
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


def _check_name(name: str, found: Iterable[str]) -> None:
    if name not in (found := list(found)):
        raise ValueError(
            f"the search has no score {name!r}, only {', '.join(map(repr, found))}: use names of "
            "its scoring={name: scorer, ...}"
        )


def _means(cv_results: Mapping[str, Any], name: str) -> NDArray[np.float64]:
    """Mean test scores (n_candidates,) of a name."""
    prefix = "mean_test_"
    _check_name(name, [key.removeprefix(prefix) for key in cv_results if key.startswith(prefix)])
    return np.asarray(cv_results[prefix + name], dtype=np.float64)


def _best(
    admitted: NDArray[np.bool_], first: NDArray[np.float64], second: NDArray[np.float64]
) -> int:
    """Index of the `admitted` candidate with the best `first` score; `second` breaks ties."""
    return int(max(np.flatnonzero(admitted), key=lambda index: (first[index], second[index])))

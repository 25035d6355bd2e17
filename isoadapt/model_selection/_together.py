"""Cross-validation of many candidates, those that differ in numbers only trained together."""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples, check_array

from isoadapt._utils.devices import as_array
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import (
    CPU_BYTES,
    PenalisedAdapter,
    Problem,
    UnequalPenaltiesError,
    comparable,
    fit_members,
)

Result = dict[str, Any]
"""What scikit-learn's searches note of a fit: scores, times, the error."""


@dataclass(frozen=True)
class Fit:
    """A candidate on a fold."""

    candidate: int
    fold: int


@dataclass
class Evaluation:
    """How candidates are fitted to folds and scored; filled with results by :meth:`run`.

    Attributes
    ----------
    estimator : estimator
        An adapter, or a pipeline that ends in one.
    X, y : array-like
        All rows.
    folds : sequence of (ndarray, ndarray)
        Row numbers to fit to and to score on.
    scorers : callable
        One or several metrics.
    options : dict
        Further arguments of scikit-learn's ``_fit_and_score``.
    n_jobs, pre_dispatch : int or None, int or str
        Processes for what is fitted one at a time, and how many fits are handed out ahead.
    max_memory : int or None
        Bytes that training may take; None: 2 GiB, or half of what is free on a GPU.
    done : callable
        Told how many fits have ended.
    results : dict
        By fit.
    unbatched : Counter
        Why fits were done one at a time, and how many.
    """

    estimator: BaseEstimator
    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]
    scorers: Callable[..., Any]
    options: Mapping[str, Any]
    n_jobs: int | None
    pre_dispatch: int | str
    max_memory: int | None
    done: Callable[[int], Any]
    results: dict[Fit, Result] = field(default_factory=dict)
    unbatched: Counter[str] = field(default_factory=Counter)

    def run(self, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        """Fit and score every candidate on every fold.

        Parameters
        ----------
        candidates : mapping of int to mapping
            Parameters to set, by number.
        """
        alone: list[Fit] = []
        groups: dict[Hashable, list[int]] = {}
        for number, parameters in candidates.items():
            estimator = self._make(parameters)
            reason = self._why_alone(estimator)
            if reason is None:
                groups.setdefault(_kind(estimator), []).append(number)
            else:
                self.unbatched[reason] += len(self.folds)
                alone += [Fit(number, fold) for fold in range(len(self.folds))]
        for members in groups.values():
            self._run_group({number: candidates[number] for number in members})
        self._run_alone(alone, candidates)

    def _make(self, parameters: Mapping[str, Any]) -> Any:
        return clone(self.estimator).set_params(**clone(dict(parameters), safe=False))

    def _why_alone(self, estimator: Any) -> str | None:
        adapter = _adapter(estimator)
        if isinstance(adapter, AdaptedEncoder):
            return (
                "an AdaptedEncoder encodes with every fit; search over make_pipeline(encoder, "
                "adapter), or give the encoder a cache"
            )
        if not isinstance(adapter, PenalisedAdapter):
            return f"{type(adapter).__name__} is not trained by mini-batches of several members"
        if adapter._batch_key() is None:
            return "solver='exact' takes no mini-batches"
        try:
            others = [name for name, own in self._step_params(estimator)[:-1] if own]
        except (KeyError, ValueError):  # a fit alone says what is wrong
            return f"fit does not take its parameters, {sorted(self.options['fit_params'])}"
        if others:
            return f"fit has parameters for other steps than the adapter, {others}"
        return None

    def _step_params(self, estimator: Any) -> list[tuple[str, dict[str, Any]]]:
        """Give the parameters of fit for each step, the adapter's last."""
        params = self.options["fit_params"]
        if not isinstance(estimator, Pipeline):
            return [("adapter", dict(params))]
        routed = estimator._check_method_params(method="fit", props=params)
        found = []
        for name, _ in estimator.steps:
            own = routed.get(name, {})
            found.append((name, {**own.get("fit", {}), **own.get("fit_transform", {})}))
        return found

    def fit_params(self, fold: int) -> dict[str, Any]:
        """Give what the adapter's fit takes besides X and y, for the rows of a fold.

        Parameters
        ----------
        fold : int
            Which.

        Returns
        -------
        dict
            Such as ``sample_weight`` and ``groups``.
        """
        own = self._step_params(self.estimator)[-1][1]
        return _check_method_params(self.X, own, indices=self.folds[fold][0])

    def _run_group(self, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        """Train candidates of one kind: block by block, so that an interrupt leaves whole ones."""
        group = _Group(self, candidates)
        try:
            n_members = group.n_members()
        except Exception as failure:
            fits = [Fit(number, fold) for number in candidates for fold in range(len(self.folds))]
            self._give_up(fits, failure, candidates)
            return
        n_folds = min(group.n_folds(), n_members)
        for numbers in _parts(list(candidates), n_members // n_folds):
            for folds in group.spans(n_folds):
                fits = [Fit(number, fold) for fold in folds for number in numbers]
                self._run_chunk(group, fits)

    def _run_chunk(self, group: "_Group", fits: Sequence[Fit]) -> None:
        """Train together; where that fails, in halves, and at last one at a time.

        Members whose penalties cannot be joined are trained one at a time immediately.
        """
        before = time.perf_counter()
        left = len(fits)

        def tick(finished: int) -> None:
            nonlocal left
            left -= finished
            self.done(finished)

        try:
            estimators, errors = group.train(fits, tick)
        except Exception as failure:
            self.done(left - len(fits))
            if len(fits) == 1:
                self._give_up(fits, failure, group.candidates)
                return
            middle = len(fits) // 2
            parts = [fits[:middle], fits[middle:]]
            if isinstance(failure, UnequalPenaltiesError):
                self.unbatched[str(failure)] += len(fits)
                parts = [[fit] for fit in fits]
            for part in parts:
                self._run_chunk(group, part)
            return
        seconds = (time.perf_counter() - before) / len(fits)
        for fit, estimator, error in zip(fits, estimators, errors, strict=True):
            if error is None:
                self.results[fit] = self._score(estimator, fit, seconds)
            else:
                self.done(-1)
                self._give_up([fit], error, group.candidates)

    def _give_up(
        self,
        fits: Sequence[Fit],
        failure: Exception,
        candidates: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Fit alone what failed: if it fails again, that is dealt with as scikit-learn does."""
        self.unbatched[f"training failed with {type(failure).__name__}"] += len(fits)
        self._run_alone(fits, candidates)

    def _score(self, estimator: Any, fit: Fit, seconds: float) -> Result:
        before = time.perf_counter()
        train, test = self.folds[fit.fold]
        result: Result = {"fit_error": None, "fit_time": seconds}
        sides = {"test_scores": test}
        if self.options["return_train_score"]:
            sides["train_scores"] = train
        for name, rows in sides.items():
            X, y = _safe_split(estimator, self.X, self.y, rows, train)
            params = _check_method_params(self.X, self.options["score_params"], indices=rows)
            error_score = self.options["error_score"]
            result[name] = _score(estimator, X, y, self.scorers, params, error_score)
        seconds = time.perf_counter() - before
        return result | {"n_test_samples": _num_samples(test), "score_time": seconds}

    def _run_alone(self, fits: Sequence[Fit], candidates: Mapping[int, Mapping[str, Any]]) -> None:
        """Fit one at a time, in several processes if asked for."""
        parallel = Parallel(self.n_jobs, pre_dispatch=self.pre_dispatch, return_as="generator")
        jobs = parallel(
            delayed(_fit_and_score)(
                clone(self.estimator),
                self.X,
                self.y,
                scorer=self.scorers,
                train=self.folds[fit.fold][0],
                test=self.folds[fit.fold][1],
                parameters=candidates[fit.candidate],
                return_n_test_samples=True,
                return_times=True,
                **self.options,
            )
            for fit in fits
        )
        for fit, result in zip(fits, jobs, strict=True):
            self.results[fit] = result
            self.done(1)


class _Group:
    """Candidates of one kind, and what their folds have in common."""

    def __init__(self, evaluation: Evaluation, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        self.evaluation, self.candidates = evaluation, candidates
        self.first = evaluation._make(next(iter(candidates.values())))
        self.problems: dict[Hashable, tuple[Problem, dict[str, Any]]] = {}
        self.n_splits = len({_split_key(evaluation._make(each)) for each in candidates.values()})
        self.prefixes: dict[int, tuple[Any, Any]] = {}

    def n_members(self) -> int:
        """How many fits are trained together."""
        shape = _array(self._rows(0)[0]).shape
        return _adapter(self.first)._n_members(
            shape, self.evaluation.max_memory, own_rows=self.n_splits > 1
        )

    def n_folds(self) -> int:
        """How many folds are trained side by side: as many as the memory has room for."""
        if not _adapter(self.first)._batches_folds:
            return 1
        X = _array(self._rows(0)[0])
        limit = self.evaluation.max_memory or CPU_BYTES
        copies = 2 * X.shape[0] * X.shape[1] * max(X.itemsize, 4) * self.n_splits
        return int(np.clip(limit // copies, 1, len(self.evaluation.folds)))

    def spans(self, n_folds: int) -> Iterator[list[int]]:
        """Give the folds whose fits are trained together: of like size, at most `n_folds`."""
        sizes: dict[int, list[int]] = {}
        for fold, (train, _) in enumerate(self.evaluation.folds):
            sizes.setdefault(_num_samples(train), []).append(fold)
        for folds in sizes.values():
            yield from (folds[start : start + n_folds] for start in range(0, len(folds), n_folds))

    def train(
        self, fits: Sequence[Fit], tick: Callable[[int], Any]
    ) -> tuple[list[Any], list[ValueError | None]]:
        """Give the fitted estimators, or why they could not be fitted."""
        estimators = [self.evaluation._make(self.candidates[fit.candidate]) for fit in fits]
        keys = [
            (fit.fold, _split_key(estimator))
            for fit, estimator in zip(fits, estimators, strict=True)
        ]
        problems: dict[Hashable, Problem] = {}
        for fit, key, estimator in zip(fits, keys, estimators, strict=True):
            adapter = _adapter(estimator)
            adapter._validate_params()
            adapter._check_combination()
            if key not in problems:
                problems[key] = self._problem(key, fit.fold, adapter)
            vars(adapter).update(self.problems[key][1])
            if fit.fold in self.prefixes:
                estimator.steps[:-1] = self.prefixes[fit.fold][0].steps
        errors: list[ValueError | None] = [None] * len(fits)
        for part in _of_one_size([problems[key] for key in keys]):
            shared = [problems[keys[place]] for place in part]
            with one_blas_thread_if_small(shared[0].X):
                adapters = [_adapter(estimators[place]) for place in part]
                members = [
                    adapter._make_member(problem)
                    for adapter, problem in zip(adapters, shared, strict=True)
                ]
                outcomes = fit_members(members, tick)
            for place, adapter, outcome in zip(part, adapters, outcomes, strict=True):
                errors[place] = outcome.error
                if outcome.error is None:
                    adapter._set_outcome(outcome)
        return estimators, errors

    def _problem(self, key: Hashable, fold: int, adapter: PenalisedAdapter) -> Problem:
        """Set out what candidates of one random state are fitted to; between blocks, less X."""
        X, y = self._rows(fold)
        if key in self.problems:
            problem, rows = self.problems[key][0], _array(X)
            return replace(problem, X=rows if problem.kept is None else rows[problem.kept])
        adapter = clone(adapter)
        with one_blas_thread_if_small(X):
            problem = adapter._prepare(X, y, **self.evaluation.fit_params(fold))
        features = {
            name: value
            for name, value in vars(adapter).items()
            if name in ("n_features_in_", "feature_names_in_")
        }
        self.problems[key] = replace(problem, X=problem.X[:0]), features
        return problem

    def _rows(self, fold: int) -> tuple[Any, Any]:
        """Give what the adapter is fitted to, the steps before it being fitted once a fold."""
        evaluation = self.evaluation
        train = evaluation.folds[fold][0]
        X, y = _safe_split(self.first, evaluation.X, evaluation.y, train)
        if not isinstance(self.first, Pipeline) or len(self.first) == 1:
            return X, y
        if fold not in self.prefixes:
            prefix = clone(self.first[:-1])
            self.prefixes[fold] = prefix, prefix.fit_transform(X, y)
        return self.prefixes[fold][1], y


def _adapter(estimator: Any) -> Any:
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _kind(estimator: Any) -> Hashable:
    prefix = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return prefix, _adapter(estimator)._batch_key()


def _split_key(estimator: Any) -> Hashable:
    """What decides, on one fold, which rows choose the epoch; None draws them once a fold."""
    return comparable(_adapter(estimator).random_state)


def _of_one_size(problems: Sequence[Problem]) -> list[list[int]]:
    """Give the places of problems with as many rows to train on and to validate on."""
    sizes: dict[Hashable, list[int]] = {}
    for place, problem in enumerate(problems):
        judged = 0 if problem.validating is None else len(problem.validating)
        sizes.setdefault((len(problem.fitting), judged), []).append(place)
    return list(sizes.values())


def _array(X: Any) -> NDArray[Any]:
    return check_array(as_array(X), dtype=[np.float64, np.float32], order="C")


def _parts(numbers: list[int], most: int) -> Iterator[list[int]]:
    """Cut into parts of nearly equal size, of `most` at most."""
    n_parts = -(-len(numbers) // most)
    yield from (part.tolist() for part in np.array_split(numbers, n_parts))

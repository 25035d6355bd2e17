"""Candidates of a search that can be trained together, and what they share on each fold."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import _check_method_params, _num_samples, check_array

from isoadapt._utils.devices import as_array
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters._penalised import PenalisedAdapter, comparable
from isoadapt.adapters._training._checkpoint import Checkpoint
from isoadapt.adapters._training._engine import TrainingInterrupted, fit_members
from isoadapt.adapters._training._memory import CPU_BYTES
from isoadapt.adapters._training._problem import Problem
from isoadapt.model_selection._saved_fits import Fit

Candidates = Mapping[int, Mapping[str, Any]]
"""Parameters of candidates by their index in the search."""


@dataclass(frozen=True)
class FitData:
    """The estimator whose parameters the candidates set, and the rows and folds it is fitted to."""

    estimator: BaseEstimator  # an adapter, or a pipeline that ends in one
    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]  # indices of the training and of the test rows
    fit_params: Mapping[str, Any]

    def make_estimator(self, parameters: Mapping[str, Any]) -> Any:
        """Return the estimator of a candidate, unfitted."""
        return clone(self.estimator).set_params(**clone(dict(parameters), safe=False))

    def reason_not_batched(self, estimator: Any) -> str | None:
        """Why an estimator must be fitted alone; None if it can be trained together with others."""
        adapter = _adapter(estimator)
        if isinstance(adapter, AdaptedEncoder):
            return (
                "an AdaptedEncoder inside a pipeline, or with an encoder or methods of its own, "
                "encodes the texts in every fit; search over the AdaptedEncoder alone, or give the "
                "encoder a cache"
            )
        if not isinstance(adapter, PenalisedAdapter):
            return f"{type(adapter).__name__} cannot be trained together with other candidates"
        if adapter._batch_key() is None:
            return "solver='exact' does not train in mini-batches"
        try:
            others = [name for name, own in self._step_params(estimator)[:-1] if own]
        except (KeyError, ValueError):  # a separate fit raises an error that says what is wrong
            return f"fit does not take the parameters {sorted(self.fit_params)}"
        if others:
            return f"fit has parameters for other steps than the adapter: {others}"
        return None

    def adapter_params(self, fold: int) -> dict[str, Any]:
        """What the adapter's fit takes besides X and y, for the training rows of a fold."""
        own = self._step_params(self.estimator)[-1][1]
        return _check_method_params(self.X, own, indices=self.folds[fold][0])

    def _step_params(self, estimator: Any) -> list[tuple[str, dict[str, Any]]]:
        """Parameters of fit for each step; those of the adapter are last."""
        if not isinstance(estimator, Pipeline):
            return [("adapter", dict(self.fit_params))]
        routed = estimator._check_method_params(method="fit", props=self.fit_params)
        found = []
        for name, _ in estimator.steps:
            own = routed.get(name, {})
            found.append((name, {**own.get("fit", {}), **own.get("fit_transform", {})}))
        return found


class Group:
    """Candidates that differ only in numbers, so that they can be trained together."""

    def __init__(self, data: FitData, candidates: Candidates, max_memory: int | None) -> None:
        self.data, self.candidates, self.max_memory = data, candidates, max_memory
        self.first = data.make_estimator(next(iter(candidates.values())))
        self.problems: dict[Hashable, tuple[Problem, dict[str, Any]]] = {}
        self.n_splits = len({_split_key(data.make_estimator(each)) for each in candidates.values()})
        self.fitted_prefixes: dict[int, tuple[Any, Any]] = {}

    def n_processes(self, n_jobs: int | None) -> int:
        """Number of processes that train at once; 1 on a GPU, whose memory they would share."""
        on_cpu = _adapter(self.first)._settings().device.type == "cpu"
        return effective_n_jobs(n_jobs) if on_cpu else 1

    def n_members(self) -> int:
        """Number of fits that are trained together."""
        shape = _array(self._rows(0)[0]).shape
        return _adapter(self.first)._n_members(shape, self.max_memory, own_rows=self.n_splits > 1)

    def n_folds(self) -> int:
        """Number of folds that are trained at once: as many as fit in memory."""
        if not _adapter(self.first)._batches_folds:
            return 1
        X = _array(self._rows(0)[0])
        limit = self.max_memory or CPU_BYTES
        copies = 2 * X.shape[0] * X.shape[1] * max(X.itemsize, 4) * self.n_splits
        return int(np.clip(limit // copies, 1, len(self.data.folds)))

    def fold_blocks(self, n_folds: int) -> list[list[int]]:
        """Blocks of at most `n_folds` folds of equal size, which are trained together."""
        numbers = range(len(self.data.folds))
        if n_folds == 1:
            return [[fold] for fold in numbers]
        sizes: dict[int, list[int]] = {}
        for fold in numbers:
            sizes.setdefault(self._n_distinct(fold), []).append(fold)
        return [
            folds[start : start + n_folds]
            for folds in sizes.values()
            for start in range(0, len(folds), n_folds)
        ]

    def train(
        self,
        fits: Sequence[Fit],
        on_finished: Callable[[int], Any],
        checkpoint: Checkpoint | None,
    ) -> tuple[list[Any], list[BaseException | None]]:
        """Fitted estimators and, for each, None or the error of its training.

        After an interrupt, it is the error of all that are not complete.
        """
        estimators, problems = self._prepare_fits(fits)
        errors: list[BaseException | None] = [None] * len(fits)
        stop: TrainingInterrupted | None = None
        for number, part in enumerate(_parts_of_equal_size(problems)):
            outcomes: Sequence[Any] = [None] * len(part)
            if stop is None:
                own = None if checkpoint is None else checkpoint.stage(number)
                adapters = [_adapter(estimators[index]) for index in part]
                shared = [problems[index] for index in part]
                outcomes, stop = _train_part(adapters, shared, on_finished, own)
            for index, outcome in zip(part, outcomes, strict=True):
                errors[index] = stop if outcome is None else outcome.error
        return estimators, errors

    def _prepare_fits(self, fits: Sequence[Fit]) -> tuple[list[Any], list[Problem]]:
        """Unfitted estimators and their problems, one for all with the same rows and split."""
        estimators = [self.data.make_estimator(self.candidates[fit.candidate]) for fit in fits]
        problems: dict[Hashable, Problem] = {}
        keys = []
        for fit, estimator in zip(fits, estimators, strict=True):
            key = fit.fold, _split_key(estimator)
            keys.append(key)
            adapter = _adapter(estimator)
            adapter._validate_params()
            adapter._check_combination()
            if key not in problems:
                problems[key] = self._problem(key, fit.fold, adapter)
            vars(adapter).update(self.problems[key][1])
            if fit.fold in self.fitted_prefixes:
                estimator.steps[:-1] = self.fitted_prefixes[fit.fold][0].steps
        return estimators, [problems[key] for key in keys]

    def _n_distinct(self, fold: int) -> int:
        """Number of training rows of a fold after equal rows have been merged."""
        try:
            X, y = self._rows(fold)
            sample = clone(_adapter(self.first))._check_sample(
                X, y, **{"sample_weight": None, "groups": None} | self.data.adapter_params(fold)
            )
        except Exception:  # the training of this fold raises it again
            return _num_samples(self.data.folds[fold][0])
        return len(sample.X)

    def _problem(self, key: Hashable, fold: int, adapter: PenalisedAdapter) -> Problem:
        """Training problem for one fold and random state; between blocks it is kept without X."""
        X, y = self._rows(fold)
        if key in self.problems:
            problem, rows = self.problems[key][0], _array(X)
            return replace(problem, X=rows if problem.kept is None else rows[problem.kept])
        adapter = clone(adapter)
        with one_blas_thread_if_small(X):
            problem = adapter._prepare(X, y, **self.data.adapter_params(fold))
        features = {
            name: value
            for name, value in vars(adapter).items()
            if name in ("n_features_in_", "feature_names_in_")
        }
        self.problems[key] = replace(problem, X=problem.X[:0]), features
        return problem

    def _rows(self, fold: int) -> tuple[Any, Any]:
        """Input of the adapter on a fold; the steps before it are fitted once per fold."""
        X, y = _safe_split(self.first, self.data.X, self.data.y, self.data.folds[fold][0])
        if not isinstance(self.first, Pipeline) or len(self.first) == 1:
            return X, y
        if fold not in self.fitted_prefixes:
            prefix = clone(self.first[:-1])
            self.fitted_prefixes[fold] = prefix, prefix.fit_transform(X, y)
        return self.fitted_prefixes[fold][1], y


def group_key(estimator: Any) -> Hashable:
    """Return a key that is equal for estimators that can be trained together."""
    prefix = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return prefix, _adapter(estimator)._batch_key()


def _adapter(estimator: Any) -> Any:
    """Adapter of an estimator: the last step of a pipeline, or the estimator itself."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _train_part(
    adapters: Sequence[Any],
    problems: Sequence[Problem],
    on_finished: Callable[[int], Any],
    checkpoint: Checkpoint | None,
) -> tuple[Sequence[Any], TrainingInterrupted | None]:
    """Train adapters together, and set their fitted attributes.

    Returned are the outcomes, None for those that an interrupt left incomplete, and the interrupt.
    """
    outcomes: Sequence[Any]
    stop = None
    with one_blas_thread_if_small(problems[0].X):
        pairs = zip(adapters, problems, strict=True)
        members = [adapter._make_member(problem) for adapter, problem in pairs]
        try:
            outcomes = fit_members(members, on_finished, checkpoint)
        except TrainingInterrupted as raised:
            stop, outcomes = raised, raised.outcomes
    for adapter, outcome in zip(adapters, outcomes, strict=True):
        if outcome is not None and outcome.error is None:
            adapter._set_outcome(outcome)
    return outcomes, stop


def _split_key(estimator: Any) -> Hashable:
    """Key of the random state, which determines the validation rows that each fold gets."""
    return comparable(_adapter(estimator).random_state)


def _parts_of_equal_size(problems: Sequence[Problem]) -> list[list[int]]:
    """Indices of problems, grouped by their numbers of training and validation rows."""
    sizes: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        n_validation = 0 if problem.validating is None else len(problem.validating)
        sizes.setdefault((len(problem.fitting), n_validation), []).append(index)
    return list(sizes.values())


def _array(X: Any) -> NDArray[Any]:
    return check_array(as_array(X), dtype=[np.float64, np.float32], order="C")

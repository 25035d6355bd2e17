"""Cross-validation of many candidates; those that differ only in numbers are trained together."""

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples, check_array

from isoadapt._utils.devices import as_array
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import (
    CPU_BYTES,
    Checkpoint,
    PenalisedAdapter,
    Problem,
    TrainingInterrupted,
    UnequalPenaltiesError,
    comparable,
    fit_members,
)
from isoadapt.model_selection._result_cache import ResultCache
from isoadapt.model_selection._saved_fits import Fit, Result, SavedBlock, SavedFits


@dataclass
class Evaluation:
    """Fits candidates to folds and scores them; `run` fills `results` and `unbatched`."""

    estimator: BaseEstimator  # an adapter, or a pipeline that ends in one
    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]  # indices of the training and of the test rows
    scorers: Callable[..., Any]  # returns one score or a dict of scores
    options: Mapping[str, Any]  # further arguments of scikit-learn's _fit_and_score
    n_jobs: int | None
    pre_dispatch: int | str
    max_memory: int | None  # bytes for a training; None: 2 GiB, or half of the free GPU memory
    report_done: Callable[[int], Any]  # called with the number of fits that have ended
    results: dict[Fit, Result] = field(default_factory=dict)
    unbatched: Counter[str] = field(default_factory=Counter)  # fits done one at a time, by reason
    cache: ResultCache | None = None

    def __post_init__(self) -> None:
        options = {name: value for name, value in self.options.items() if name != "verbose"}
        problem = (self.estimator, self.X, self.y, list(self.folds), self.scorers, options)
        self.saved = SavedFits(self.cache, problem)

    def run(self, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        """Fit and score candidates, given as parameters by index, on every fold."""
        separate: list[Fit] = []
        groups: dict[Hashable, list[int]] = {}
        for number, parameters in candidates.items():
            estimator = self._make_estimator(parameters)
            reason = self._reason_not_batched(estimator)
            if reason is None:
                groups.setdefault(_group_key(estimator), []).append(number)
            else:
                self.unbatched[reason] += len(self.folds)
                separate += [Fit(number, fold) for fold in range(len(self.folds))]
        for members in groups.values():
            self._run_group({number: candidates[number] for number in members})
        self._run_separately(separate, candidates)

    def _make_estimator(self, parameters: Mapping[str, Any]) -> Any:
        return clone(self.estimator).set_params(**clone(dict(parameters), safe=False))

    def _reason_not_batched(self, estimator: Any) -> str | None:
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
            return f"fit does not take the parameters {sorted(self.options['fit_params'])}"
        if others:
            return f"fit has parameters for other steps than the adapter: {others}"
        return None

    def _step_params(self, estimator: Any) -> list[tuple[str, dict[str, Any]]]:
        """Parameters of fit for each step; those of the adapter are last."""
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
        """What the adapter's fit takes besides X and y, for the training rows of a fold."""
        own = self._step_params(self.estimator)[-1][1]
        return _check_method_params(self.X, own, indices=self.folds[fold][0])

    def _run_group(self, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        """Train one group in chunks: all candidates on several folds, or some of them on one."""
        group = _Group(self, candidates)
        fits = [Fit(number, fold) for number in candidates for fold in range(len(self.folds))]
        try:
            n_processes = group.n_processes()
            n_members = self.saved.size(fits, candidates, group.n_members)
            n_members = min(n_members, math.ceil(len(fits) / n_processes))
            # Candidates come before folds, because those on the same fold share its rows.
            n_candidates = min(n_members, math.ceil(len(candidates) / n_processes))
            n_folds = min(group.n_folds(), n_members // n_candidates)
            fold_blocks = group.fold_blocks(n_folds)
        except Exception as failure:
            self._retry_separately(fits, failure, candidates)
            return
        chunks = [
            [Fit(number, fold) for fold in folds for number in numbers]
            for numbers in _split_evenly(list(candidates), n_candidates)
            for folds in sorted(fold_blocks, key=len, reverse=True)
        ]
        left = [c for c in chunks if not self._restore(c, self._file(c, candidates))]
        if min(n_processes, len(left)) > 1:
            group.fitted_prefixes.clear()  # each process fits its own
            self._run_in_processes(candidates, left)
            return
        for chunk in left:
            self._run_chunk(group, chunk)

    def _run_in_processes(
        self, candidates: Mapping[int, Mapping[str, Any]], chunks: Sequence[Sequence[Fit]]
    ) -> None:
        """Run chunks in `n_jobs` processes."""
        own = copy.copy(self)
        own.n_jobs, own.report_done = 1, _ignore
        own.results, own.unbatched = {}, Counter()  # those of `self` change meanwhile
        jobs = self._parallel("generator_unordered")(
            delayed(_run_alone)(own, candidates, chunk) for chunk in chunks
        )
        for results, unbatched in jobs:
            self.results.update(results)
            self.unbatched += unbatched
            self.report_done(len(results))

    def _parallel(self, return_as: str) -> Parallel:
        return Parallel(self.n_jobs, pre_dispatch=self.pre_dispatch, return_as=return_as)

    def _run_chunk(self, group: "_Group", fits: Sequence[Fit]) -> None:
        """Train together; if that fails, train each half together, down to single fits.

        Members whose penalties cannot be joined are trained one at a time immediately.
        """
        file = self._file(fits, group.candidates)
        if self._restore(fits, file):
            return
        checkpoint = self.saved.checkpoint(fits, group.candidates)
        before = time.perf_counter()
        n_pending = len(fits)

        def on_finished(finished: int) -> None:
            nonlocal n_pending
            n_pending -= finished
            self.report_done(finished)

        try:
            estimators, errors = group.train(fits, on_finished, checkpoint)
        except Exception as failure:
            self.report_done(n_pending - len(fits))
            if len(fits) == 1:
                self._retry_separately(fits, failure, group.candidates)
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
        unbatched = self.unbatched.copy()
        stop = next((error for error in errors if isinstance(error, TrainingInterrupted)), None)
        for fit, estimator, error in zip(fits, estimators, errors, strict=True):
            if error is None:
                self.results[fit] = self._score(estimator, fit, seconds)
            elif stop is None:
                self.report_done(-1)
                self._retry_separately([fit], error, group.candidates)
        if stop is not None:
            raise stop
        results = [self.results[fit] for fit in fits]
        self.saved.write(file, SavedBlock(results, self.unbatched - unbatched))
        if checkpoint is not None:
            checkpoint.remove()

    def _file(
        self, fits: Sequence[Fit], candidates: Mapping[int, Mapping[str, Any]]
    ) -> Path | None:
        """File of the results of fits that are trained together; None without a cache."""
        return self.saved.file("together", fits, candidates)

    def _restore(self, fits: Sequence[Fit], file: Path | None) -> bool:
        """Take the results of fits from their file; False if it has none."""
        block = self.saved.read(file, len(fits))
        if block is None:
            return False
        self.results.update(zip(fits, block.results, strict=True))
        self.unbatched += block.unbatched
        self.report_done(len(fits))
        return True

    def _retry_separately(
        self,
        fits: Sequence[Fit],
        failure: BaseException,
        candidates: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Fit again, one at a time, what failed; scikit-learn's rules apply if it fails again."""
        self.unbatched[f"training failed with {type(failure).__name__}"] += len(fits)
        self._run_separately(fits, candidates)

    def _score(self, estimator: Any, fit: Fit, seconds: float) -> Result:
        """Scores of a fitted estimator, which took `seconds` to fit, on a fold."""
        before = time.perf_counter()
        train, test = self.folds[fit.fold]
        result: Result = {"fit_error": None, "fit_time": seconds}
        row_sets = {"test_scores": test}
        if self.options["return_train_score"]:
            row_sets["train_scores"] = train
        for name, rows in row_sets.items():
            X, y = _safe_split(estimator, self.X, self.y, rows, train)
            params = _check_method_params(self.X, self.options["score_params"], indices=rows)
            error_score = self.options["error_score"]
            result[name] = _score(estimator, X, y, self.scorers, params, error_score)
        seconds = time.perf_counter() - before
        return result | {"n_test_samples": _num_samples(test), "score_time": seconds}

    def _run_separately(
        self, fits: Sequence[Fit], candidates: Mapping[int, Mapping[str, Any]]
    ) -> None:
        """Fit one at a time, in `n_jobs` processes."""
        files = {fit: self.saved.file("alone", [fit], candidates) for fit in fits}
        fits = [fit for fit in fits if not self._restore([fit], files[fit])]
        jobs = self._parallel("generator")(
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
            self.saved.write(files[fit], SavedBlock([result], Counter()))
            self.report_done(1)


class _Group:
    """Candidates that can be trained together, and what they share on each fold."""

    def __init__(self, evaluation: Evaluation, candidates: Mapping[int, Mapping[str, Any]]) -> None:
        self.evaluation, self.candidates = evaluation, candidates
        self.first = evaluation._make_estimator(next(iter(candidates.values())))
        self.problems: dict[Hashable, tuple[Problem, dict[str, Any]]] = {}
        self.n_splits = len(
            {_split_key(evaluation._make_estimator(each)) for each in candidates.values()}
        )
        self.fitted_prefixes: dict[int, tuple[Any, Any]] = {}

    def n_processes(self) -> int:
        """Number of processes that train at once; 1 on a GPU, whose memory they would share."""
        on_cpu = _adapter(self.first)._settings().device.type == "cpu"
        return effective_n_jobs(self.evaluation.n_jobs) if on_cpu else 1

    def n_members(self) -> int:
        """Number of fits that are trained together."""
        shape = _array(self._rows(0)[0]).shape
        return _adapter(self.first)._n_members(
            shape, self.evaluation.max_memory, own_rows=self.n_splits > 1
        )

    def n_folds(self) -> int:
        """Number of folds that are trained at once: as many as fit in memory."""
        if not _adapter(self.first)._batches_folds:
            return 1
        X = _array(self._rows(0)[0])
        limit = self.evaluation.max_memory or CPU_BYTES
        copies = 2 * X.shape[0] * X.shape[1] * max(X.itemsize, 4) * self.n_splits
        return int(np.clip(limit // copies, 1, len(self.evaluation.folds)))

    def fold_blocks(self, n_folds: int) -> list[list[int]]:
        """Blocks of at most `n_folds` folds of equal size, which are trained together."""
        numbers = range(len(self.evaluation.folds))
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

    def _n_distinct(self, fold: int) -> int:
        """Number of training rows of a fold after equal rows have been merged."""
        try:
            X, y = self._rows(fold)
            sample = clone(_adapter(self.first))._check_sample(
                X, y, **{"sample_weight": None, "groups": None} | self.evaluation.fit_params(fold)
            )
        except Exception:  # the training of this fold raises it again
            return _num_samples(self.evaluation.folds[fold][0])
        return len(sample.X)

    def train(
        self,
        fits: Sequence[Fit],
        on_finished: Callable[[int], Any],
        checkpoint: Checkpoint | None,
    ) -> tuple[list[Any], list[BaseException | None]]:
        """Fitted estimators and, for each, None or the error of its training.

        After an interrupt, it is the error of all that are not complete.
        """
        estimators = [
            self.evaluation._make_estimator(self.candidates[fit.candidate]) for fit in fits
        ]
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
            if fit.fold in self.fitted_prefixes:
                estimator.steps[:-1] = self.fitted_prefixes[fit.fold][0].steps
        errors: list[BaseException | None] = [None] * len(fits)
        stop: TrainingInterrupted | None = None
        parts = _parts_of_equal_size([problems[key] for key in keys])
        for number, part in enumerate(parts):
            if stop is not None:
                errors = [stop if k in part else error for k, error in enumerate(errors)]
                continue
            own = None if checkpoint is None else checkpoint.stage(number)
            shared = [problems[keys[index]] for index in part]
            with one_blas_thread_if_small(shared[0].X):
                adapters = [_adapter(estimators[index]) for index in part]
                members = [
                    adapter._make_member(problem)
                    for adapter, problem in zip(adapters, shared, strict=True)
                ]
                try:
                    outcomes: Sequence[Any] = fit_members(members, on_finished, own)
                except TrainingInterrupted as raised:
                    stop, outcomes = raised, raised.outcomes
            for index, adapter, outcome in zip(part, adapters, outcomes, strict=True):
                errors[index] = stop if outcome is None else outcome.error
                if outcome is not None and outcome.error is None:
                    adapter._set_outcome(outcome)
        return estimators, errors

    def _problem(self, key: Hashable, fold: int, adapter: PenalisedAdapter) -> Problem:
        """Training problem for one fold and random state; between blocks it is kept without X."""
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
        """Input of the adapter on a fold; the steps before it are fitted once per fold."""
        evaluation = self.evaluation
        train = evaluation.folds[fold][0]
        X, y = _safe_split(self.first, evaluation.X, evaluation.y, train)
        if not isinstance(self.first, Pipeline) or len(self.first) == 1:
            return X, y
        if fold not in self.fitted_prefixes:
            prefix = clone(self.first[:-1])
            self.fitted_prefixes[fold] = prefix, prefix.fit_transform(X, y)
        return self.fitted_prefixes[fold][1], y


def _run_alone(
    evaluation: Evaluation, candidates: Mapping[int, Mapping[str, Any]], fits: Sequence[Fit]
) -> tuple[dict[Fit, Result], Counter[str]]:
    """Run one chunk; return its results, and the fits done one at a time by reason."""
    evaluation = copy.copy(evaluation)
    evaluation.results, evaluation.unbatched = {}, Counter()
    evaluation._run_chunk(_Group(evaluation, candidates), fits)
    return evaluation.results, evaluation.unbatched


def _ignore(n_finished: int) -> None:
    """Report nothing."""


def _adapter(estimator: Any) -> Any:
    """Adapter of an estimator: the last step of a pipeline, or the estimator itself."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _group_key(estimator: Any) -> Hashable:
    """Key that is equal for estimators that can be trained together."""
    prefix = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return prefix, _adapter(estimator)._batch_key()


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


def _split_evenly(numbers: list[int], max_size: int) -> Iterator[list[int]]:
    """Split into parts of nearly equal size, at most `max_size` each."""
    n_parts = -(-len(numbers) // max_size)
    yield from (part.tolist() for part in np.array_split(numbers, n_parts))

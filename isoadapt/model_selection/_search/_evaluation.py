"""Cross-validation of many candidates; those that differ only in numbers are trained together."""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples

from isoadapt._utils.devices import resolve_device
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._together import (
    comparable,
    fit_together,
    limits,
    prepare,
    with_rows,
)
from isoadapt.adapters._training._problem import Problem
from isoadapt.model_selection._result_cache import ResultCache, read_result, write_result

Candidates = Mapping[int, Mapping[str, Any]]
"""Parameters of candidates by their index in the search."""

Result = dict[str, Any]
"""Result of a fit as scikit-learn's searches store it: scores, times, the error."""


class Fit(NamedTuple):
    """A candidate on a fold, both given by their indices."""

    candidate: int
    fold: int


@dataclass(frozen=True)
class FitData:
    """What all candidates share: the estimator, the rows and folds, and how fits are judged."""

    estimator: BaseEstimator  # an adapter, or a pipeline that ends in one
    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]  # indices of the training and of the test rows
    scorers: Callable[..., Any]  # returns one score or a dict of scores
    options: Mapping[str, Any]  # further arguments of scikit-learn's _fit_and_score

    def make_estimator(self, parameters: Mapping[str, Any]) -> Any:
        """Return the estimator of a candidate, unfitted."""
        return clone(self.estimator).set_params(**clone(dict(parameters), safe=False))

    def reason_not_batched(self, estimator: Any) -> str | None:
        """Why an estimator must be fitted alone; None if it can be trained together with others."""
        adapter = _adapter(estimator)
        if isinstance(adapter, AdaptedEncoder):
            return (
                "an AdaptedEncoder inside a pipeline, with a teacher, or with an encoder or "
                "methods of its own encodes the texts in every fit; search over the AdaptedEncoder "
                "alone, or give the encoder a cache, and the teacher too"
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

    def adapter_params(self, fold: int) -> dict[str, Any]:
        """What the adapter's fit takes besides X and y, for the training rows of a fold."""
        own = self._step_params(self.estimator)[-1][1]
        return _check_method_params(self.X, own, indices=self.folds[fold][0])

    def _step_params(self, estimator: Any) -> list[tuple[str, dict[str, Any]]]:
        """Parameters of fit for each step; those of the adapter are last."""
        if not isinstance(estimator, Pipeline):
            return [("adapter", dict(self.options["fit_params"]))]
        routed = estimator._check_method_params(method="fit", props=self.options["fit_params"])
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
        self.prepared: dict[Hashable, Problem] = {}  # by fold and random state, without rows
        self.fitted_prefixes: dict[int, tuple[Any, Any]] = {}

    def n_processes(self, n_jobs: int | None) -> int:
        """Number of processes that train at once; 1 on a GPU, whose memory they would share."""
        on_cpu = resolve_device(_adapter(self.first).device).type == "cpu"
        return effective_n_jobs(n_jobs) if on_cpu else 1

    def limits(self) -> tuple[int, int]:
        """Number of fits, and of folds, that are trained together: as many as fit in memory."""
        estimators = map(self.data.make_estimator, self.candidates.values())
        n_splits = len({_split_key(each) for each in estimators})
        return limits(_adapter(self.first), self._rows(0)[0], self.max_memory, n_splits)

    def train(
        self, fits: Sequence[Fit], on_finished: Callable[[int], Any]
    ) -> tuple[list[Any], list[ValueError | None]]:
        """Fitted estimators and, for each, None or the error of its training."""
        estimators = [self.data.make_estimator(self.candidates[fit.candidate]) for fit in fits]
        shared: dict[Hashable, Problem] = {}
        keys: list[Hashable] = []
        for fit, estimator in zip(fits, estimators, strict=True):
            key = fit.fold, _split_key(estimator)
            keys.append(key)
            if key not in shared:
                shared[key] = self._prepare(key, fit.fold, _adapter(estimator))
            if fit.fold in self.fitted_prefixes:
                estimator.steps[:-1] = self.fitted_prefixes[fit.fold][0].steps
        adapters = [_adapter(estimator) for estimator in estimators]
        problems = [shared[key] for key in keys]
        return estimators, fit_together(adapters, problems, on_finished)

    def _prepare(self, key: Hashable, fold: int, adapter: PenalisedAdapter) -> Problem:
        """Training input for one fold and random state; between blocks it is kept without rows."""
        X, y = self._rows(fold)
        if key in self.prepared:
            return with_rows(self.prepared[key], X)
        problem = prepare(adapter, X, y, **self.data.adapter_params(fold))
        self.prepared[key] = replace(problem, X=problem.X[:0])
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


@dataclass
class Evaluation:
    """Fits candidates to folds and scores them; `run` fills `results` and `unbatched`."""

    data: FitData
    n_jobs: int | None
    pre_dispatch: int | str
    max_memory: int | None  # bytes for a training; None: 2 GiB, or half of the free GPU memory
    report_done: Callable[[int], Any]  # called with the number of fits that have ended
    cache: ResultCache | None = None
    results: dict[Fit, Result] = field(default_factory=dict)
    unbatched: Counter[str] = field(default_factory=Counter)  # fits done one at a time, by reason

    def run(self, candidates: Candidates) -> None:
        """Fit and score candidates on every fold."""
        separate: list[Fit] = []
        groups: dict[Hashable, dict[int, Any]] = {}
        for number, parameters in candidates.items():
            estimator = self.data.make_estimator(parameters)
            reason = self.data.reason_not_batched(estimator)
            if reason is None:
                groups.setdefault(_group_key(estimator), {})[number] = parameters
            else:
                self.unbatched[reason] += len(self.data.folds)
                separate += self._fits([number])
        in_processes: list[tuple[Group, list[Fit]]] = []
        for own in groups.values():
            group = Group(self.data, own, self.max_memory)
            n_processes, blocks = self._blocks(group)
            if n_processes > 1:
                group.fitted_prefixes.clear()  # each process fits its own
                in_processes += [(group, fits) for fits in blocks if not self._restore(fits, own)]
            else:
                for fits in blocks:
                    self._run_block(group, fits)
        self._run_in_processes(in_processes)
        self._run_separately(separate, candidates)

    def _fits(self, numbers: Iterable[int]) -> list[Fit]:
        return [Fit(number, fold) for number in numbers for fold in range(len(self.data.folds))]

    def _blocks(self, group: Group) -> tuple[int, list[list[Fit]]]:
        """Number of processes, and blocks of fits to train together; after an error, none."""
        candidates, n_folds = group.candidates, len(self.data.folds)
        fits = self._fits(candidates)
        try:
            n_processes = group.n_processes(self.n_jobs)
            most, most_folds = self._limits(group, fits)
        except Exception as failure:
            self._retry_separately(fits, failure, candidates)
            return 1, []
        most = min(most, math.ceil(len(fits) / n_processes))
        # Candidates come before folds, because those on the same fold share its rows.
        n_candidates = min(most, math.ceil(len(candidates) / n_processes))
        size = min(most_folds, most // n_candidates)
        folds = [range(n_folds)[start : start + size] for start in range(0, n_folds, size)]
        return n_processes, [
            [Fit(number, fold) for fold in block for number in numbers]
            for numbers in _split_evenly(list(candidates), n_candidates)
            for block in folds
        ]

    def _run_in_processes(self, blocks: Sequence[tuple[Group, Sequence[Fit]]]) -> None:
        """Run blocks in `n_jobs` processes; if there is only one block, run it here."""
        if len(blocks) < 2:
            for group, fits in blocks:
                self._run_block(group, fits)
            return
        jobs = self._parallel("generator_unordered")(
            delayed(_run_alone)(
                replace(self, n_jobs=1, report_done=_ignore, results={}, unbatched=Counter()),
                group.candidates,
                fits,
            )
            for group, fits in blocks
        )
        for results, unbatched in jobs:
            self.results.update(results)
            self.unbatched.update(unbatched)
            self.report_done(len(results))

    def _parallel(self, return_as: str) -> Parallel:
        return Parallel(self.n_jobs, pre_dispatch=self.pre_dispatch, return_as=return_as)

    def _run_block(self, group: Group, fits: Sequence[Fit]) -> None:
        """Train together; if that fails, run the parts."""
        if self._restore(fits, group.candidates):
            return
        before = time.perf_counter()
        n_pending = len(fits)

        def on_finished(finished: int) -> None:
            nonlocal n_pending
            n_pending -= finished
            self.report_done(finished)

        try:
            estimators, errors = group.train(fits, on_finished)
        except Exception as failure:
            self.report_done(n_pending - len(fits))
            self._run_parts(group, fits, failure)
            return
        seconds = (time.perf_counter() - before) / len(fits)
        unbatched = self.unbatched.copy()
        for fit, estimator, error in zip(fits, estimators, errors, strict=True):
            if error is None:
                self.results[fit] = self._score(estimator, fit, seconds)
            else:
                self.report_done(-1)
                self._retry_separately([fit], error, group.candidates)
        self._save("together", fits, group.candidates, self.unbatched - unbatched)

    def _run_parts(self, group: Group, fits: Sequence[Fit], failure: Exception) -> None:
        """Train each half of a block that failed."""
        if len(fits) == 1:
            self._retry_separately(fits, failure, group.candidates)
            return
        middle = len(fits) // 2
        for part in (fits[:middle], fits[middle:]):
            self._run_block(group, part)

    def _retry_separately(
        self, fits: Sequence[Fit], failure: BaseException, candidates: Candidates
    ) -> None:
        """Fit again, one at a time, what failed; scikit-learn's rules apply if it fails again."""
        self.unbatched[f"training failed with {type(failure).__name__}"] += len(fits)
        self._run_separately(fits, candidates)

    def _score(self, estimator: Any, fit: Fit, seconds: float) -> Result:
        """Scores of a fitted estimator, which took `seconds` to fit, on a fold."""
        before = time.perf_counter()
        data, options = self.data, self.data.options
        train, test = data.folds[fit.fold]
        result: Result = {"fit_error": None, "fit_time": seconds}
        row_sets = {"test_scores": test}
        if options["return_train_score"]:
            row_sets["train_scores"] = train
        for name, rows in row_sets.items():
            X, y = _safe_split(estimator, data.X, data.y, rows, train)
            params = _check_method_params(data.X, options["score_params"], indices=rows)
            result[name] = _score(estimator, X, y, data.scorers, params, options["error_score"])
        seconds = time.perf_counter() - before
        return result | {"n_test_samples": _num_samples(test), "score_time": seconds}

    def _run_separately(self, fits: Sequence[Fit], candidates: Candidates) -> None:
        """Fit one at a time, in `n_jobs` processes."""
        data = self.data
        fits = [fit for fit in fits if not self._restore([fit], candidates, "alone")]
        jobs = self._parallel("generator")(
            delayed(_fit_and_score)(
                clone(data.estimator),
                data.X,
                data.y,
                scorer=data.scorers,
                train=data.folds[fit.fold][0],
                test=data.folds[fit.fold][1],
                parameters=candidates[fit.candidate],
                return_n_test_samples=True,
                return_times=True,
                **data.options,
            )
            for fit in fits
        )
        for fit, result in zip(fits, jobs, strict=True):
            self.results[fit] = result
            self._save("alone", [fit], candidates, Counter())
            self.report_done(1)

    # --- files of the cache --------------------------------------------------------------------

    def _file(self, kind: str, fits: Sequence[Fit], candidates: Candidates) -> Path | None:
        """File of fits that are done together or alone, as `kind` says; None without a cache."""
        if self.cache is None:
            return None
        own = [(sorted(candidates[fit.candidate].items()), fit.fold) for fit in fits]
        return self.cache.file(kind, own, "a value in param_grid")

    def _restore(self, fits: Sequence[Fit], candidates: Candidates, kind: str = "together") -> bool:
        """Take the results of fits from their file; False if it has none."""
        file = self._file(kind, fits, candidates)
        saved = None if file is None else read_result(file, tuple)
        if saved is None:
            return False
        results, unbatched = saved
        self.results.update(zip(fits, results, strict=True))
        self.unbatched.update(unbatched)
        self.report_done(len(fits))
        return True

    def _save(
        self, kind: str, fits: Sequence[Fit], candidates: Candidates, unbatched: Counter[str]
    ) -> None:
        """Write the results of fits, unless one of them failed or has no score."""
        file, results = self._file(kind, fits, candidates), [self.results[fit] for fit in fits]
        if file is not None and all(map(_is_complete, results)):
            write_result(file, (results, unbatched))

    def _limits(self, group: Group, fits: Sequence[Fit]) -> tuple[int, int]:
        """Limits of a group; those of an earlier search are kept, whatever memory is free now."""
        file = self._file("limits", fits, group.candidates)
        known: tuple[int, int] | None = None if file is None else read_result(file, tuple)
        if known is None:
            known = group.limits()
            if file is not None:
                write_result(file, known)
        return known


def _run_alone(
    evaluation: Evaluation, candidates: Candidates, fits: Sequence[Fit]
) -> tuple[dict[Fit, Result], Counter[str]]:
    """Run one block; return its results, and the fits done one at a time by reason."""
    evaluation._run_block(Group(evaluation.data, candidates, evaluation.max_memory), fits)
    return evaluation.results, evaluation.unbatched


def _is_complete(result: Result) -> bool:
    """Whether a fit succeeded and all its scores are finite."""
    scores = result.get("test_scores")
    values = list(scores.values()) if isinstance(scores, dict) else [scores]
    return result["fit_error"] is None and bool(np.isfinite(np.asarray(values, float)).all())


def _ignore(n_finished: int) -> None:
    """Report nothing."""


def _split_evenly(numbers: list[int], max_size: int) -> Iterator[list[int]]:
    """Split into parts of nearly equal size, at most `max_size` each."""
    n_parts = -(-len(numbers) // max_size)
    yield from (part.tolist() for part in np.array_split(numbers, n_parts))


def _group_key(estimator: Any) -> Hashable:
    """Return a key that is equal for estimators that can be trained together."""
    prefix = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return prefix, _adapter(estimator)._batch_key()


def _adapter(estimator: Any) -> Any:
    """Adapter of an estimator: the last step of a pipeline, or the estimator itself."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _split_key(estimator: Any) -> Hashable:
    """Key of the random state, which determines the validation rows that each fold gets."""
    return comparable(_adapter(estimator).random_state)

"""Cross-validation of many candidates; those that differ only in numbers are trained together."""

import math
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import Parallel, delayed

from isoadapt._utils.containers import comparable
from isoadapt._utils.devices import resolve_device
from isoadapt._utils.sklearn_private import (
    _check_method_params,
    _fit_and_score,
    _safe_split,
    _score,
)
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import LogitPreservingWhitening
from isoadapt.adapters._engine._task import Problem
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._together import fit_together, limits, prepare


class Fit(NamedTuple):
    """A candidate on a fold, both given by their indices."""

    candidate: int
    fold: int


class Outcome(NamedTuple):
    """The result of a fit, as scikit-learn's searches store it, and why it was done alone."""

    result: dict[str, Any]
    reason: str | None = None  # None: it was trained together with others

    def is_complete(self) -> bool:
        """Whether the fit succeeded and all its scores are finite."""
        scores = self.result["test_scores"]
        values = list(scores.values()) if isinstance(scores, dict) else [scores]
        return self.result["fit_error"] is None and bool(np.isfinite(values).all())


@dataclass(frozen=True)
class FitData:
    """What all candidates share: the rows and folds, and how fits are judged."""

    X: Any
    y: Any
    folds: Sequence[tuple[Any, Any]]  # indices of the training and of the test rows
    options: Mapping[str, Any]  # further arguments of scikit-learn's _fit_and_score


class Group:
    """Candidates that differ only in numbers, or one that must be fitted alone for a reason."""

    def __init__(self, data: FitData, candidates: Mapping[int, Any]) -> None:
        self.data, self.candidates = data, candidates
        self.first = next(iter(candidates.values()))
        self.reason = _reason_alone(self.first)
        self.fitted: dict[int, tuple[Any, Any, Any]] = {}  # by fold, see _fit_steps
        self.problems: dict[Hashable, Problem] = {}  # by fold and random state

    def blocks(self, n_processes: int, max_memory: int | None) -> Iterator[list[Fit]]:
        """Fits to train together: as many as fit in memory, shared out among processes."""
        numbers, n_folds = list(self.candidates), len(self.data.folds)
        most = most_folds = 1
        if self.reason is None:
            n_splits = len({_split_key(each) for each in self.candidates.values()})
            try:
                X = self._fit_steps(0)[1][0]
                most, most_folds = limits(_adapter(self.first), X, max_memory, n_splits)
            except Exception:  # each fit meets it again, and scikit-learn's rules apply
                pass
        if n_processes > 1:
            self.fitted.clear()  # each process fits its own
        most = min(most, math.ceil(len(numbers) * n_folds / n_processes))
        # Candidates come before folds, because those on the same fold share its rows.
        n_candidates = min(most, math.ceil(len(numbers) / n_processes))
        n_together = min(most_folds, most // n_candidates)
        for part in _split_evenly(numbers, n_candidates):
            for folds in _split_evenly(range(n_folds), n_together):
                yield [Fit(number, fold) for fold in folds for number in part]

    def run(self, fits: Sequence[Fit]) -> list[tuple[Fit, Outcome]]:
        """Train together and score; what fails is fitted alone, by scikit-learn's rules."""
        before = time.perf_counter()
        estimators = [clone(self.candidates[fit.candidate]) for fit in fits]
        reasons = self._train(fits, estimators)
        seconds = (time.perf_counter() - before) / len(fits)
        found = []
        for fit, estimator, reason in zip(fits, estimators, reasons, strict=True):
            train, test = self.data.folds[fit.fold]
            if reason is None:
                result = {"fit_time": seconds} | _scores(estimator, self.data, train, test)
            else:
                rows = clone(self.candidates[fit.candidate]), self.data.X, self.data.y
                result = _fit_and_score(*rows, train=train, test=test, **self.data.options)
            found.append((fit, Outcome(result, reason)))
        return found

    def _train(self, fits: Sequence[Fit], estimators: Sequence[Any]) -> list[str | None]:
        """Fit the estimators of fits; return the reason why one is to be fitted alone, or None."""
        if self.reason is not None:
            return [self.reason] * len(fits)
        errors: list[Exception | None] = [None] * len(fits)
        problems: dict[int, Problem] = {}
        for k, each in enumerate(zip(fits, estimators, strict=True)):
            try:
                problems[k] = self._prepare(*each)
            except Exception as failure:
                errors[k] = failure
        found: Sequence[Exception | None] = []
        try:
            if problems:
                adapters = [_adapter(estimators[k]) for k in problems]
                found = fit_together(adapters, [*problems.values()])
        except Exception as failure:
            found = [failure] * len(problems)
        for k, error in zip(problems, found, strict=True):
            errors[k] = error
        said = "training failed with {}"
        return [None if each is None else said.format(type(each).__name__) for each in errors]

    def _prepare(self, fit: Fit, estimator: Any) -> Problem:
        """Return the training input of a fit, after the fitted steps before its adapter."""
        _adapter(estimator)._validate_params()
        _adapter(estimator)._check_combination()
        steps, rows, params = self._fit_steps(fit.fold)
        if isinstance(estimator, Pipeline):
            estimator.steps[:-1] = steps
        key = fit.fold, _split_key(estimator)
        if key not in self.problems:
            self.problems[key] = prepare(_adapter(estimator), *rows, **params)
        return self.problems[key]

    def _fit_steps(self, fold: int) -> tuple[Any, Any, Any]:
        """Fit the steps before the adapter once per fold; return also what its fit is given."""
        if fold not in self.fitted:
            estimator, data, train = clone(self.first), self.data, self.data.folds[fold][0]
            X, y = _safe_split(estimator, data.X, data.y, train)
            params = _check_method_params(data.X, data.options["fit_params"], indices=train)
            recorder = _Recorder(_adapter(estimator))
            if isinstance(estimator, Pipeline):
                estimator.steps[-1] = estimator.steps[-1][0], recorder
            else:
                estimator = recorder
            estimator.fit(X, y, **params)
            self.fitted[fold] = getattr(estimator, "steps", [])[:-1], *recorder.given
        return self.fitted[fold]


class _Recorder:
    """Stands for an adapter, and keeps what its fit is given."""

    def __init__(self, adapter: Any) -> None:
        self.get_metadata_routing = adapter.get_metadata_routing

    def fit(self, *rows: Any, **params: Any) -> None:
        """Keep the rows and the parameters."""
        self.given = rows, params


def _scores(estimator: Any, data: FitData, train: Any, test: Any) -> dict[str, Any]:
    """Score a fitted estimator; the result is that of scikit-learn's _fit_and_score."""
    options, before = data.options, time.perf_counter()
    found: dict[str, Any] = {"fit_error": None}
    parts = ("test_scores", test), ("train_scores", train)
    for name, rows in parts if options["return_train_score"] else parts[:1]:
        X, y = _safe_split(estimator, data.X, data.y, rows, train)
        params = _check_method_params(data.X, options["score_params"], indices=rows)
        found[name] = _score(estimator, X, y, options["scorer"], params, options["error_score"])
        found.setdefault("score_time", time.perf_counter() - before)
    return found


def evaluate(
    data: FitData,
    candidates: Mapping[int, Any],
    done: Mapping[Fit, Any],
    n_jobs: int | None,
    pre_dispatch: int | str,
    max_memory: int | None,
) -> Iterator[tuple[Fit, Outcome]]:
    """Fit and score candidates, unfitted estimators, on every fold but for what is done."""
    groups: dict[Hashable, dict[int, Any]] = {}
    for number, each in candidates.items():
        groups.setdefault(_group_key(each), {})[number] = each
    devices = {getattr(_adapter(each), "device", "cpu") for each in candidates.values()}
    on_cpu = all(resolve_device(device).type == "cpu" for device in devices)
    # They would share a GPU's memory, and each would encode the texts that one process keeps.
    alone = not on_cpu or any(map(keeps_encodings, candidates.values()))
    n_processes = 1 if alone else effective_n_jobs(n_jobs)

    def jobs() -> Iterator[Any]:
        for own in groups.values():
            group = Group(data, own)
            for block in group.blocks(n_processes, max_memory):
                if fits := [fit for fit in block if fit not in done]:
                    yield delayed(group.run)(fits)

    given = {"pre_dispatch": pre_dispatch, "return_as": "generator_unordered"}
    for found in Parallel(n_jobs if n_processes > 1 else 1, **given)(jobs()):
        yield from found


def _reason_alone(estimator: Any) -> str | None:
    """Why an estimator must be fitted alone; None if it can be trained together with others."""
    adapter = _adapter(estimator)
    if keeps_encodings(adapter):
        adapter = adapter._adapter()
    elif isinstance(adapter, AdaptedEncoder):
        return "this AdaptedEncoder encodes the texts in every fit; give its encoders a cache"
    if isinstance(adapter, PenalisedAdapter):
        return None
    return f"{type(adapter).__name__} cannot be trained together with other candidates"


def keeps_encodings(estimator: Any) -> bool:
    """Whether an estimator ends in an AdaptedEncoder that is fitted to more than its texts."""
    adapter = _adapter(estimator)
    if not isinstance(adapter, AdaptedEncoder):
        return False
    whitens = isinstance(adapter._adapter(), LogitPreservingWhitening)
    return adapter.teacher is not None or whitens


def _group_key(estimator: Any) -> Hashable:
    """Return a key that is equal for estimators that can be trained together."""
    if _reason_alone(estimator):
        return object()
    steps = comparable(estimator[:-1]) if isinstance(estimator, Pipeline) else None
    return steps, _adapter(estimator)._batch_key()


def _split_key(estimator: Any) -> Hashable:
    """Key of the random state, which determines the validation rows that each fold gets."""
    return comparable(_adapter(estimator).random_state)


def _adapter(estimator: Any) -> Any:
    """Adapter of an estimator: the last step of a pipeline, or the estimator itself."""
    return estimator[-1] if isinstance(estimator, Pipeline) else estimator


def _split_evenly(numbers: Sequence[int], most: int) -> Iterable[list[int]]:
    """Split into parts of nearly equal size, at most `most` each."""
    return (part.tolist() for part in np.array_split(numbers, -(-len(numbers) // most)))

"""Penalised adapters that are fitted together: everything that a search calls of their training.

A search asks and does four things, in this order.

1. ``adapter._batch_key()``: adapters with equal keys can be trained together; None: not at all. It
   compares all parameters but those in ``_batchable_params``.
2. :func:`limits`: the number of fits, and of folds, that memory admits at once.
3. :func:`prepare`: checks the rows of a fold, splits them and fits the head. Adapters with the same
   rows and random state share the result.
4. :func:`fit_together`: trains adapters, sets their fitted attributes, and returns their errors. A
   :class:`Checkpoint` lets it go on after an interrupt.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.devices import one_blas_thread_if_small, resolve_device
from isoadapt._utils.files import atomic_path
from isoadapt.adapters._training._fit import (
    TrainingInterrupted,
    fit_members,
    make_member,
    prepare_problem,
)
from isoadapt.adapters._training._problem import Problem

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter

_CPU_BYTES = 2 * 2**30
_CACHED_BYTES = 48 * 2**20  # larger weights, gradients and Adam moments slow a CPU down
_TENSORS = 12  # number of tensors of the size of the weights, including the kept epoch
_ROW_TENSORS = 6  # number of tensors of the size of a batch plus the validation rows
_INDEX_BYTES = 24  # per row, for its number in the shuffled order of an epoch
SECONDS = 5.0  # least time between two saved states
_LEAST_RATIO = 50  # of the time between two saved states to the time of saving one


def comparable(value: Any) -> Any:
    """Return a hashable object that is equal for values of a parameter with equal content."""
    if isinstance(value, str | Number | None):
        return value
    try:
        return joblib.hash(value)
    except (pickle.PicklingError, TypeError, AttributeError):  # such as a lambda
        pass
    if isinstance(value, BaseEstimator):
        parameters = sorted(value.get_params(deep=False).items())
        return type(value), *((name, comparable(part)) for name, part in parameters)
    if isinstance(value, list | tuple):
        return tuple(comparable(part) for part in value)
    return value if isinstance(value, Hashable) else object()  # equal to nothing else


def limits(
    adapter: PenalisedAdapter, X: Any, max_memory: int | None, n_splits: int
) -> tuple[int, int]:
    """Return how many fits to rows X, and on how many folds, can be trained together in memory."""
    rows, device = _checked(X), resolve_device(adapter.device)
    n, d = rows.shape
    weights = 4 * d * (d + 1) * (1 if adapter.network == "linear" else 3)
    validation = 4 * d * round(n * float(adapter._validation_share() or 0))
    batch = 4 * d * min(n, adapter.batch_size)
    size = _TENSORS * weights + _ROW_TENSORS * (validation + batch) + _INDEX_BYTES * n
    if n_splits > 1:
        size += 4 * n * d
    if device.type == "cuda":
        n_fits = (max_memory or torch.cuda.mem_get_info(device)[0] // 2) // size
    else:
        n_fits = min((max_memory or _CPU_BYTES) // size, _CACHED_BYTES // (4 * weights))
    copies = 2 * n * d * max(rows.itemsize, 4) * n_splits
    n_folds = (max_memory or _CPU_BYTES) // copies if adapter._batches_folds else 1
    return max(1, n_fits), max(1, n_folds)


def with_rows(problem: Problem, X: Any) -> Problem:
    """Return a problem whose rows were left out with the rows that it was prepared from."""
    rows = _checked(X)
    return replace(problem, X=rows if problem.kept is None else rows[problem.kept])


def prepare(adapter: PenalisedAdapter, X: Any, y: Any, **params: Any) -> Problem:
    """Check, split and describe rows; `params` are further arguments of the adapter's fit."""
    adapter = clone(adapter)
    with one_blas_thread_if_small(X):
        problem = prepare_problem(adapter, X, y, **params)
    names = {"n_features_in_", "feature_names_in_"} & vars(adapter).keys()
    return replace(problem, features={name: getattr(adapter, name) for name in names})


def fit_together(
    adapters: Sequence[PenalisedAdapter],
    problems: Sequence[Problem],
    on_finished: Callable[[int], Any],
    checkpoint: Checkpoint | None = None,
) -> list[BaseException | None]:
    """Fit adapters of one batch key, each to what was prepared for it, and return their errors.

    Fits with equal numbers of rows are trained at once. `on_finished` is called with the number of
    fits that have ended. After an interrupt, the error of every fit that is not complete is the
    KeyboardInterrupt. UnequalPenaltiesError is raised if one penalty does not serve all adapters.
    """
    errors: list[BaseException | None] = [None] * len(adapters)
    for adapter, problem in zip(adapters, problems, strict=True):
        adapter._validate_params()
        adapter._check_combination()
        for name, value in problem.features.items():
            setattr(adapter, name, value)
    stop: TrainingInterrupted | None = None
    for number, places in enumerate(_of_equal_size(problems)):
        outcomes: Sequence[Any] = [None] * len(places)
        if stop is None:
            stage = None if checkpoint is None else checkpoint.stage(number)
            with one_blas_thread_if_small(problems[places[0]].X):
                members = [make_member(adapters[k], problems[k]) for k in places]
                try:
                    outcomes = fit_members(members, on_finished, stage)
                except TrainingInterrupted as raised:
                    stop, outcomes = raised, raised.outcomes
        for k, outcome in zip(places, outcomes, strict=True):
            errors[k] = stop if outcome is None else outcome.error
            if errors[k] is None:
                adapters[k]._set_outcome(outcome)
    return errors


def _of_equal_size(problems: Sequence[Problem]) -> list[list[int]]:
    """Indices of problems, grouped by their numbers of training and validation rows."""
    sizes: dict[Hashable, list[int]] = {}
    for index, problem in enumerate(problems):
        n_validation = 0 if problem.validating is None else len(problem.validating)
        sizes.setdefault((len(problem.fitting), n_validation), []).append(index)
    return list(sizes.values())


def _checked(X: Any) -> NDArray[np.floating]:
    return check_array(as_matrix(X), dtype=[np.float64, np.float32], order="C")


class Checkpoint:
    """A file with the state of a training; of its `fixed` objects, only the names are saved."""

    def __init__(self, file: Path) -> None:
        self.file, self.saved, self.wait = file, time.perf_counter(), SECONDS

    def stage(self, number: int) -> Checkpoint:
        """Return the checkpoint of one of several trainings that follow each other."""
        return Checkpoint(self.file.with_name(f"{self.file.stem}-{number}{self.file.suffix}"))

    def remove(self) -> None:
        """Remove the files of all stages, and those that a killed process left unfinished."""
        for start in ("", "."):
            for file in self.file.parent.glob(f"{start}{self.file.stem}-*{self.file.suffix}"):
                file.unlink(missing_ok=True)

    def load(self, fixed: Mapping[str, Any]) -> Any:
        """Return the saved state; None if there is none, or if the file is damaged."""
        try:
            with self.file.open("rb") as stream:
                return _Unpickler(stream, fixed).load()
        except Exception:  # a missing file, or a damaged pickle, which can raise anything
            return None

    def offer(self, state: Any, fixed: Mapping[str, Any]) -> None:
        """Save a state if the last one is old enough; a state that cannot be pickled is skipped."""
        started = time.perf_counter()
        if started - self.saved < self.wait:
            return
        try:
            with atomic_path(self.file) as temporary, temporary.open("wb") as stream:
                _Pickler(stream, fixed).dump(state)
        except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda as penalty
            self.wait = float("inf")
            return
        self.saved = time.perf_counter()
        self.wait = max(SECONDS, _LEAST_RATIO * (self.saved - started))


class _Pickler(pickle.Pickler):
    """Pickler that stores the fixed objects by name."""

    def __init__(self, stream: Any, fixed: Mapping[str, Any]) -> None:
        super().__init__(stream, protocol=5)
        self.names = {id(value): name for name, value in fixed.items() if value is not None}

    def persistent_id(self, value: Any) -> str | None:
        return self.names.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Unpickler that puts the fixed objects in the places of their names."""

    def __init__(self, stream: Any, fixed: Mapping[str, Any]) -> None:
        super().__init__(stream)
        self.fixed = fixed

    def persistent_load(self, name: str) -> Any:
        return self.fixed[name]

"""Penalised adapters that are fitted together: everything that a search calls of their training.

A search asks and does four things, in this order.

1. ``adapter._batch_key()``: adapters with equal keys can be trained together; None: not at all. It
   compares all parameters but those in ``_batchable_params``.
2. :func:`limits`: the number of fits, and of folds, that memory admits at once.
3. :func:`prepare`: checks the rows of a fold, splits them and fits the head. Adapters with the same
   rows and random state share the result.
4. :func:`fit_together`: trains adapters, sets their fitted attributes, and returns their errors.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from numbers import Number
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.devices import one_blas_thread_if_small, resolve_device
from isoadapt.adapters._training._fit import fit_members, make_member, prepare_problem
from isoadapt.adapters._training._problem import Problem

if TYPE_CHECKING:
    from isoadapt.adapters._penalised import PenalisedAdapter

_CPU_BYTES = 2 * 2**30
_CACHED_BYTES = 48 * 2**20  # larger weights, gradients and Adam moments slow a CPU down
_TENSORS = 12  # number of tensors of the size of the weights, including the kept epoch
_ROW_TENSORS = 6  # number of tensors of the size of a batch plus the validation rows
_INDEX_BYTES = 24  # per row, for its number in the shuffled order of an epoch


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
) -> list[ValueError | None]:
    """Fit adapters of one batch key, each to what was prepared for it, and return their errors.

    Fits with equal numbers of rows are trained at once. `on_finished` is called with the number of
    fits that have ended.
    """
    errors: list[ValueError | None] = [None] * len(adapters)
    for adapter, problem in zip(adapters, problems, strict=True):
        adapter._validate_params()
        adapter._check_combination()
        for name, value in problem.features.items():
            setattr(adapter, name, value)
    for places in _of_equal_size(problems):
        with one_blas_thread_if_small(problems[places[0]].X):
            members = [make_member(adapters[k], problems[k]) for k in places]
            outcomes = fit_members(members, on_finished)
        for k, outcome in zip(places, outcomes, strict=True):
            errors[k] = outcome.error
            if outcome.error is None:
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

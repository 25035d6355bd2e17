"""Penalised adapters that are fitted together: everything that a search calls of their training.

A search asks and does four things, in this order.

1. ``adapter._batch_key()``: adapters with equal keys can be trained together; None: not at all. It
   compares all parameters but those in ``_batchable_params``.
2. :func:`limits`: the number of fits, and of folds, that memory admits at once.
3. :func:`prepare`: checks the rows of a fold, splits them and fits the head. Adapters with the same
   rows and random state share the result.
4. :func:`fit_together`: trains adapters, sets their fitted attributes, and returns their errors.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.validation import check_array

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.devices import one_blas_thread_if_small, resolve_device
from isoadapt.adapters._engine._task import Problem
from isoadapt.adapters._penalised import PenalisedAdapter, train_adapters

_CPU_BYTES = 2 * 2**30
_CACHED_BYTES = 48 * 2**20  # larger weights, gradients and Adam moments slow a CPU down
_TENSORS = 12  # number of tensors of the size of the weights, including the kept epoch
_ROW_TENSORS = 6  # number of tensors of the size of a batch plus the validation rows
_INDEX_BYTES = 24  # per row, for its number in the shuffled order of an epoch


def limits(
    adapter: PenalisedAdapter, X: Any, max_memory: int | None, n_splits: int
) -> tuple[int, int]:
    """Return how many fits to rows X, and on how many folds, can be trained together in memory."""
    rows, device = _checked(X), resolve_device(adapter.device)
    n, d = rows.shape
    weights = 4 * d * (d + 1)
    validation = 4 * d * round(n * float(adapter.validation_fraction or 0))
    batch = 4 * d * min(n, adapter.batch_size)
    size = _TENSORS * weights + _ROW_TENSORS * (validation + batch) + _INDEX_BYTES * n
    if n_splits > 1:
        size += 4 * n * d
    if device.type == "cuda":
        n_fits = (max_memory or torch.cuda.mem_get_info(device)[0] // 2) // size
    else:
        n_fits = min((max_memory or _CPU_BYTES) // size, _CACHED_BYTES // (4 * weights))
    copies = 2 * n * d * max(rows.itemsize, 4) * n_splits
    return max(1, n_fits), max(1, (max_memory or _CPU_BYTES) // copies)


def with_rows(problem: Problem, X: Any) -> Problem:
    """Return a problem whose rows were left out with the rows that it was prepared from."""
    rows, kept = _checked(X), problem.sample.kept
    return replace(problem, sample=problem.sample._replace(X=rows if kept is None else rows[kept]))


def prepare(adapter: PenalisedAdapter, X: Any, y: Any, **params: Any) -> Problem:
    """Check, split and describe rows; `params` are further arguments of the adapter's fit."""
    adapter = clone(adapter)
    with one_blas_thread_if_small(X):
        problem = adapter._prepare(X, y, **params)
    names = {"n_features_in_", "feature_names_in_"} & vars(adapter).keys()
    return replace(problem, features={name: getattr(adapter, name) for name in names})


def fit_together(
    adapters: Sequence[PenalisedAdapter],
    problems: Sequence[Problem],
    on_finished: Callable[[int], Any],
) -> list[ValueError | None]:
    """Fit adapters of one batch key, each to what was prepared for it, and return their errors.

    `on_finished` is called with the number of fits that have ended.
    """
    for adapter, problem in zip(adapters, problems, strict=True):
        adapter._validate_params()
        adapter._check_combination()
        for name, value in problem.features.items():
            setattr(adapter, name, value)
    with one_blas_thread_if_small(problems[0].sample.X):
        pairs = zip(adapters, problems, strict=True)
        tasks = [adapter._task(problem) for adapter, problem in pairs]
        results = train_adapters(adapters, tasks, on_finished)
    for adapter, result in zip(adapters, results, strict=True):
        if result.error is None:
            adapter._take_result(result)
    return [result.error for result in results]


def _checked(X: Any) -> NDArray[np.floating]:
    return check_array(as_matrix(X), dtype=[np.float64, np.float32], order="C")

"""Training of penalised adapters together, which a search asks for; their batch keys are equal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from sklearn.base import clone

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.devices import resolve_device
from isoadapt._utils.threads import one_blas_thread_if_small
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
    (n, d), device = as_matrix(X).shape, resolve_device(adapter.device)
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
    copies = 16 * n * d * n_splits
    return max(1, n_fits), max(1, (max_memory or _CPU_BYTES) // copies)


def prepare(adapter: PenalisedAdapter, X: Any, y: Any, **params: Any) -> Problem:
    """Check, split and describe rows; `params` are further arguments of the adapter's fit."""
    adapter = clone(adapter)
    with one_blas_thread_if_small(X):
        problem = adapter._prepare(X, y, **params)
    names = {"n_features_in_", "feature_names_in_"} & vars(adapter).keys()
    return replace(problem, features={name: getattr(adapter, name) for name in names})


def fit_together(
    adapters: Sequence[PenalisedAdapter], problems: Sequence[Problem]
) -> list[ValueError | None]:
    """Fit adapters of one batch key, each to what was prepared for it, and return their errors."""
    for adapter, problem in zip(adapters, problems, strict=True):
        for name, value in problem.features.items():
            setattr(adapter, name, value)
    with one_blas_thread_if_small(problems[0].sample.X):
        pairs = zip(adapters, problems, strict=True)
        tasks = [adapter._task(problem) for adapter, problem in pairs]
        results = train_adapters(adapters, tasks)
    for adapter, result in zip(adapters, results, strict=True):
        if result.error is None:
            adapter._take_result(result)
    return [result.error for result in results]

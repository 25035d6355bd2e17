"""Training of penalised adapters together, which a search asks for; their batch keys are equal."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from sklearn.base import clone

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.devices import one_blas_thread_if_small, resolve_device
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._fit import fit_members, make_member, prepare_problem
from isoadapt.adapters._training._problem import Problem

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
    copies = 16 * n * d * n_splits
    n_folds = (max_memory or _CPU_BYTES) // copies if adapter._batches_folds else 1
    return max(1, n_fits), max(1, n_folds)


def prepare(adapter: PenalisedAdapter, X: Any, y: Any, **params: Any) -> Problem:
    """Check, split and describe rows; `params` are further arguments of the adapter's fit."""
    adapter = clone(adapter)
    with one_blas_thread_if_small(X):
        problem = prepare_problem(adapter, X, y, **params)
    names = {"n_features_in_", "feature_names_in_"} & vars(adapter).keys()
    return replace(problem, features={name: getattr(adapter, name) for name in names})


def fit_together(
    adapters: Sequence[PenalisedAdapter], problems: Sequence[Problem]
) -> list[ValueError | None]:
    """Fit adapters of one batch key, each to what was prepared for it, and return their errors.

    Fits with equal numbers of training and validation rows are trained at once.
    """
    sizes: dict[Hashable, list[int]] = {}
    for k, (adapter, problem) in enumerate(zip(adapters, problems, strict=True)):
        adapter._validate_params()
        adapter._check_combination()
        for name, value in problem.features.items():
            setattr(adapter, name, value)
        n_held = 0 if problem.validating is None else len(problem.validating)
        sizes.setdefault((len(problem.fitting), n_held), []).append(k)
    errors: list[ValueError | None] = [None] * len(adapters)
    for places in sizes.values():
        with one_blas_thread_if_small(problems[places[0]].X):
            members = [make_member(adapters[k], problems[k]) for k in places]
            outcomes = fit_members(members, lambda _: None)
        for k, outcome in zip(places, outcomes, strict=True):
            errors[k] = outcome.error
            if outcome.error is None:
                adapters[k]._set_outcome(outcome)
    return errors

"""Rows and labels of a fit: checked, merged, split, and cut into shuffled mini-batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import IterableDataset

from isoadapt._utils.containers import as_values
from isoadapt._utils.copies import copy_hashes, row_hashes
from isoadapt._utils.messages import listed, warn
from isoadapt._utils.sklearn_private import _check_sample_weight
from isoadapt.adapters._maps import Floats
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import SMALLEST, dead_dimensions, is_rounding

_LEAST_COUNT, _MOST_COUNT = 2, 1e100  # rows; weights with another sum cannot be frequencies
_LEAST_WEIGHT = 0.1  # mean, below which weights seem to be normalised
_RARE = 10  # rows with the same labels; fewer are not spread over folds and splits
_MIN_ROWS = 4  # on each side of a split; fewer cannot be scored

Index = NDArray[np.int64]
_Fit = TypeVar("_Fit", bound=Callable[..., Any])


class Sample(NamedTuple):
    """Rows to fit to."""

    X: NDArray[Any]  # (n_samples, n_features)
    y: NDArray[Any] | None = None  # labels or values, (n_samples,) or (n_samples, n_outputs)
    groups: Index | None = None  # group numbers, (n_samples,)
    weights: Floats | None = None  # frequencies, (n_samples,); None: all are 1

    def take(self, index: Index) -> "Sample":
        """Select rows."""
        parts: Any = (None if part is None else part[index] for part in self)
        return Sample(*parts)


def check_spread(moments: Moments, scaled: bool = False) -> None:
    """Raise ValueError for little weight, equal rows or overflow; warn of columns that vanish."""
    if not _LEAST_COUNT <= moments.count <= _MOST_COUNT:
        raise ValueError(
            f"sample_weight sums to {moments.count:g} in the rows that are used, but weights are "
            f"frequencies, and {_LEAST_COUNT} to {_MOST_COUNT:g} rows are needed: pass counts, or "
            "divide the weights by their mean"
        )
    if not math.isfinite(moments.scatter.trace()):
        raise ValueError(
            "X is too large: sums of squares of its entries overflow float64; divide X by its "
            "largest absolute entry"
        )
    if moments.scatter.diagonal().max() < SMALLEST**2:
        raise ValueError(
            f"X is constant: all {moments.count:.0f} rows that are used, counted by their weights, "
            f"are equal, or differ by less than about {SMALLEST:g}, but an adapter needs rows that "
            "differ; check that the texts differ and that the encoder is the fine-tuned one, or "
            "divide tiny X by its largest absolute entry"
        )
    variances = moments.scatter.diagonal() / moments.count
    lost = dead_dimensions(variances) & ~is_rounding(variances.sqrt(), moments.mean.abs())
    if lost.any() and not scaled:
        warn(
            f"X has columns that count as constant beside column {variances.argmax():d}, with at "
            f"most 1e-12 of the variance of all ({listed(np.flatnonzero(lost).tolist())}): "
            "standardise X"
        )


def check_frequencies(sample_weight: ArrayLike | None, X: NDArray[Any]) -> NDArray[Any] | None:
    """Validate weights, and return them in float64."""
    if sample_weight is None:
        return None
    given = as_values(sample_weight, "sample_weight", numeric=True)
    weights = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    total, n = weights.sum(), np.count_nonzero(weights)
    if _LEAST_COUNT <= total < min(_LEAST_WEIGHT * n, 3 * X.shape[1]):
        warn(
            f"sample_weight sums to {total:.3g} for {n} rows, but weights are frequencies, and so "
            "few rows tell little: pass counts, or divide the weights by their mean"
        )
    return weights


def distinct_rows(
    X: NDArray[Any], y: NDArray[Any] | None, groups: NDArray[Any] | None, weights: Floats | None
) -> Sample:
    """Merge rows of equal X, y and group, unless all weights are 1; drop rows of weight 0."""
    weights = np.ones(len(X)) if weights is None else weights
    positive = np.flatnonzero(weights)
    labels = [] if y is None else [_codes(column) for column in (y.T if y.ndim == 2 else [y])]
    codes = [] if groups is None else [_codes(groups)]
    columns = np.column_stack([row_hashes(X), *(c.astype(np.uint64) for c in labels + codes)])
    _, first, inverse = np.unique(columns[positive], axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(inverse.ravel(), weights[positive]).astype(np.float64)
    once = len(counts) == len(positive) and bool((counts == 1).all())
    order: Any = positive[first]  # the same for repeated rows as for weights
    if once:
        order = slice(None) if len(positive) == len(X) else positive
    # Without renumbering, dropping a row and giving it weight zero would have different results.
    left = None if groups is None else _codes(groups[order])
    return Sample(X[order], None if y is None else y[order], left, None if once else counts)


def _codes(values: NDArray[Any]) -> Index:
    """Number the distinct values in sorted order."""
    return np.unique(values, return_inverse=True)[1]


def strata(y: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return labels (n,) to stratify by; of an indicator matrix, a number for each frequent row."""
    if y is None or y.ndim == 1:
        return y
    _, codes, counts = np.unique(y, axis=0, return_inverse=True, return_counts=True)
    return np.where(counts[codes] < _RARE, -1, codes).ravel()


def split_rows(
    n: int,
    labels: NDArray[np.generic] | None,
    fraction: float | None,
    rng: np.random.RandomState,
    groups: Index | None = None,
) -> tuple[Index, Index | None]:
    """Return sorted numbers of training and of validation rows, None if a side would be small."""
    labels = strata(labels)
    rows, n_valid = np.arange(n), round(n * (fraction or 0))
    if min(n_valid, n - n_valid) < _MIN_ROWS:
        return rows, None
    if groups is not None:
        held = _drawn_groups(groups, labels, n_valid / n, rng)[groups]
        if min(held.sum(), n - held.sum()) < _MIN_ROWS:
            return rows, None
        return np.flatnonzero(~held), np.flatnonzero(held)
    stratify = classes = None
    if labels is not None:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if counts.min() >= 2 and len(counts) <= min(n_valid, n - n_valid):
            stratify = classes
    fitting, validating = train_test_split(
        rows, test_size=n_valid, stratify=stratify, random_state=rng
    )
    if classes is not None:  # a head fitted to the training rows needs every class
        found, first = np.unique(classes[validating], return_index=True)
        lacking = validating[first[~np.isin(found, classes[fitting])]]
        fitting = np.concatenate([fitting, lacking])
        validating = np.setdiff1d(validating, lacking)
    if len(validating) < _MIN_ROWS:
        return rows, None
    return np.sort(fitting), np.sort(validating)


def _drawn_groups(
    groups: Index, labels: NDArray[np.generic] | None, fraction: float, rng: np.random.RandomState
) -> NDArray[np.bool_]:
    """Whether each group is used for validation, so that each class has about the same share."""
    classes = np.zeros_like(groups)
    if labels is not None:
        classes = np.unique(labels, return_inverse=True)[1]
    n_classes = int(classes.max()) + 1
    counts = np.bincount(groups * n_classes + classes, minlength=(groups.max() + 1) * n_classes)
    counts = counts.reshape(-1, n_classes)
    left = counts.sum(axis=0)
    wanted, scale = np.zeros(n_classes), 1 / left
    taken = np.zeros(len(counts), dtype=bool)
    order = rng.permutation(len(counts))
    for group in order[np.argsort(-counts[order].sum(axis=1), kind="stable")]:
        count = counts[group]
        wanted = wanted + fraction * count
        if count @ (scale * (2 * wanted - count)) > 0 and (left > count).all():
            taken[group] = True
            wanted, left = wanted - count, left - count
    return taken


def fold_numbers(
    X: NDArray[Any], labels: NDArray[Any] | None, groups: NDArray[Any] | None, n_folds: int
) -> Index:
    """Return the fold of each row, the same for copies and for rows of one group."""
    units = _codes(copy_hashes(X))
    if groups is not None:  # rows that equal rows or groups connect
        edges = csr_array((np.ones(len(X)), (units, units.max() + 1 + _codes(groups))))
        edges.resize((max(edges.shape),) * 2)
        units = connected_components(edges, directed=False)[1][units]
    _, first, units = np.unique(units, return_index=True, return_inverse=True)
    sizes, order = np.bincount(units), np.random.RandomState(0).permutation(len(first))
    order = np.argsort(first)[order]
    classes = np.zeros(len(first)) if labels is None else _codes(labels)[first]
    order = order[np.lexsort((-sizes[order], classes[order]))]
    folds = np.empty(len(first), dtype=np.int64)
    folds[order] = np.arange(len(first)) % n_folds
    return folds[units]


class Batch(NamedTuple):
    """Inputs of the network, targets and weights of rows, on the training device."""

    X: Tensor  # (n, d) or (K, n, d)
    y: Tensor | None
    weights: Tensor | None = None  # (n,) or (K, n)

    def take(self, index: Tensor) -> "Batch":
        """Select rows by an index (m,), or (K, m) with the rows of each member."""
        y, weights = (None if part is None else part[index] for part in self[1:])
        X = self.X.index_select(0, index.flatten())  # faster than self.X[index]
        return Batch(X.unflatten(0, index.shape), y, weights)


def to_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """Move an array to a device as float32, bool or int64; the result may share its memory."""
    dtype = {"f": torch.float32, "b": torch.bool}.get(array.dtype.kind, torch.int64)
    return torch.as_tensor(array, dtype=dtype, device=device)


def n_batches(n_rows: int, batch_size: int) -> int:
    """Return the number of batches of at most `batch_size` rows, which have nearly equal sizes."""
    return math.ceil(n_rows / batch_size)


class Batches(IterableDataset):
    """Shuffled batches of nearly equal size of the rows `index`, (n,) for all members or (K, n)."""

    def __init__(
        self, rows: Batch, index: Tensor, batch_size: int, generators: Sequence[torch.Generator]
    ) -> None:
        self.rows, self.index, self.generators = rows, index, list(generators)
        self.n_batches = n_batches(index.shape[-1], batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = self.index.shape[-1]
        orders = [torch.randperm(n, generator=each) for each in self.generators]
        order = torch.stack(orders).to(self.index.device)
        shuffled = self.index[order[0]] if self.index.ndim == 1 else self.index.gather(1, order)
        for part in shuffled.tensor_split(self.n_batches, dim=-1):
            yield self.rows.take(part)

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members."""
        if self.index.ndim == 2:
            self.index = self.index[members]
            self.generators = [self.generators[member] for member in members]


def restore_on_failure(fit: _Fit) -> _Fit:
    """Decorate a method so that it restores the attributes of the estimator if it raises."""

    @wraps(fit)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(_Fit, guarded)

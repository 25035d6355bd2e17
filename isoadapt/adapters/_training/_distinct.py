"""Merging of repeated rows of a sample into frequency weights."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt.adapters._maps import Floats

_BLOCK = 1024
_COLUMNS = 32  # about so many columns are compared first, before whole rows


class Sample(NamedTuple):
    """Rows to fit to."""

    X: NDArray[Any]  # (n_samples, n_features)
    y: NDArray[Any] | None  # labels or values, (n_samples,) or (n_samples, n_outputs)
    groups: NDArray[np.int64] | None  # group numbers, (n_samples,)
    weights: Floats | None  # positive frequencies, (n_samples,); None: all are 1
    kept: NDArray[np.int64] | None  # row numbers in the input, (n_samples,); None: all rows


def distinct_rows(
    X: NDArray[Any],
    y: NDArray[Any] | None,
    groups: NDArray[Any] | None,
    weights: Floats | None,
) -> Sample:
    """Drop rows of weight zero, and merge equal rows into one row with their summed weight.

    Rows are equal if their labels and groups are equal too. The result does not depend on whether
    repetitions are written as rows or as weights, nor on their order. If all remaining weights are
    1, the rows keep their order. `X` is returned without a copy if every row is kept.
    """
    codes = None if groups is None else _codes(groups)
    keys = _fingerprints(X[:, :: -(-X.shape[1] // _COLUMNS)])
    if weights is None:
        if len(np.unique(keys[:, 0])) == len(X):
            return Sample(X, y, codes, None, None)
        weights = np.ones(len(X))
    positive = np.flatnonzero(weights)
    order, counts = _merged(X, y, codes, keys, weights, positive)
    once = len(counts) == len(positive) and bool((counts == 1).all())
    if once and len(positive) == len(X):
        return Sample(X, y, codes, None, None)
    order = positive if once else order
    labels = None if y is None else y[order]
    # Without renumbering, dropping a row and giving it weight zero would have different results.
    left = None if codes is None else _codes(codes[order])
    return Sample(X[order], labels, left, None if once else counts, order)


def _merged(
    X: NDArray[Any],
    y: NDArray[Any] | None,
    groups: NDArray[np.int64] | None,
    keys: NDArray[np.uint64],
    weights: Floats,
    positive: NDArray[np.int64],
) -> tuple[NDArray[np.int64], Floats]:
    """Return one row number and the summed weight of each set of equal rows, in canonical order."""
    _, place, times = np.unique(keys[positive, 0], return_inverse=True, return_counts=True)
    alike = positive[times[place] > 1]
    whole = np.zeros((len(X), 2), dtype=np.uint64)
    whole[alike] = _fingerprints(X, alike)
    columns = [*keys.T, *whole.T]
    if y is not None:
        columns += [_codes(column) for column in (y.T if y.ndim == 2 else [y])]
    if groups is not None:
        columns.append(groups)
    columns = [column[positive] for column in columns]
    order = np.lexsort(columns[::-1])
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([column[order[1:]] != column[order[:-1]] for column in columns], axis=0)
    starts = np.flatnonzero(new)
    return positive[order[starts]], np.add.reduceat(weights[positive[order]], starts)


def _fingerprints(X: NDArray[Any], rows: NDArray[np.int64] | None = None) -> NDArray[np.uint64]:
    """Hash each row to 128 bits, (n, 2): equal rows agree, and others differ almost surely."""
    n = len(X) if rows is None else len(rows)
    n_words = X.shape[1] * X.itemsize // 4
    factors = np.frombuffer(np.random.RandomState(0).bytes(16 * n_words), dtype=np.uint64)
    prints = np.empty((n, 2), dtype=np.uint64)
    for start in range(0, n, _BLOCK):
        part = slice(start, start + _BLOCK)
        block = X[part] if rows is None else X[rows[part]]
        words = (block + 0.0).view(np.uint32)  # -0.0 becomes 0.0
        np.matmul(words.astype(np.uint64), factors.reshape(n_words, 2), out=prints[part])
    return prints


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Number the distinct values in sorted order."""
    return np.unique(values, return_inverse=True)[1]

"""The rows of a sample, each of them once, and how often each occurs."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt.adapters._maps import Floats

_BLOCK = 1024
_COLUMNS = 32  # that are compared first; where these differ, the rows do


class Sample(NamedTuple):
    """Rows to fit to.

    Attributes
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs), or None
        Labels or values.
    groups : ndarray of shape (n_samples,) or None
        Numbers of the groups.
    weights : ndarray of shape (n_samples,) or None
        How often each row occurs, above zero; None: once.
    kept : ndarray of shape (n_samples,) or None
        Which rows of the input these are; None: all of them.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None
    groups: NDArray[np.int64] | None
    weights: Floats | None
    kept: NDArray[np.int64] | None


def distinct_rows(
    X: NDArray[Any],
    y: NDArray[Any] | None,
    groups: NDArray[Any] | None,
    weights: Floats | None,
) -> Sample:
    """Leave out rows of weight zero, and take rows that are equal as one of their summed weight.

    A fit to the result does not depend on how repetitions are written: as rows or as weights, in
    whatever order. Where every row that is left counts once, the rows stay in their order.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    y : ndarray of shape (n_samples,) or (n_samples, n_outputs), or None
        Labels or values; rows are equal only if these are.
    groups : ndarray of shape (n_samples,) or None
        Groups, likewise.
    weights : ndarray of shape (n_samples,) or None
        Frequency weights, zero or more.

    Returns
    -------
    Sample
        The rows, of which X is a copy unless all are kept.
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
    # Numbers of groups that are left out would tell the two ways to leave them out apart.
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
    """One row of each set of equal ones, in an order that depends on the set of rows alone."""
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
    """128 bits of each row (n, 2): equal for equal rows, and but for them as good as never."""
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
    """Number the different values in their order."""
    return np.unique(values, return_inverse=True)[1]

"""Copies among rows: their hashes, and whether equal rows are copies or draws of a discrete law."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pandas.util import hash_array

from isoadapt._utils.containers import as_array

_DIFFERENT = 0.8  # share of different rows from which on the other rows are taken as copies
_SAMPLED = 31  # entries of a row whose median gives their usual size
_BLOCK = 2**20  # entries that are converted to float64 at a time
_HASHED = 2**14  # entries that are hashed at a time, so that they stay in the cache


@np.errstate(over="ignore", invalid="ignore")  # where it happens, the rows are refused later
def copy_hashes(X: ArrayLike, pivot: Any = None) -> NDArray[np.uint64]:
    """Hash (n,) of each row, equal for copies, and with few exceptions if float32 parts them."""
    # Four random projections, rounded to 2⁻¹² of the usual size of the entries less the pivot.
    rows = np.asarray(as_array(X))
    d, rng = rows.shape[1], np.random.default_rng(0)
    directions, some = rng.normal(size=(d, 4)) / d**0.5, rng.permutation(d)[:_SAMPLED]
    pivot = rows.mean(axis=0, dtype=np.float64) if pivot is None else pivot
    hashes = []
    for block in np.array_split(rows, 1 + rows.size // _BLOCK):
        block = np.subtract(block, pivot, dtype=np.float64)
        few = block[:, some] - np.median(block[:, some], axis=1, keepdims=True)
        unit = np.median(np.abs(few), axis=1, keepdims=True)  # few large columns do not matter
        unit = np.where(unit > 0, unit, block.std(axis=1, keepdims=True))
        unit = 2.0 ** (np.frexp(unit)[1] - 12)
        hashes.append(row_hashes(np.round(block @ directions / unit) * unit))
    return np.concatenate(hashes)


def row_hashes(X: ArrayLike) -> NDArray[np.uint64]:
    """Hash (n,) of each row of a matrix: of row and dtype alone, and equal for -0.0 and 0.0."""
    rows = np.asarray(as_array(X))
    if rows.dtype.kind not in "fiub" or rows.dtype.itemsize > 8:
        rows = rows.astype(np.float64)
    n, d = rows.shape
    offsets = np.random.default_rng(0).integers(2**64 - 1, size=d, dtype=np.uint64)
    hashes = np.empty(n, np.uint64)
    size = max(1, _HASHED // max(1, d))
    for start in range(0, n, size):
        chunk = np.ascontiguousarray(rows[start : start + size] + rows.dtype.type(0))  # no -0.0
        bits = chunk.view(f"u{rows.dtype.itemsize}") + offsets
        hashes[start : start + size] = hash_array(bits.ravel()).reshape(bits.shape).sum(1)
    return hashes


def first_of_equal(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Mask (n,) of the rows that equal no earlier one, from their hashes."""
    return ~pd.Series(hashes).duplicated().to_numpy()


def are_copies(n_different: float, n: float) -> bool:
    """Whether equal rows among n are taken as copies, and not as draws of a discrete law."""
    return n_different >= _DIFFERENT * n

"""Pairs of near-duplicates: those above a cosine that few pairs of unrelated rows exceed."""

from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, t
from sklearn.utils.validation import check_array
from tqdm.auto import tqdm

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.copies import copy_hashes, first_of_equal
from isoadapt._utils.messages import shows_progress
from isoadapt._utils.sklearn_private import Interval, validate_params
from isoadapt._utils.state import own_state
from isoadapt.geometry._chunks import FLOATS, refuse_chunks
from isoadapt.geometry._neighbours import unit_matrix

Floats = NDArray[np.float64]
_SIDE = 2**11  # rows that are compared with as many others at a time: 16 MiB of cosines
_FEWEST = 50  # different rows
_PER_ROW = 0.25, 7.5  # pairs of unrelated rows for each row, to which the curve is fitted
_PARTS = 20  # of the rows, which are left out in turn
_CONSTRAINTS: dict[str, Any] = {"threshold": [Interval(Real, -1, 1, closed="both"), None]}
_CONSTRAINTS["false_pairs"] = [Interval(Real, 0, None, closed="neither")]


class Duplicates(NamedTuple):
    """Pairs of rows whose cosine is above a threshold, the most similar first.

    `pairs` (n_pairs, 2) are row numbers i < j, and `cosines` (n_pairs,) are theirs, up to the
    rounding of float32. `ci_low` and `ci_high` are the ends of the 95 % interval of `threshold`, or
    equal to it if it was given. `n_copies` is the number of rows that equal an earlier one and are
    in no pair.
    """

    pairs: NDArray[np.int64]
    cosines: NDArray[np.float64]
    threshold: float
    ci_low: float
    ci_high: float
    n_copies: int


@validate_params(_CONSTRAINTS, prefer_skip_nested_validation=True)
@own_state()
def find_duplicates(
    X: ArrayLike, *, false_pairs: float = 1.0, threshold: float | None = None, verbose: int = 0
) -> Duplicates:
    """Find pairs of rows that are more similar than unrelated rows.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Embeddings; without a threshold, of at least 50 different rows.
    false_pairs : float, default=1.0
        Number of pairs of unrelated rows that are expected above the threshold, at most 7.5 for
        each row.
    threshold : float, default=None
        Cosine above which pairs are found. None computes it from `false_pairs`.
    verbose : int, default=0
        If not 0, progress is shown when standard error is a terminal.

    Notes
    -----
    A quantile of all cosines would be exceeded by the same number of pairs with and without
    duplicates. Therefore the threshold is extrapolated from the n/4 to 7.5 n most similar pairs of
    n different rows, most of which are unrelated: Fisher's z of their cosines is fitted by a
    quadratic polynomial of the normal quantile. The interval is that of a jackknife over twentieths
    of the rows. It does not include the error of the extrapolation: of 5,000 sentences, 0.5 to 2
    times as many false pairs as asked for were above the threshold, and 0 to 5 times as many for
    raw vectors of a classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from isoadapt.metrics import find_duplicates
    >>> X = np.random.default_rng(0).normal(size=(500, 50))
    >>> X[7] = X[3] + 0.1 * X[5]
    >>> find_duplicates(X, false_pairs=0.1).pairs
    array([[3, 7]])
    """
    refuse_chunks(X, "all pairs of rows are compared")
    rows = unit_matrix(check_array(as_matrix(X), dtype=FLOATS, input_name="X"))
    first = np.flatnonzero(first_of_equal(copy_hashes(rows)))
    n_copies, rows = len(rows) - len(first), rows[first]
    lowest = threshold if threshold is not None else _lowest(rows, false_pairs)
    pairs, cosines = _pairs_above(rows, lowest, verbose)
    limits = lowest, lowest, lowest
    if threshold is None:
        limits = _limits(pairs, cosines, len(rows), false_pairs)
    kept = cosines > limits[0]
    return Duplicates(first[pairs[kept]], cosines[kept], *limits, n_copies)


def _lowest(rows: NDArray[np.float32], false_pairs: float) -> float:
    """Cosine that some more pairs exceed than the curve needs, from a sample."""
    n, most = len(rows), _PER_ROW[1] * len(rows)
    if n < _FEWEST or false_pairs > most:
        least = f"X has {n} different rows: at least {_FEWEST} are needed, and false_pairs="
        raise ValueError(f"{least}{false_pairs!r} must be at most {most:g}; or pass a threshold")
    few = rows[np.random.default_rng(0).permutation(n)[:_SIDE]]
    some = (few @ few.T)[np.triu_indices(len(few), 1)]
    return float(np.quantile(some, 1 - 2.5 * most / n**2))


def _pairs_above(rows: Any, limit: float, verbose: int) -> tuple[NDArray[np.int64], Floats]:
    """Pairs (m, 2) of unit rows with a cosine above a limit and their cosines (m,), sorted."""
    starts = range(0, len(rows), _SIDE)
    blocks = [(i, j) for i in starts for j in starts if i <= j]
    found, values = [np.empty((0, 2), np.int64)], [np.empty(0, np.float32)]
    for i, j in tqdm(blocks, "Comparing", unit=" blocks", disable=not shows_progress(verbose)):
        cosines = rows[i : i + _SIDE] @ rows[j : j + _SIDE].T
        if i == j:
            cosines[np.tril_indices(len(cosines))] = -np.inf
        places = np.flatnonzero(cosines > limit)  # several times as fast as nonzero
        sides = np.divmod(places, cosines.shape[1])
        found.append(np.add(np.column_stack(sides), (i, j)))
        values.append(cosines.ravel()[places])
    pairs, sizes = np.concatenate(found), np.concatenate(values).clip(max=1.0).astype(float)
    order = np.lexsort((*pairs.T[::-1], -sizes))
    return pairs[order], sizes[order]


def _limits(pairs: Any, cosines: Floats, n: int, asked: float) -> tuple[float, float, float]:
    """Cosine that so many pairs of n unrelated rows exceed, and the ends of its interval."""
    levels, part = np.arctanh(cosines.clip(max=1 - 1e-8)), np.arange(n) % _PARTS
    level, *others = (
        _tail(levels[(part[pairs] != each).all(axis=1)], np.mean(part != each), n, asked)
        for each in range(-1, _PARTS)
    )
    error = t.ppf(0.975, _PARTS - 1) * ((_PARTS - 1) * np.var(others)) ** 0.5
    return np.tanh([level, level - error, level + error]).tolist()


def _tail(levels: Floats, share: Any, n: int, false_pairs: float) -> float:
    """Level that so many pairs of n unrelated rows exceed, from the pairs of a share of them."""
    n_pairs, asked = share * n * (share * n - 1) / 2, 2 * false_pairs / (n * (n - 1))
    ranks, related = np.unique((np.geomspace(*_PER_ROW) * n * share**2).astype(int)), 0.0
    ranks = ranks.clip(1, len(levels))
    for _ in range(3):
        known = norm.isf((ranks - related - 0.5) / n_pairs)
        curve = np.polynomial.Polynomial.fit(known, levels[ranks - 1], 2)
        found = curve(np.linspace(known[-1], norm.isf(asked), 100)).max()  # it may bend down
        related = min(max((levels > found).sum() - asked * n_pairs, 0), 0.9 * ranks[0])
    return float(found)

"""Which rows are trained on, and which choose the epoch."""

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

_MIN_ROWS = 4  # fewer rows on either side of a split cannot be scored

Index = NDArray[np.int64]


def split_rows(
    n: int, labels: NDArray[np.generic] | None, fraction: float | None, rng: np.random.RandomState
) -> tuple[Index, Index | None]:
    """Split rows into those to train on and those to validate on.

    Parameters
    ----------
    n : int
        How many rows there are.
    labels : ndarray of shape (n,) or None
        Classes; the split is stratified by them where each has two rows, and all of them are
        among the rows to train on.
    fraction : float or None
        Share of the rows to validate on.
    rng : RandomState
        Draws them.

    Returns
    -------
    fitting : ndarray of shape (n_fitting,)
        Sorted row numbers.
    validating : ndarray of shape (n - n_fitting,), or None
        Sorted row numbers; None where nothing, or fewer than 4 rows on a side, would be left.
    """
    rows, n_valid = np.arange(n), round(n * (fraction or 0))
    if min(n_valid, n - n_valid) < _MIN_ROWS:
        return rows, None
    stratify = classes = None
    if labels is not None:
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        if counts.min() >= 2 and len(counts) <= min(n_valid, n - n_valid):
            stratify = classes
    fitting, validating = train_test_split(
        rows, test_size=n_valid, stratify=stratify, random_state=rng
    )
    if classes is not None:  # a head that is fitted needs every class
        found, first = np.unique(classes[validating], return_index=True)
        lacking = validating[first[~np.isin(found, classes[fitting])]]
        fitting = np.concatenate([fitting, lacking])
        validating = np.setdiff1d(validating, lacking)
    if len(validating) < _MIN_ROWS:
        return rows, None
    return np.sort(fitting), np.sort(validating)

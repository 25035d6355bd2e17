"""Which rows are trained on, and which choose the epoch."""

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

_MIN_ROWS = 4  # fewer rows on either side of a split cannot be scored

Index = NDArray[np.int64]


def split_rows(
    n: int,
    labels: NDArray[np.generic] | None,
    fraction: float | None,
    rng: np.random.RandomState,
    groups: NDArray[np.int64] | None = None,
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
    groups : ndarray of shape (n,) or None, default=None
        Numbers of the groups, from 0 on, each of which stays on one side.

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
    if classes is not None:  # a head that is fitted needs every class
        found, first = np.unique(classes[validating], return_index=True)
        lacking = validating[first[~np.isin(found, classes[fitting])]]
        fitting = np.concatenate([fitting, lacking])
        validating = np.setdiff1d(validating, lacking)
    if len(validating) < _MIN_ROWS:
        return rows, None
    return np.sort(fitting), np.sort(validating)


def _drawn_groups(
    groups: NDArray[np.int64],
    labels: NDArray[np.generic] | None,
    fraction: float,
    rng: np.random.RandomState,
) -> NDArray[np.bool_]:
    """Whether to validate on each group (n_groups,).

    From the largest group to the smallest, those of equal size in random order, a group is taken
    if that brings the rows taken of each class nearer to their share of those gone through, and if
    it leaves rows of each class to train on.
    """
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

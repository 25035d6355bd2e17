"""The split of rows into training and validation rows."""

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

_MIN_ROWS = 4  # on each side of a split; fewer cannot be scored

Index = NDArray[np.int64]


def split_rows(
    n: int,
    labels: NDArray[np.generic] | None,
    fraction: float | None,
    rng: np.random.RandomState,
    groups: NDArray[np.int64] | None = None,
) -> tuple[Index, Index | None]:
    """Return sorted numbers of the training rows and of the validation rows.

    The latter are None if fewer than 4 rows would be left on a side. Without groups, the split is
    stratified if each class has at least two rows, and every class has a training row. Each group,
    numbered from 0, stays on one side.
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
    if classes is not None:  # a head fitted to the training rows needs every class
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
    """Whether each group is used for validation, (n_groups,).

    Groups are visited from the largest to the smallest, in random order if equally large. A group
    is taken if it brings the number of rows taken of each class closer to the given fraction of
    those visited, and if training rows of each class remain.
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

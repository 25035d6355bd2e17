"""The protocol of a comparison: the rows that it fits to, and those that it judges on."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedGroupKFold,
    StratifiedKFold,
    check_cv,
)

from isoadapt._utils.containers import as_values
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import warn
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._methods import HEAD_COLUMNS
from isoadapt.model_selection._compare._uses import FEWEST

N_REPEATS = 3
_KINDS: dict[tuple[bool, bool], Any] = {  # by whether they are stratified and grouped
    (True, True): StratifiedGroupKFold,
    (True, False): StratifiedKFold,
    (False, True): GroupKFold,
    (False, False): KFold,
}

_UNKNOWN = (
    "encoder_saw=None: it is not known whether the encoder was trained on the judged rows. If it "
    "was, their classes are already separated, and the figures do not tell which adapter helps on "
    "new rows. Pass encoder_saw=False, or True with X_test and y_test that it has not seen (on the "
    "command line: --encoder-unseen, or --encoder-saw with --test)"
)
_SEEN = (
    "encoder_saw=True: cross-validation on rows that the encoder was trained on cannot tell "
    "whether an adapter helps, because their classes are already separated. Pass X_test and y_test "
    "that it has not seen, or a mask of the rows that it has seen, and the others are judged"
)

Rows = NDArray[np.int64]  # row numbers


class Split(NamedTuple):
    """Row numbers to fit to, and those to judge on, which may be none."""

    train: Rows
    test: Rows
    final: bool  # whether it gives the fitted estimator, and figures of pairs and queries
    seed: int


Plan = tuple[list[Split], str]  # with the protocol in words


def make_plan(data: Data, n_fit: int, *, cv: Any, encoder_saw: Any, seed: int) -> Plan:
    """Choose the protocol: fit to X and judge on other rows, or a cross-validation."""
    n_rows, rows = len(data.X), np.arange(len(data.X))
    saw = _mask(encoder_saw, n_fit)
    if encoder_saw is None:
        warn(_UNKNOWN)
    if n_fit < n_rows:
        return _single(data, rows[:n_fit], rows[n_fit:], seed, "test rows")
    if saw.all():
        raise ValueError(_SEEN)
    if saw.any():
        unseen = "rows that the encoder has not seen"
        return _single(data, rows[saw], rows[~saw], seed, unseen)
    folds = _folds(data, cv, seed)
    if (fewest := min(len(test) for _, test in folds)) < FEWEST:
        raise ValueError(
            f"cv={cv!r}: only {fewest} rows are judged at a time, of {n_rows}; at least {FEWEST} "
            "are needed: use fewer folds, more rows, or more groups of rows"
        )
    splits = [Split(train, test, False, seed) for train, test in folds]
    of_groups = "grouped " if data.clusters.max() + 1 < n_rows else ""
    protocol = (
        f"Cross-validation on {n_rows} rows with {len(splits)} {of_groups}splits, with the "
        "corrected resampled t test for the task, and paired tests of rows, pairs and queries for "
        "other uses."
    )
    return [*splits, Split(rows, rows[:0], True, seed)], protocol


def _single(data: Data, train: Rows, test: Rows, seed: int, what: str) -> Plan:
    """Fit to some rows, and judge on other rows that equal none of them."""
    hashes = copy_hashes(data.X[:, data.columns(HEAD_COLUMNS)])
    known = np.isin(hashes[test], hashes[train])
    counts = f"{known.sum()} of the {len(test)} rows to judge on equal rows to fit to"
    test = test[~known]
    if len(test) < FEWEST:
        raise ValueError(
            f"{counts}, which leaves {len(test)} of at least {FEWEST} that are needed: judge on "
            "other rows (X_test, or --test on the command line)"
        )
    known_labels, judged = (np.unique(data.y[rows]).tolist() for rows in (train, test))
    if data.task == "classify" and not set(known_labels) & set(judged):
        raise ValueError(
            f"the rows to judge on have the labels {judged[:5]}, but y has other ones "
            f"({known_labels[:5]}): use the same labels in both"
        )
    if known.any():
        warn(f"{counts}, and are left out")
    protocol = (
        f"Fitted to {len(train)} rows and judged on {len(test)} {what}, with paired tests of rows, "
        "pairs and queries."
    )
    return [Split(train, test, True, seed)], protocol


def _mask(encoder_saw: Any, n: int) -> NDArray[np.bool_]:
    """Mask (n,) of the rows that the encoder is said to have seen."""
    single = encoder_saw is None or isinstance(encoder_saw, bool | np.bool_)
    mask = np.asarray(bool(encoder_saw) if single else as_values(encoder_saw, "encoder_saw"))
    if mask.shape not in ((), (n,)) or mask.dtype != bool:
        raise ValueError(
            f"encoder_saw has shape {mask.shape} and dtype {mask.dtype}, but must be True, False, "
            f"None or a boolean mask with one entry for each of the {n} rows of X"
        )
    return np.broadcast_to(mask, n)


def _folds(data: Data, cv: Any, seed: int) -> list[tuple[Rows, Rows]]:
    """Row numbers of the splits; a number of folds is repeated with different shuffles."""
    y, groups = data.y, None if data.groups is None else data.clusters
    cv = 5 if cv is None else cv
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        seeds = [(seed + repeat) % 2**32 for repeat in range(N_REPEATS)]
        if data.clusters.max() + 1 < len(y):
            groups = data.clusters
        kind = _KINDS[data.task == "classify" and y.ndim == 1, groups is not None]
        repeats = [kind(int(cv), shuffle=True, random_state=each) for each in seeds]
        return [pair for repeat in repeats for pair in repeat.split(data.X, y, groups)]
    found = check_cv(cv).split(data.X, y, groups)  # raises for other kinds of values
    rows = np.arange(len(y))
    splits = [(rows[np.asarray(train)], rows[np.asarray(test)]) for train, test in found]
    if len(splits) < 2:
        raise ValueError(
            f"cv={cv!r} gives {len(splits)} split(s), but at least 2 are needed for a test; to "
            "judge on one set of rows, pass X_test and y_test"
        )
    return splits

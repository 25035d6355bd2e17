"""Validation of the data of a comparison, and the rows that its protocol fits to and judges on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from isoadapt._utils.containers import as_matrix, as_values
from isoadapt._utils.messages import warn
from isoadapt.adapters._heads import needs_fit, read_targets
from isoadapt.encoders._texts import as_texts
from isoadapt.geometry._chunks import row_hashes
from isoadapt.heads import LinearHead
from isoadapt.metrics._neighbours import relevant_sets
from isoadapt.metrics._points import codes_of
from isoadapt.model_selection._compare._measure import Data, Split
from isoadapt.model_selection._compare._methods import HEAD_COLUMNS
from isoadapt.model_selection._compare._paired_tests import Floats, joined

N_REPEATS = 3
_KINDS: dict[tuple[bool, bool], Any] = {  # by whether they are stratified and grouped
    (True, True): StratifiedGroupKFold,
    (True, False): StratifiedKFold,
    (False, True): GroupKFold,
    (False, False): KFold,
}
_FEWEST = 3  # rows that are judged

_UNKNOWN = (
    "encoder_saw=None: it is not known whether the encoder was trained on the rows that are "
    "judged. If it was, the figures do not tell which adapter helps on new rows, because the "
    "classes of training rows are already separated. Pass encoder_saw=False if the encoder has not "
    "seen X, or encoder_saw=True with X_test and y_test that it has not seen (on the command line: "
    "--encoder-unseen, or --encoder-saw with --test)"
)
_SEEN = (
    "encoder_saw=True: cross-validation on rows that the encoder was trained on cannot tell "
    "whether an adapter helps, because their classes are already separated. Pass X_test and y_test "
    "that the encoder has not seen; or only such rows as X, with encoder_saw=False; or a mask of "
    "the rows that it has seen, and the others are judged"
)
_ADMISSIBLE_CV = (
    "pass a number of folds, a splitter of scikit-learn, or a list of pairs (training rows, test "
    "rows) of row numbers"
)


class Plan(NamedTuple):
    """The splits of a comparison and the protocol in words."""

    splits: list[Split]
    protocol: str
    resampled: bool  # whether the task is judged by a cross-validation


def task_of(head: Any) -> str:
    """Return "classify" or "regress", according to the head."""
    if isinstance(head, str) and head in ("logistic", "ridge"):
        return "classify" if head == "logistic" else "regress"
    kind = get_tags(head).estimator_type if hasattr(head, "predict") else None
    if kind not in ("classifier", "regressor"):
        raise ValueError(
            f"head={head!r} must be 'logistic', 'ridge', a LinearHead or a linear classifier or "
            "regressor of scikit-learn"
        )
    return "classify" if kind == "classifier" else "regress"


def make_data(
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    head: Any,
    groups: Any,
    groups_test: Any,
    encoder: Any,
    pairs: Any,
    queries: Any,
    documents: Any,
    relevant: Any,
    foreign: Any,
    widths: tuple[int, int] | None,
) -> tuple[Data, int]:
    """Check all data; rows of X and, after them, of X_test; and the number of rows of X."""
    task = task_of(head)
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test must be given together, or neither")
    rows, targets = _labelled(X, y, "X", head, task)
    n_fit, d = rows.shape
    labels = _numbered(groups, n_fit, "X", "groups")
    if groups_test is not None and X_test is None:
        raise ValueError("groups_test was given without X_test: pass the groups of X as groups")
    if X_test is not None:
        test_rows, test_targets = _labelled(X_test, y_test, "X_test", head, task)
        _check_width(test_rows, d, "X_test")
        of_test = _numbered(groups_test, len(test_rows), "X_test", "groups_test")
        labels = np.append(labels, n_fit + of_test)
        rows = np.concatenate([rows, test_rows])
        targets = np.concatenate([targets, test_targets])
    if not needs_fit(head):
        LinearHead.from_estimator(head)._check_width(d if widths is None else widths[0])
        LinearHead.from_estimator(head)._targets(targets)  # raises for unknown labels
    data = Data(
        rows,
        targets,
        task,
        joined(labels, row_hashes(rows if widths is None else rows[:, : widths[0]])),
        None if groups is None else labels[:n_fit],
        _pairs(pairs, encoder, d),
        _search(queries, documents, relevant, encoder, d),
        None if foreign is None else _vectors(foreign, "foreign", encoder, d),
        widths,
    )
    return data, n_fit


def _numbered(groups: Any, n: int, rows: str, name: str) -> NDArray[np.int64]:
    """Number (n,) of each row's group; without groups, each row is one."""
    return np.arange(n) if groups is None else codes_of(groups, n, name, rows)[1]


def _check_targets(targets: NDArray[Any], test_targets: NDArray[Any], task: str) -> None:
    """Raise if no label to judge occurs in those to fit to, or if the values are all equal."""
    if task == "classify":
        known, judged = np.unique(targets).tolist(), np.unique(test_targets).tolist()
        if not set(known) & set(judged):
            raise ValueError(
                f"the rows to judge on have the labels {judged[:5]}, none of which occurs in y "
                f"({known[:5]}): use the same labels in both"
            )
    if task == "regress" and not np.ptp(test_targets, axis=0).all():
        raise ValueError(
            "the rows to judge on have equal values only, for which R² is not defined: judge on "
            "rows whose values differ"
        )


def _labelled(X: Any, y: Any, name: str, head: Any, task: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if y is None:
        raise ValueError(
            "y=None, but compare_adapters needs labels or values, because heads and controls are "
            "fitted to them"
        )
    if are_texts(X) or getattr(getattr(X, "dtype", None), "kind", None) == "U":
        raise ValueError(
            f"{name} must be a matrix of embeddings, not texts or objects: pass "
            "encoder.transform(texts). Only pairs, queries, documents and foreign may be texts"
        )
    rows: NDArray[Any] = check_array(
        as_matrix(X, name),
        dtype=[np.float64, np.float32],
        order="C",
        ensure_min_samples=_FEWEST,
        ensure_min_features=2,
        input_name=name,
    )
    numeric, y_name = task == "regress", name.replace("X", "y")
    y, several = read_targets(head, y, numeric)
    dtype = np.float64 if numeric else None
    targets: NDArray[Any] = check_array(y, dtype=dtype, ensure_2d=False, input_name=y_name)
    if not several or (numeric and targets.shape[1:] == (1,)):
        targets = column_or_1d(targets)
    check_consistent_length(rows, targets)
    return rows, targets


def _vectors(value: Any, name: str, encoder: Any, d: int) -> Floats:
    """Matrix (n, d) of vectors, or of texts that the encoder embeds."""
    if are_texts(value):
        if encoder is None:
            raise ValueError(
                f"{name} holds texts, which need an encoder: pass encoder=, the one that X was "
                "embedded with, or embed them first"
            )
        value = encoder.transform(value)
    rows: Floats = check_array(as_matrix(value, name), dtype=np.float64, input_name=name)
    _check_width(rows, d, name)
    return rows


def are_texts(value: Any) -> bool:
    """Whether a value holds texts or pairs of texts, rather than vectors."""
    try:
        as_texts(value.select(range(1)) if hasattr(value, "with_format") else value[:1])
    except (TypeError, ValueError, RuntimeError):  # dask and nested tensors select no rows
        return isinstance(value, str)
    return True


def _check_width(rows: NDArray[Any], d: int, name: str) -> None:
    if rows.shape[1] != d:
        raise ValueError(
            f"{name} has {rows.shape[1]} features and X {d}: embed both by the same encoder"
        )


def _pairs(pairs: Any, encoder: Any, d: int) -> tuple[Floats, NDArray[np.int64], Floats] | None:
    """Different vectors, the numbers (2, n) of those of each pair, and the scores of the pairs."""
    if pairs is None:
        return None
    if not isinstance(pairs, tuple | list) or len(pairs) != 3:
        raise ValueError(
            f"pairs must be three things, (A, B, scores), but {type(pairs).__name__} was given"
            f"{f' with {len(pairs)}' if hasattr(pairs, '__len__') else ''}: pass two matrices, or "
            "two lists of texts with encoder=, and one score for each pair"
        )
    texts = [as_texts(part) for part in pairs[:2] if are_texts(part)]
    if len(texts) == 2 and texts[0].second is None and texts[1].second is None:
        # in one call, so that equal texts get equal vectors
        vectors = _vectors(texts[0].first + texts[1].first, "pairs", encoder, d)
    else:
        vectors = np.concatenate([_vectors(part, "pairs", encoder, d) for part in pairs[:2]])
    _, places, ends = np.unique(row_hashes(vectors), return_index=True, return_inverse=True)
    given = as_values(pairs[2], "scores", numeric=True)
    scores: Floats = check_array(given, dtype=np.float64, ensure_2d=False, input_name="scores")
    check_consistent_length(*pairs[:2], scores)
    if len(scores) < _FEWEST or np.ptp(scores) == 0:
        raise ValueError(
            f"pairs holds {len(scores)} pairs with {len(np.unique(scores))} different score(s): a "
            "correlation needs at least 3 pairs and different scores"
        )
    return vectors[places], ends.reshape(2, -1), scores


def _search(
    queries: Any, documents: Any, relevant: Any, encoder: Any, d: int
) -> tuple[Floats, Floats, list[Any]] | None:
    given = {"queries": queries, "documents": documents, "relevant": relevant}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        return None
    if missing:
        raise ValueError(
            f"queries, documents and relevant must be given together; {', '.join(missing)} is "
            "missing"
        )
    query_vectors = _vectors(queries, "queries", encoder, d)
    document_vectors = _vectors(documents, "documents", encoder, d)
    sets = relevant_sets(relevant, len(query_vectors), len(document_vectors))
    return query_vectors, document_vectors, sets


def make_plan(data: Data, n_fit: int, *, cv: Any, encoder_saw: Any, seed: int) -> Plan:
    """Choose the protocol: fit to X and judge on other rows, or a cross-validation."""
    n_rows, fit_rows = len(data.X), np.arange(n_fit)
    saw = _check_saw(encoder_saw, n_fit)
    if saw is None:
        warn(_UNKNOWN)
    if n_fit < n_rows:
        return _single(data, fit_rows, np.arange(n_fit, n_rows), seed, "test rows")
    if saw is not None and np.all(saw):
        raise ValueError(_SEEN)
    if isinstance(saw, np.ndarray) and saw.any():
        unseen = "rows that the encoder has not seen"
        return _single(data, fit_rows[saw], fit_rows[~saw], seed, unseen)
    pairs = _folds(data, cv, seed)
    if (fewest := min(len(test) for _, test in pairs)) < _FEWEST:
        raise ValueError(
            f"only {fewest} rows are judged at a time, of {n_rows}; at least {_FEWEST} are needed: "
            "use fewer folds or more rows"
        )
    splits = [Split(train, test, False, seed) for train, test in pairs]
    final = Split(fit_rows, np.array([], dtype=np.int64), True, seed)
    of_groups = "grouped " if data.clusters.max() + 1 < n_rows else ""
    protocol = (
        f"Cross-validation on {n_rows} rows with {len(splits)} {of_groups}splits, with the "
        "corrected resampled t test for the task, and paired tests of rows, pairs and queries for "
        "other uses."
    )
    return Plan([*splits, final], protocol, True)


def _single(
    data: Data, train: NDArray[np.int64], test: NDArray[np.int64], seed: int, what: str
) -> Plan:
    """Fit to some rows, and judge on those of others that equal none of them."""
    read = data.of(HEAD_COLUMNS).X
    known = np.isin(row_hashes(read[test]), row_hashes(read[train]))
    counts = f"{known.sum()} of the {len(test)} rows to judge on equal rows that are fitted to"
    test = test[~known]
    if len(test) < _FEWEST:
        raise ValueError(
            f"{counts}, so {len(test)} are left, and at least {_FEWEST} are needed: judge on other "
            "rows"
        )
    _check_targets(data.y[train], data.y[test], data.task)
    if known.any():
        warn(f"{counts}, and are left out")
    protocol = (
        f"Fitted to {len(train)} rows and judged on {len(test)} {what}, with paired bootstrap "
        "intervals."
    )
    return Plan([Split(train, test, True, seed)], protocol, False)


def _check_saw(encoder_saw: Any, n: int) -> bool | NDArray[np.bool_] | None:
    if encoder_saw is None or isinstance(encoder_saw, bool | np.bool_):
        return None if encoder_saw is None else bool(encoder_saw)
    mask = np.asarray(as_values(encoder_saw, "encoder_saw"))
    if mask.shape != (n,) or mask.dtype != bool:
        raise ValueError(
            f"encoder_saw has shape {mask.shape} and dtype {mask.dtype}, but must be True, False, "
            f"None or a boolean mask with one entry for each of the {n} rows of X"
        )
    return mask


def _folds(data: Data, cv: Any, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Row numbers of the splits; a number of folds is repeated with different shuffles."""
    y, groups = data.y, None if data.groups is None else data.clusters
    cv = 5 if cv is None else cv
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool):
        if cv < 2:
            raise ValueError(f"cv={cv} must be at least 2 folds, or a splitter")
        seeds = [(seed + repeat) % 2**32 for repeat in range(N_REPEATS)]
        if (n_clusters := data.clusters.max() + 1) < len(y):
            groups = data.clusters
        if n_clusters < cv:
            raise ValueError(
                f"cv={cv} folds, but X has {n_clusters} different rows or groups of rows, which "
                "share a fold: use fewer folds, or more rows"
            )
        kind = _KINDS[data.task == "classify" and y.ndim == 1, groups is not None]
        repeats = [kind(int(cv), shuffle=True, random_state=each) for each in seeds]
        return [pair for repeat in repeats for pair in repeat.split(data.X, y, groups)]
    if isinstance(cv, str) or not (hasattr(cv, "split") or hasattr(cv, "__iter__")):
        raise ValueError(f"cv={cv!r} is not admissible; {_ADMISSIBLE_CV}")
    splits = list(cv.split(data.X, y, groups) if hasattr(cv, "split") else cv)
    pairs = [_checked_split(each, number, len(data.X)) for number, each in enumerate(splits)]
    if len(pairs) < 2:
        raise ValueError(
            f"cv={cv!r} gives {len(pairs)} split(s), but at least 2 are needed for a test; to "
            "judge on one set of rows, pass X_test and y_test"
        )
    return pairs


def _checked_split(
    split: Any, number: int, n_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers of one split; raise ValueError if they are not disjoint rows of X."""
    if not isinstance(split, tuple | list | np.ndarray) or len(split) != 2:
        raise ValueError(f"cv: split {number} is {split!r:.60}; {_ADMISSIBLE_CV}")
    train, test = map(np.asarray, split)
    for name, rows in (("training", train), ("test", test)):
        numbers = rows.ndim == 1 and len(rows) > 0 and rows.dtype.kind in "iu"
        if not numbers or rows.min() < 0 or rows.max() >= n_rows:
            raise ValueError(
                f"cv: the {name} rows of split {number}, of shape {rows.shape} and dtype "
                f"{rows.dtype}, must be some of the row numbers 0 to {n_rows - 1}"
            )
    if len(shared := np.intersect1d(train, test)):
        raise ValueError(
            f"cv: split {number} has {len(shared)} row(s) both for training and for test, such as "
            f"row {shared[0]}; the judged rows must not be trained on"
        )
    return train.astype(np.int64), test.astype(np.int64)

"""The data of a comparison: validation, and the columns of them that a method reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from isoadapt._utils.containers import as_matrix, as_values
from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import listed
from isoadapt.adapters._heads import PROBES, needs_fit, read_targets
from isoadapt.heads import LinearHead
from isoadapt.metrics._neighbours import relevant_sets
from isoadapt.metrics._points import codes_of
from isoadapt.model_selection._compare._methods import ALL_COLUMNS, HEAD_COLUMNS, TEACHER_COLUMNS
from isoadapt.model_selection._compare._paired_tests import Floats, joined
from isoadapt.model_selection._compare._uses import GIVEN

FEWEST = 3  # rows that are judged, and pairs


@dataclass(frozen=True)
class Data:
    """All rows with their labels or values, and the data of the other uses."""

    X: NDArray[Any]
    y: NDArray[Any]
    task: str  # "classify" or "regress"
    clusters: NDArray[np.int64]  # (n,): rows of one group, and equal rows, are in one
    groups: NDArray[Any] | None = None  # of the rows to fit to, which are the first
    sets: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # pairs, queries, documents, …
    ends: NDArray[np.int64] | None = None  # (2, n): rows of the different vectors of pairs
    texts: NDArray[np.int64] | None = None  # (2, n): texts of pairs, or clusters of these
    scores: Floats | None = None  # (n,): of the pairs
    relevant: Sequence[set[int]] | None = None
    widths: tuple[int, int] | None = None  # columns of the head and of all before the teacher's
    teacher: NDArray[Any] | None = None  # the teacher's vectors of X and of documents, where a
    index: NDArray[Any] | None = None  # method needs them

    def of(self, columns: str) -> Data:
        """Return the data with the columns that a method reads."""
        if self.widths is None:
            return self
        d, p = self.widths
        read = {HEAD_COLUMNS: slice(d), ALL_COLUMNS: slice(p), TEACHER_COLUMNS: slice(p, None)}
        part = {
            name: np.ascontiguousarray(rows[:, read[columns]])
            for name, rows in (("X", self.X), *self.sets.items())
        }
        taught = columns != HEAD_COLUMNS and "documents" in self.sets
        return replace(
            self,
            X=part.pop("X"),
            sets=part,
            teacher=self.X[:, p:] if columns == ALL_COLUMNS else None,
            index=self.sets["documents"][:, p:] if taught else None,
        )


def task_of(head: Any) -> str:
    """Return "classify" or "regress", according to the head."""
    kind = get_tags(head).estimator_type if hasattr(head, "predict") else PROBES.get(str(head))
    if kind not in PROBES.values():
        raise ValueError(
            f"head={head!r} must be 'logistic', 'ridge', a LinearHead or a linear classifier or "
            "regressor of scikit-learn"
        )
    return "classify" if kind == "classifier" else "regress"


def make_data(
    X: Any,
    y: Any,
    X_test: Any = None,
    y_test: Any = None,
    *,
    head: Any,
    groups: Any = None,
    groups_test: Any = None,
    uses: Any = (),
    teacher: Any = None,
) -> tuple[Data, int]:
    """Check all data; rows of X and, after them, of X_test; and the number of rows of X."""
    task = task_of(head)
    if (X_test is None) != (y_test is None):
        raise ValueError("X_test and y_test must be given together, or neither")
    if groups_test is not None and X_test is None:
        raise ValueError("groups_test was given without X_test: pass the groups of X as groups")
    given = {"X": X, "X_test": X_test} | _given(uses)
    scores, relevant, of_texts = (given.pop(k, None) for k in ("scores", "relevant", "groups"))
    sets, widths = _matrices(given, teacher, head)
    n_fit, d = len(sets["X"]), sets["X"].shape[1] if widths is None else widths[0]
    rows, targets, numbers = _rows(sets, (y, y_test), (groups, groups_test), head, task)
    if not needs_fit(head):
        LinearHead.from_estimator(head)._check_width(d)
    clusters = joined(numbers, copy_hashes(rows[:, :d]))
    of_fit = None if groups is None else numbers[:n_fit]
    data = Data(rows, targets, task, clusters, of_fit, sets, widths=widths)
    if scores is not None:
        data = _with_pairs(data, scores, of_texts)
    if relevant is not None:
        found = relevant_sets(relevant, len(sets["queries"]), len(sets["documents"]))
        data = replace(data, relevant=found)
    return data, n_fit


def _rows(
    sets: dict[str, NDArray[Any]], y: Sequence[Any], groups: Sequence[Any], head: Any, task: str
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Take X and X_test out of the sets: rows, targets and numbers of groups, none in both."""
    rows, targets, numbers = [], [], []
    for name, values, own in zip(("X", "X_test"), y, groups, strict=True):
        if name in sets:
            rows.append(sets.pop(name))
            n = len(rows[-1])
            targets.append(_targets(values, rows[-1], name.replace("X", "y"), head, task))
            own = np.arange(n) if own is None else own
            codes = codes_of(own, n, name.replace("X", "groups"), name)[1]
            numbers.append(codes + len(rows[0]) * (len(rows) - 1))
    return np.concatenate(rows), np.concatenate(targets), np.concatenate(numbers)


def _given(uses: Any) -> dict[str, Any]:
    """Data of the uses, by the names of their parameters."""
    kinds = [type(use) for use in (uses if isinstance(uses, list | tuple) else [uses])]
    if len({*kinds} & {*GIVEN}) < len(kinds) or not isinstance(uses, list | tuple):
        names, given = (listed([kind.__name__ for kind in each]) for each in (GIVEN, kinds))
        raise TypeError(f"uses holds {given}, but must be a list with at most one each of {names}")
    return {name: value for use in uses for name, value in vars(use).items()}


def _matrices(
    given: Mapping[str, Any], teacher: Any, head: Any
) -> tuple[dict[str, NDArray[Any]], tuple[int, int] | None]:
    """Check all sets of vectors, with the teacher's as further columns, and their widths."""
    sets = {name: _matrix(each, name) for name, each in given.items() if each is not None}
    sets, widths = (sets, None) if teacher is None else _with_teacher(sets, teacher, head)
    for name, each in sets.items():
        if (d := each.shape[1]) != (expected := sets["X"].shape[1]):
            raise ValueError(
                f"{name} has {d} features and X {expected}: embed both by the same encoder"
            )
    return sets, widths


def _matrix(value: Any, name: str) -> NDArray[Any]:
    return check_array(
        as_matrix(value, name),
        dtype=[np.float64, np.float32],
        order="C",
        ensure_min_samples=FEWEST if name in ("X", "X_test") else 1,
        ensure_min_features=2,
        input_name=name,
    )


def _targets(y: Any, rows: NDArray[Any], name: str, head: Any, task: str) -> NDArray[Any]:
    """Check the labels or values of rows."""
    if y is None:
        raise ValueError(
            "y=None, but compare_adapters needs labels or values, because heads and controls are "
            "fitted to them"
        )
    numeric = task == "regress"
    y, several = read_targets(head, y, numeric)
    dtype = np.float64 if numeric else None
    targets: NDArray[Any] = check_array(y, dtype=dtype, ensure_2d=False, input_name=name)
    if not several or (numeric and targets.shape[1:] == (1,)):
        targets = column_or_1d(targets)
    check_consistent_length(rows, targets)
    return targets


def _with_teacher(
    sets: Mapping[str, NDArray[Any]], teacher: Any, head: Any
) -> tuple[dict[str, NDArray[Any]], tuple[int, int]]:
    """Append the teacher's vectors to the sets; return the widths of the head's input and of X."""
    if needs_fit(head):
        raise ValueError(
            f"teacher was given with head={head!r}: pass the classifier's head, which tells the "
            "columns of X that it reads"
        )
    d, width = LinearHead.from_estimator(head).n_features_in_, sets["X"].shape[1]
    if width < d:
        raise ValueError(f"X has {width} columns, but the head reads the first {d}")
    found = {}
    for name, rows in sets.items():
        if not isinstance(teacher, Mapping) or name not in teacher:
            raise ValueError(
                f"teacher has no vectors of {name}: pass a mapping with the teacher's vectors of "
                f"{', '.join(sets)}"
            )
        vectors = _matrix(teacher[name], f"teacher[{name!r}]")
        if len(vectors) != len(rows):
            raise ValueError(
                f"teacher[{name!r}] has {len(vectors)} vectors, but {name} has {len(rows)} rows"
            )
        found[name] = np.hstack([rows, vectors.astype(rows.dtype)])
    return found, (d, width)


def _with_pairs(data: Data, scores: Any, groups: Any) -> Data:
    """Replace A and B by their different vectors and the numbers of those of each pair."""
    sets = dict(data.sets)
    parts = sets.pop("A"), sets.pop("B")
    given = as_values(scores, "scores", numeric=True)
    checked: Floats = check_array(given, dtype=np.float64, ensure_2d=False, input_name="scores")
    check_consistent_length(*parts, checked)
    if len(checked) < FEWEST or np.ptp(checked) == 0:
        raise ValueError(
            f"Similarity has {len(checked)} pairs with {len(np.unique(checked))} different "
            "score(s): a correlation needs at least 3 pairs and different scores"
        )
    vectors = np.concatenate(parts)
    _, places, ends = np.unique(copy_hashes(vectors), return_index=True, return_inverse=True)
    sets["pairs"] = vectors[places]
    texts = ends
    if groups is not None:
        names = np.ravel(as_values(groups, "groups of Similarity"), order="F")
        texts = joined(codes_of(names, len(ends), "groups of Similarity", "A and B")[1], ends)
    ends, texts = ends.reshape(2, -1), texts.reshape(2, -1)
    return replace(data, sets=sets, ends=ends, texts=texts, scores=checked)

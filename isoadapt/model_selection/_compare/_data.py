"""The data of a comparison: validation, and the columns of them that a method reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, check_consistent_length, column_or_1d

from isoadapt._utils.containers import as_matrix
from isoadapt._utils.copies import copy_hashes
from isoadapt.adapters._heads import PROBES, needs_fit, read_targets
from isoadapt.heads import LinearHead
from isoadapt.metrics._points import codes_of
from isoadapt.model_selection._compare._methods import ALL_COLUMNS, HEAD_COLUMNS, TEACHER_COLUMNS
from isoadapt.model_selection._compare._paired_tests import joined
from isoadapt.model_selection._compare._uses import FEWEST, TASKS, Index, Neighbours, Search, Use

GENERAL = "general rows"  # the key of what the command line adds to the fits of a readout


@dataclass(frozen=True)
class Data:
    """All rows with their labels or values, and the data of the other uses."""

    X: NDArray[Any]
    y: NDArray[Any]
    task: str  # "classify" or "regress"
    clusters: NDArray[np.int64]  # (n,): rows of one group, and equal rows, are in one
    groups: NDArray[Any] | None = None  # of the rows to fit to, which are the first
    uses: Sequence[Use] = ()  # beside the task, uses of judged rows last
    widths: tuple[int, int] | None = None  # columns of the head and of all before the teacher's
    general: Any = None  # rows that are added to the fits of a readout

    def columns(self, name: str) -> slice:
        """Return the columns that a method reads, of X and of the vectors of all uses."""
        if self.widths is None:
            return slice(None)
        d, p = self.widths
        read = {HEAD_COLUMNS: slice(d), ALL_COLUMNS: slice(p), TEACHER_COLUMNS: slice(p, None)}
        return read[name]


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
    places = _places(uses)
    own = {name: getattr(use, parameter) for name, (use, parameter) in places.items()}
    sets, widths = _matrices({"X": X, "X_test": X_test} | own, teacher, head)
    n_fit, d = len(sets["X"]), sets["X"].shape[1] if widths is None else widths[0]
    rows, targets, numbers = _rows(sets, (y, y_test), (groups, groups_test), head, task)
    if not needs_fit(head):
        LinearHead.from_estimator(head)._check_width(d)
    clusters = joined(numbers, copy_hashes(rows[:, :d]))
    of_fit = None if groups is None else numbers[:n_fit]
    found: list[Use] = [Neighbours()] * (task == "classify")
    for use in uses:
        vectors = {name: sets[key] for key, (other, name) in places.items() if other is use}
        found.append(replace(use, **vectors).check())
        if widths is not None and isinstance(search := found[-1], Search):
            name = "index" if search.name == "search" else f"{search.name} index"
            taught = search.documents[:, widths[1] :]
            found.append(Index(search.queries, taught, search.relevant, name))
    names = [*TASKS, *(use.name for use in found)]
    if taken := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"uses: the name {taken[0]!r} is taken: pass another one, as in "
            "Similarity(A, B, scores, name='titles')"
        )
    found.sort(key=lambda use: use.of_rows)
    general = None if teacher is None else teacher.get(GENERAL)
    return Data(rows, targets, task, clusters, of_fit, found, widths, general), n_fit


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


def _places(uses: Any) -> dict[str, tuple[Use, str]]:
    """Use and parameter of each set of vectors, by a name that no other set has."""
    found: dict[str, tuple[Use, str]] = {}
    is_list = isinstance(uses, list | tuple)
    for use in uses if is_list else [uses]:
        if not (is_list and isinstance(use, Use)):
            raise TypeError(
                "uses must be a list of Similarity, Search, Outliers or other subclasses of Use, "
                f"not {'a list with ' * is_list}{type(use).__name__}"
            )
        for name in use.vectors:
            found[f"{use.name}.{name}" if name in ("X", "X_test", *found) else name] = use, name
    return found


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

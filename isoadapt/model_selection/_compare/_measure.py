"""Fit a method to some rows, and measure it on other rows and on the data of each use."""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef, r2_score
from sklearn.utils.validation import has_fit_parameter

from isoadapt import metrics
from isoadapt._utils.messages import reason
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._methods import (
    ALL_COLUMNS,
    HEAD_COLUMNS,
    TEACHER_COLUMNS,
    ComparedMethod,
    seeded,
)
from isoadapt.model_selection._compare._paired_tests import Floats
from isoadapt.model_selection._compare._plan import Split
from isoadapt.model_selection._compare._uses import Index, K, Transform


@dataclass
class Measurement:
    """What a method achieved on a split."""

    figures: dict[str, float] = field(default_factory=dict)
    predictions: Any = None  # (n_test,) or (n_test, n_outputs)
    score: float = math.nan
    values: dict[str, Floats] = field(default_factory=dict)  # of the items of other uses
    estimator: Any = None
    messages: tuple[str, ...] = ()
    error: str | None = None


Measurements = dict[str, list[Measurement]]
"""Measurements of each method on all splits, by its name."""


def measure(method: ComparedMethod, data: Data, split: Split) -> Measurement:
    """Fit and measure a method on a split. A failed fit gives one with an error."""
    found, X = Measurement(), data.X[:, data.columns(method.columns)]
    with warnings.catch_warnings(record=True) as caught, one_blas_thread_if_small(X):
        warnings.simplefilter("always", UserWarning)
        try:
            _measure(method, data, split, found)
        except ImportError:  # a package that is not installed
            raise
        except Exception as failure:  # of any adapter, which the others do not depend on
            found = Measurement(error=f"{type(failure).__name__}: {reason(failure)}")
    said = [" ".join(str(each.message).split()) for each in caught]
    found.messages = tuple(dict.fromkeys(said))
    return found


def _measure(method: ComparedMethod, data: Data, split: Split, found: Measurement) -> None:
    estimator, read = seeded(method.estimator, split.seed), data.columns(method.columns)
    train, targets, options = data.X[split.train], data.y, {}
    if method.columns == ALL_COLUMNS:
        targets = data.X[:, data.columns(TEACHER_COLUMNS)]
    if data.groups is not None and has_fit_parameter(estimator, "groups"):
        options["groups"] = data.groups[split.train]
    start = time.perf_counter()
    rows, targets = np.ascontiguousarray(train[:, read]), targets[split.train]
    if method.columns == ALL_COLUMNS and data.general is not None:
        data.general.beside(rows, targets, options).fit(estimator)
    else:
        estimator.fit(rows, targets, **options)
    found.figures["fit_seconds"] = time.perf_counter() - start
    transform = Transform(lambda rows: transformed(estimator, rows[:, read]), train)
    if len(split.test):
        X, y = data.X[split.test, read].astype(np.float64), data.y[split.test]
        transform = transform._replace(judged=_judge_rows(estimator, X, y, data.task, found), y=y)
    if split.final:
        found.estimator = estimator
    taught = method.columns != HEAD_COLUMNS and getattr(estimator, "space", "teacher") == "teacher"
    uses = data.uses
    if method.by_head:
        uses = [use for use in uses if use._control == method.name]
        transform = transform._replace(head=estimator)
    for use in uses:
        is_due = len(split.test) if use.of_rows else split.final
        if is_due and (taught or not isinstance(use, Index)):
            found.values[use.name] = np.asarray(use.measure(transform), dtype=np.float64)


def _judge_rows(
    estimator: Any, X: Floats, y: NDArray[Any], task: str, found: Measurement
) -> Floats:
    """Measure the task and the geometry on judged rows X, and return these adapted."""
    start = time.perf_counter()
    Z = transformed(estimator, X)
    found.figures["transform_seconds"] = time.perf_counter() - start
    found.predictions = np.asarray(estimator.predict(X))
    found.score, of_task = _task_figures(estimator, X, y, found.predictions, task)
    found.figures |= _geometry(X, Z) | of_task
    return Z


def transformed(estimator: Any, X: NDArray[Any]) -> Floats:
    """Transform rows (n, d) in float64."""
    return np.ascontiguousarray(estimator.transform(X.astype(np.float64)), dtype=np.float64)


def _task_figures(
    estimator: Any, X: Floats, y: NDArray[Any], predictions: NDArray[Any], task: str
) -> tuple[float, dict[str, float]]:
    """Score of the task, and further figures of it."""
    if task == "regress":
        errors = (np.asarray(y, dtype=np.float64) - predictions) ** 2
        return float(r2_score(y, predictions)), {"mse": float(errors.mean())}
    figures = {"matthews": float(matthews_corrcoef(np.ravel(y), np.ravel(predictions)))}
    head = getattr(estimator, "head_", None)
    if head is not None:
        probabilities = estimator.predict_proba(X)
        several = head.multi_label_
        labels, rows = (np.ravel(y), np.ravel(probabilities)) if several else (y, probabilities)
        classes = [0, 1] if several else head.classes_
        figures["cross_entropy"] = _or_nan(lambda: log_loss(labels, rows, labels=classes))
    return float(accuracy_score(y, predictions)), figures


def _geometry(X: Floats, Z: Floats) -> dict[str, float]:
    """Figures of the geometry of adapted rows Z, NaN where they are not defined."""
    k = min(K, len(Z) - 1)
    return {
        "isoscore": _or_nan(lambda: metrics.isoscore(Z)),
        "isoscore_corrected": _or_nan(lambda: metrics.isoscore(Z, bias_corrected=True)),
        "ev1": _or_nan(lambda: metrics.cumulative_explained_variance(Z, k=1)),
        "mean_cosine": _or_nan(lambda: metrics.mean_cosine_similarity(Z)),
        "hubness": _or_nan(lambda: metrics.hubness(Z, k).skewness),
        "neighbour_overlap": _or_nan(lambda: metrics.neighbour_overlap(X, Z, k)),
    }


def _or_nan(figure: Callable[[], float]) -> float:
    try:
        return float(figure())
    except (ValueError, ArithmeticError):
        return math.nan


def n_changed(before: NDArray[Any], after: NDArray[Any]) -> int:
    """Number of rows whose predictions differ; values may differ by rounding."""
    are_values = before.dtype.kind == "f"
    differs = np.abs(after - before) > 1e-6 * np.std(before) if are_values else before != after
    return int(differs.reshape(len(differs), -1).any(axis=1).sum())

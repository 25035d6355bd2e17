"""Fit a method to some rows, and measure it on other rows and on the data of each use."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef, r2_score
from sklearn.utils.validation import has_fit_parameter

from isoadapt import metrics
from isoadapt._utils.messages import reason
from isoadapt._utils.threads import one_blas_thread_if_small
from isoadapt.geometry._neighbours import angles, nearest_neighbours
from isoadapt.metrics._neighbours import reciprocal_ranks
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._methods import ComparedMethod, seeded
from isoadapt.model_selection._compare._paired_tests import Floats
from isoadapt.model_selection._compare._plan import Split

K = 10  # number of neighbours and rank of a search


@dataclass
class Measurement:
    """What a method achieved on a split; arrays are None where there are no data."""

    figures: dict[str, float] = field(default_factory=dict)
    predictions: Any = None  # (n_test,) or (n_test, n_outputs)
    score: float = math.nan
    precision: Any = None  # (n_test,): contributions to that of neighbours
    inside: Any = None  # (n_test,): share of foreign rows that lie farther away
    outside: Any = None  # (n_foreign,): share of test rows that lie nearer
    similarity: Any = None  # (n_pairs,): minus the angles, which are ordered as the cosines
    reciprocal: Any = None  # (n_queries,)
    indexed: Any = None  # (n_queries,): among the teacher's documents, in the teacher's space
    estimator: Any = None
    messages: tuple[str, ...] = ()
    error: str | None = None


Measurements = dict[str, list[Measurement]]
"""Measurements of each method on all splits, by its name."""


def measure(method: ComparedMethod, data: Data, split: Split) -> Measurement:
    """Fit and measure a method on a split. A failed fit gives one with an error."""
    found, data = Measurement(), data.of(method.columns)
    with warnings.catch_warnings(record=True) as caught, one_blas_thread_if_small(data.X):
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
    estimator = seeded(method.estimator, split.seed)
    options = {}
    if data.groups is not None and has_fit_parameter(estimator, "groups"):
        options["groups"] = data.groups[split.train]
    start = time.perf_counter()
    targets = data.y if data.teacher is None else data.teacher
    estimator.fit(data.X[split.train], targets[split.train], **options)
    found.figures["fit_seconds"] = time.perf_counter() - start
    if len(split.test):
        _judge_rows(estimator, data, split, found)
    if split.final:
        found.estimator = estimator
        _judge_other_uses(estimator, data, found)


def _judge_rows(estimator: Any, data: Data, split: Split, found: Measurement) -> None:
    """Measure the task, the geometry, neighbours and outliers on the judged rows."""
    X, y = data.X[split.test].astype(np.float64), data.y[split.test]
    start = time.perf_counter()
    Z = transformed(estimator, X)
    found.figures["transform_seconds"] = time.perf_counter() - start
    found.predictions = np.asarray(estimator.predict(X))
    found.score, of_task = _task_figures(estimator, X, y, found.predictions, data.task)
    found.figures |= _geometry(X, Z) | of_task
    if data.task == "classify":
        found.precision = same_class_shares(Z, y)
    if "foreign" in data.sets:
        reference = transformed(estimator, data.X[split.train])
        foreign = transformed(estimator, data.sets["foreign"])
        inner, outer = (_mean_distance(rows, reference) for rows in (Z, foreign))
        found.inside, found.outside = placements(inner, outer)


def _judge_other_uses(estimator: Any, data: Data, found: Measurement) -> None:
    """Measure pairs and queries, which are no rows of the table."""
    sets = {
        name: transformed(estimator, rows) for name, rows in data.sets.items() if name != "foreign"
    }
    if data.ends is not None:
        vectors = torch.from_numpy(sets["pairs"])
        found.similarity = -angles(*(vectors[ends] for ends in data.ends)).numpy()
    if data.relevant is not None:
        queries, documents = sets["queries"], sets["documents"]
        k = min(K, len(documents))
        found.reciprocal = reciprocal_ranks(queries, documents, data.relevant, k)
        if data.index is not None and getattr(estimator, "space", "teacher") == "teacher":
            found.indexed = reciprocal_ranks(queries, data.index, data.relevant, k)


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


def same_class_shares(Z: Floats, y: NDArray[Any]) -> Floats:
    """Contribution (n,) of each row to the precision of its 10 nearest other rows.

    The precision, the share of neighbours of the same class, is the mean of the contributions. A
    row contributes by its neighbours and by the rows that it is a neighbour of. Both are needed for
    its variance: a label decides about all rows around it.
    """
    k = min(K, len(Z) - 1)
    numbers = nearest_neighbours(torch.from_numpy(Z), k)[1].numpy()
    labels = np.asarray(y).reshape(len(Z), -1)
    same = (labels[numbers] == labels[:, None]).all(axis=-1).astype(np.float64)
    precision = same.mean()
    excess = same - precision
    as_neighbour = np.bincount(numbers.ravel(), weights=excess.ravel(), minlength=len(Z))
    return precision + (excess.sum(axis=1) + as_neighbour) / k


def _mean_distance(Z: Floats, reference: Floats) -> Floats:
    """Mean cosine distance (n,) to the nearest rows of the reference, at most 10."""
    k = min(K, len(reference))
    distances = nearest_neighbours(torch.from_numpy(reference), k, queries=torch.from_numpy(Z))[0]
    return distances.mean(dim=1).numpy()


def placements(inner: Floats, outer: Floats) -> tuple[Floats, Floats]:
    """Share of outer values above each inner one (n,), and of inner values below each outer (m,).

    Ties count one half. The mean of either is the area under the ROC curve.
    """
    n, ranks = len(inner), rankdata(np.concatenate([inner, outer]))
    outer_below, inner_below = ranks[:n] - rankdata(inner), ranks[n:] - rankdata(outer)
    return 1 - outer_below / len(outer), inner_below / n


def n_changed(before: NDArray[Any], after: NDArray[Any]) -> int:
    """Number of rows whose predictions differ; values may differ by rounding."""
    are_values = before.dtype.kind == "f"
    differs = np.abs(after - before) > 1e-6 * np.std(before) if are_values else before != after
    return int(differs.reshape(len(differs), -1).any(axis=1).sum())

"""Reading of fitted linear models of scikit-learn, alone, in a wrapper, or one for each output."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import is_classifier
from sklearn.frozen import FrozenEstimator

Floats = NDArray[np.float64]
_INSIDE = ("best_estimator_", "estimator_", "regressor_")  # of searches and other wrappers
_CERTAIN = 20.0  # logit of a label that was the same in all rows
_N_ROWS = 200  # of a probe


class LinearModel(NamedTuple):
    """What :class:`~isoadapt.LinearHead` is made of."""

    coef: Floats  # (n_outputs, n_features)
    intercept: Floats  # (n_outputs,)
    classes: Any  # (n_outputs,); None: values, or labels without names
    multi_label: bool


def read_linear(estimator: Any) -> LinearModel:
    """Return the coefficients of a fitted model or of its parts; ValueError if it has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may have been fitted to columns with names
        model = _read(estimator)
    if model is None:
        raise ValueError(
            f"head={estimator!r} has no coef_ with one row for each of its outputs: a head must be "
            "a linear model, alone or in OneVsRestClassifier, MultiOutputClassifier, "
            "MultiOutputRegressor or a search, without a Pipeline; fit it first, or pass "
            "'logistic', 'ridge' or a LinearHead"
        )
    return model


def _read(estimator: Any) -> LinearModel | None:
    if isinstance(estimator, FrozenEstimator):
        return _read(estimator.estimator)
    if not hasattr(estimator, "coef_"):
        inside = [getattr(estimator, name) for name in _INSIDE if hasattr(estimator, name)]
        return _read(inside[0]) if inside else _stacked(estimator)
    coef = estimator.coef_.toarray() if issparse(estimator.coef_) else estimator.coef_
    coef = np.atleast_2d(np.asarray(coef, dtype=np.float64))
    return _labelled(estimator, coef, np.ravel(getattr(estimator, "intercept_", 0.0)))


def _stacked(estimator: Any) -> LinearModel | None:
    """Stack the rows of a composite that has one fitted part for each of its outputs."""
    parts = getattr(estimator, "estimators_", None)
    rows = [_row(part) for part in parts] if isinstance(parts, list) else []
    width = max((len(row) for row in rows), default=0)
    if width < 2 or any(len(row) not in (1, width) for row in rows):
        return None
    table = np.stack([np.append(np.zeros(width - len(row)), row) for row in rows])
    return _labelled(estimator, table[:, :-1], table[:, -1])


def _row(part: Any) -> Floats:
    """Return weights and intercept of one output, intercept alone if constant, else nothing."""
    if not hasattr(part, "coef_") and np.size(getattr(part, "y_", ())) == 1:
        return np.where(np.ravel(part.y_), _CERTAIN, -_CERTAIN)
    model = _read(part)
    if model is None or model.multi_label:
        return np.zeros(0)
    table = np.column_stack([model.coef, model.intercept])
    if model.classes is not None and len(table) == 2:
        return table[1] - table[0]
    return table[0] if len(table) == 1 else np.zeros(0)


def _labelled(estimator: Any, coef: Floats, intercept: Floats) -> LinearModel | None:
    """Add the labels to the coefficients; two classes that one row tells apart get two rows."""
    at_zero = dense(estimator.predict(np.zeros((1, coef.shape[1]))))
    classes = getattr(estimator, "classes_", None)
    if not is_classifier(estimator) or classes is None:  # PLSRegression centres the features
        fits = at_zero.size == len(coef)
        return LinearModel(coef, at_zero.ravel(), None, False) if fits else None
    if len(intercept) not in (1, len(coef)):
        return None
    intercept = np.broadcast_to(intercept, len(coef)).astype(np.float64)
    if at_zero.ndim == 2:
        return LinearModel(coef, intercept, None, True)
    if len(coef) == 1 and len(classes) == 2:
        coef, intercept = np.concatenate([-coef, coef]) / 2, np.append(-intercept, intercept) / 2
    return LinearModel(coef, intercept, classes, False) if len(classes) == len(coef) else None


def check_predictions(
    estimator: Any, model: LinearModel, predict: Callable[[Floats], NDArray[Any]]
) -> None:
    """Raise ValueError unless an estimator predicts, up to rounding, as a head of its rows does."""
    rows = _probe_rows(model)
    expected, outputs = predict(rows), rows @ model.coef.T + model.intercept
    rounding = 1e-6 * (np.abs(rows) @ np.abs(model.coef.T) + np.abs(model.intercept))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = dense(estimator.predict(rows)).reshape(expected.shape)
        except (AttributeError, ValueError):  # it selects features, or has other outputs
            found = np.full(expected.shape, np.nan)
    if model.multi_label:
        differs = (found != expected) & (np.abs(outputs) > rounding)
    elif model.classes is None:
        differs = ~np.isclose(found, expected, 1e-4, rounding.max())
    else:
        ordered = np.sort(outputs, axis=1)
        differs = (found != expected) & (ordered[:, -1] - ordered[:, -2] > rounding.max(axis=1))
    if differs.any():
        raise ValueError(
            f"head={estimator!r} does not predict as a head does, X @ coef_.T + intercept_, the "
            "class of the highest of these values or, for several labels, 0 or 1 by their sign, "
            "without a link function, another threshold or votes of pairs of classes. Pass a model "
            "such as LogisticRegression or Ridge, or a LinearHead with the intercepts you want"
        )


def _probe_rows(model: LinearModel) -> Floats:
    """Return rows (n, n_features), most of them with outputs near zero on many scales."""
    rng, (n_outputs, d) = np.random.default_rng(0), model.coef.shape
    rows = rng.normal(size=(_N_ROWS, d))
    wanted = rng.normal(size=(_N_ROWS, n_outputs)) * 10 ** rng.uniform(-3, 1.5, size=(_N_ROWS, 1))
    missing = wanted - rows @ model.coef.T - model.intercept
    return np.concatenate([rows[:20], rows + np.linalg.lstsq(model.coef, missing.T)[0].T])


def dense(values: Any) -> NDArray[Any]:
    """Return predictions or labels as a dense array."""
    return values.toarray() if issparse(values) else np.asarray(values)

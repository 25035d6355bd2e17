"""Reading of fitted linear models of scikit-learn, alone, in a wrapper, or one for each output."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import is_classifier

Floats = NDArray[np.float64]
_INSIDE = ("best_estimator_", "estimator_", "regressor_")  # of searches and other wrappers
_CERTAIN = 20.0  # logit of a label that was the same in all rows
_N_ROWS = 200  # of a probe


def read_linear(estimator: Any) -> tuple[Floats, Floats, Any, bool]:
    """Return what a LinearHead with the predictions of a fitted model is made of."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may have been fitted to columns with names
            return _read(_inside(estimator))
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"head={estimator!r} has no coef_ with one row for each of its outputs: a head must be "
            "a linear model, alone or in OneVsRestClassifier, MultiOutputClassifier, "
            "MultiOutputRegressor or a search, without a Pipeline; fit it first, or pass "
            "'logistic', 'ridge' or a LinearHead"
        ) from error


def _read(model: Any) -> tuple[Floats, Floats, Any, bool]:
    coef, intercept = np.split(_table(model), [-1], axis=1)
    intercept = intercept.ravel()
    at_zero = _dense(model.predict(np.zeros((1, coef.shape[1]))))
    classes = getattr(model, "classes_", None)
    if not is_classifier(model) or classes is None:  # PLSRegression centres the features
        return coef, np.resize(at_zero, len(coef)), None, False
    if at_zero.ndim == 2:
        return coef, intercept, None, True
    if len(coef) == 1 and len(classes) == 2:
        coef, intercept = np.concatenate([-coef, coef]) / 2, np.append(-intercept, intercept) / 2
    if len(classes) != len(coef):
        raise ValueError(f"there are {len(classes)} classes, but {len(coef)} rows")
    return coef, intercept, classes, False


def _inside(estimator: Any) -> Any:
    found = [getattr(estimator, name) for name in _INSIDE if hasattr(estimator, name)]
    return _inside(found[0]) if found else estimator


def _table(model: Any) -> Floats:
    """Return the coefficients and, in the last column, intercepts of a model or of its parts."""
    if hasattr(model, "coef_"):
        coef = np.atleast_2d(_dense(model.coef_)).astype(np.float64)
        intercept = np.ravel(getattr(model, "intercept_", 0.0))
        return np.column_stack([coef, np.broadcast_to(intercept, len(coef))])
    parts = [_inside(part) for part in model.estimators_]
    fitted = {number: _table(part) for number, part in enumerate(parts) if not hasattr(part, "y_")}
    table = np.zeros((len(parts), max(part.shape[1] for part in fitted.values())))
    table[list(fitted)] = np.concatenate(list(fitted.values()))
    for number, part in enumerate(parts):
        if number not in fitted:  # it predicts the label that it was fitted to
            table[number, -1] = _CERTAIN if np.all(part.y_) else -_CERTAIN
    return table


def check_predictions(estimator: Any, head: Any) -> None:
    """Raise ValueError unless an estimator predicts, up to rounding, as its LinearHead does."""
    rows = _probe_rows(head)
    expected, outputs = head.predict(rows), head.outputs(rows)
    rounding = 1e-6 * (np.abs(rows) @ np.abs(head.coef_.T) + np.abs(head.intercept_))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = _dense(estimator.predict(rows)).reshape(expected.shape)
        except (AttributeError, ValueError):  # it selects features, or has other outputs
            found = np.full(expected.shape, np.nan)
    if head.multi_label_:
        differs = (found != expected) & (np.abs(outputs) > rounding)
    elif head.classes_ is None:
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


def _probe_rows(head: Any) -> Floats:
    """Return rows (n, n_features), most of them with outputs near zero on many scales."""
    rng, (n_outputs, d) = np.random.default_rng(0), head.coef_.shape
    rows = rng.normal(size=(_N_ROWS, d))
    wanted = rng.normal(size=(_N_ROWS, n_outputs)) * 10 ** rng.uniform(-3, 1.5, size=(_N_ROWS, 1))
    missing = wanted - rows @ head.coef_.T - head.intercept_
    return np.concatenate([rows[:20], rows + np.linalg.lstsq(head.coef_, missing.T)[0].T])


def _dense(values: Any) -> NDArray[Any]:
    """Return coefficients or predictions as a dense array."""
    return values.toarray() if issparse(values) else np.asarray(values)

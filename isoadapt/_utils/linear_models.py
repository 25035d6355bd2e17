"""Reading of fitted linear models of scikit-learn by their values, whatever they are wrapped in."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.base import is_classifier
from sklearn.multioutput import MultiOutputClassifier

Floats = NDArray[np.float64]
_FAR = 2.0**100  # length of the rows that show coefficients, beside which intercepts vanish
_CERTAIN = 20.0  # logit of a label that was the same in all rows
_N_ROWS = 200  # of a probe


def read_linear(estimator: Any) -> tuple[Floats, Floats, Any, bool]:
    """Return what a LinearHead with the predictions of a fitted linear model is made of."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # it may have been fitted to columns with names
            d = estimator.n_features_in_
            values = _outputs(estimator, _FAR * np.eye(d + 1, d, -1))
            if not np.isfinite(values).all():
                raise ValueError("its values are not finite everywhere")
            several = _dense(estimator.predict(np.zeros((1, d)))).ndim > 1
    except (AttributeError, ValueError) as error:
        raise ValueError(
            f"head={estimator!r} is not a fitted linear model ({error}): a head must be one, alone "
            "or in OneVsRestClassifier, MultiOutputClassifier, MultiOutputRegressor or a search; "
            "fit it first, or pass 'logistic', 'ridge' or a LinearHead"
        ) from error
    intercept, coef = values[0], (values[1:] - values[0]).T / _FAR
    if not is_classifier(estimator):
        return coef, intercept, None, False
    if several:
        constant = ~coef.any(axis=1) & np.isin(intercept, (0, 1))  # OneVsRestClassifier gives it
        return coef, np.where(constant, _CERTAIN * (2 * intercept - 1), intercept), None, True
    if len(coef) == 1:
        coef, intercept = np.concatenate([-coef, coef]) / 2, np.append(-intercept, intercept) / 2
    return coef, intercept, estimator.classes_, False


def _outputs(model: Any, rows: Floats) -> Floats:
    """Return the decision values of a classifier, or the values of a regressor (n, n_outputs)."""
    model = getattr(model, "best_estimator_", model)
    if isinstance(model, MultiOutputClassifier):
        return np.column_stack([_outputs(each, rows) for each in model.estimators_])
    values = model.decision_function(rows) if is_classifier(model) else model.predict(rows)
    return np.asarray(values, np.float64).reshape(len(rows), -1)


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
    if head.classes_ is None:
        differs = ~np.isclose(found, expected, 1e-4, rounding.max())
    elif head.multi_label_:
        differs = (found != expected) & (np.abs(outputs) > rounding)
    else:
        margins = np.diff(np.sort(outputs, axis=1), axis=1)[:, -1]
        differs = (found != expected) & (margins > rounding.max(axis=1))
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

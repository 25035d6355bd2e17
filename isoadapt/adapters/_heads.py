"""The heads of adapters, and the probes that are fitted to embeddings and then frozen."""

from typing import Any, cast

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.multiclass import check_classification_targets, is_multilabel
from sklearn.utils.validation import has_fit_parameter

from isoadapt._utils.containers import as_indicator, as_values
from isoadapt._utils.threads import one_blas_thread
from isoadapt.adapters._maps import Floats, map_rows
from isoadapt.adapters._ridge_path import ridge_path
from isoadapt.adapters._rows import Index, distinct_rows, fold_numbers
from isoadapt.geometry._spread import dead_dimensions
from isoadapt.heads import LinearHead

PROBES = {"logistic": "classifier", "ridge": "regressor"}  # kinds of the heads that have a name
_N_FOLDS = 5
_FEW = 15_000  # rows that are left out in all; with more rows, not every fold is
# Logarithms to the base 10 of C d or of d/alpha, for rows whose d features have mean variance 1.
_START = 0.5  # where the search starts, and what is taken if a fold lacks a class


def needs_fit(head: Any) -> bool:
    """Whether the parameter `head` of an adapter is a name or an estimator still to be fitted."""
    return head is not None and not isinstance(head, LinearHead | FrozenEstimator)


def read_targets(head: Any, y: Any, numeric: bool) -> tuple[Any, bool]:
    """Return values or labels, which a frozen head must know, and whether they are several."""
    own = None if needs_fit(head) else LinearHead.from_estimator(head)
    y = as_values(y, numeric=numeric, names=own.classes_ if own and own.multi_label_ else None)
    several = numeric or (is_multilabel(y) if own is None else own.multi_label_)
    if not several:
        if np.ndim(y) > 1 and np.shape(y)[1:] != (1,):
            raise ValueError(
                f"y has shape {np.shape(y)}, but head={head!r} gives each row one label: pass one "
                "column, or an indicator matrix of 0 and 1, as MultiLabelBinarizer makes it from "
                "lists of labels, to head='logistic' or to a multi-label head"
            )
        try:
            with np.errstate(invalid="ignore"):  # infinity is refused with the rows
                check_classification_targets(y)
        except ValueError as error:
            raise ValueError(f"{error} Or use head='ridge' instead of head={head!r}.") from error
    elif not numeric:
        y = as_indicator(y, None if own is None else own.classes_)
    if own is not None:
        own._targets(y)
    return y, several


def fit_head(
    kind: Any,
    X: NDArray[Any],
    y: NDArray[Any],
    sample_weight: NDArray[Any] | None = None,
    groups: NDArray[Any] | None = None,
    map_: Any = None,
) -> LinearHead:
    """Fit a linear head to embeddings (n_samples, n_features), or to what `map_` makes of them."""
    _check_targets(kind, y, sample_weight)
    if kind == "logistic" and y.ndim == 2:
        return _fit_labels(X, y, sample_weight, groups, map_)
    if not isinstance(kind, str):
        mapped = X if map_ is None else map_rows(map_, X)
        return _fit_estimator(kind, mapped, y, sample_weight)
    sample = distinct_rows(X, y, groups, sample_weight)
    weights = np.ones(len(sample.X)) if sample.weights is None else sample.weights
    rows, labels = sample.X.astype(np.float64), cast(NDArray[Any], sample.y)
    rows = rows if map_ is None else map_rows(map_, rows)
    mean = np.average(rows, axis=0, weights=weights)
    variances = np.average((rows - mean) ** 2, axis=0, weights=weights)
    dead = dead_dimensions(variances)
    live = ~dead | dead.all()
    scale = np.sqrt(variances[live].mean()) or 1.0
    rows = (rows - mean)[:, live] / scale
    # Of X, because the rounding of map_ can vary.
    folds = fold_numbers(sample.X, labels if kind == "logistic" else None, sample.groups, _N_FOLDS)
    fit = _fit_logistic if kind == "logistic" else _fit_ridge
    # The rows are valid, and for few of them the checks would take longer than the regressions.
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        probe = fit(rows, labels, weights, folds)
    coef = np.zeros((len(probe.coef_), len(mean)))
    coef[:, live] = probe.coef_ / scale
    return LinearHead(coef, probe.intercept_ - coef @ mean, probe.classes_)


def _fit_labels(
    X: NDArray[Any], y: NDArray[Any], weights: Any, groups: NDArray[Any] | None, map_: Any
) -> LinearHead:
    """Fit a multi-label head to an indicator matrix (n, n_labels), label by label."""
    first = X[:1] if map_ is None else map_rows(map_, X[:1])
    coef, intercept = np.zeros((y.shape[1], first.shape[1])), np.zeros(y.shape[1])
    for label, column in enumerate(y.T):
        counts = np.bincount(column, weights, minlength=2)
        intercept[label] = np.log(counts[1] + 0.5) - np.log(counts[0] + 0.5)
        if counts.all():
            probe = fit_head("logistic", X, column, weights, groups, map_)
            coef[label] = probe.coef_[1] - probe.coef_[0]
            intercept[label] = probe.intercept_[1] - probe.intercept_[0]
    return LinearHead(coef, intercept, multi_label=True)


@one_blas_thread()  # L-BFGS calls SciPy's own BLAS beside NumPy's in each of its many steps
def _fit_logistic(X: Floats, y: NDArray[Any], weights: Floats, folds: Index) -> LinearHead:
    """Fit a logistic regression whose C has the smallest log loss on left-out folds."""
    classes, codes = np.unique(y, return_inverse=True)
    counts = np.bincount(folds * len(classes) + codes, minlength=_N_FOLDS * len(classes))
    held_out, d = _left_out(folds), X.shape[1]
    # Each fit starts where the fit of the same fold with the last C ended.
    models = [LogisticRegression(max_iter=1000, warm_start=True) for _ in held_out]
    costs: dict[float, float] = {}

    def cost(power: float) -> float:
        if power not in costs:
            # A log-normal prior of C, a factor of ten wide: few rows hardly tell its values apart.
            costs[power] = (power - _START) ** 2 / 2
            for held, model in zip(held_out, models, strict=True):
                model.set_params(C=10**power / d).fit(X[~held], codes[~held], weights[~held])
                outputs = X[held] @ model.coef_.T + model.intercept_
                if len(classes) == 2:
                    outputs = np.column_stack([np.zeros(len(outputs)), outputs])
                losses = logsumexp(outputs, axis=1) - outputs[np.arange(len(outputs)), codes[held]]
                mean = float((weights[held] * losses).mean())
                costs[power] += mean * held.sum()
        return costs[power]

    best = _START
    if counts.min():
        for step in (1.0, -1.0):
            while cost(best + step) < cost(best):
                best += step
        best = min((best, best - 0.5, best + 0.5), key=cost)
    model = LogisticRegression(C=10**best / d, max_iter=1000, tol=1e-6)
    head = LinearHead.from_estimator(model.fit(X, y, weights))
    # Centring has no effect on probabilities, and makes the rank exact.
    coef, intercept = (each - each.mean(axis=0) for each in (head.coef_, head.intercept_))
    return LinearHead(coef, intercept, classes)


def _fit_ridge(X: Floats, y: NDArray[Any], weights: Floats, folds: Index) -> LinearHead:
    """Fit a ridge regression whose alpha has the smallest squared error on left-out folds."""
    alphas = X.shape[1] * 10 ** np.arange(4.0, -5.0, -0.5)
    targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
    targets = targets / (np.abs(targets).max() or 1.0)  # their squares may underflow
    # In a basis of their row space, fewer rows than features have the same regressions.
    points = X if len(X) >= X.shape[1] else X @ np.linalg.qr(X.T)[0]
    errors = np.zeros(len(alphas))
    for held in _left_out(folds) if folds.max() == _N_FOLDS - 1 else ():
        roots = np.sqrt(weights[~held])[:, None]
        means = [np.average(a[~held], axis=0, weights=weights[~held]) for a in (points, targets)]
        rows, values = roots * (points[~held] - means[0]), roots * (targets[~held] - means[1])
        for place, coef in enumerate(ridge_path(rows.T @ rows, rows.T @ values, alphas)):
            found = means[1] + (points[held] - means[0]) @ coef
            errors[place] += weights[held] @ ((targets[held] - found) ** 2).sum(axis=1)
    alpha = alphas[errors.argmin()] if errors.any() else X.shape[1] * 10**-_START
    return LinearHead.from_estimator(Ridge(alpha).fit(X, y, weights))


def _left_out(folds: Index) -> list[NDArray[np.bool_]]:
    """Masks (n,) of the folds that are left out in turn: fewer of them with many rows."""
    n_left_out = min(max(_FEW // len(folds), 1), _N_FOLDS)
    return [folds == fold for fold in range(n_left_out)]


def _check_targets(kind: Any, y: NDArray[Any], sample_weight: NDArray[Any] | None) -> None:
    """Raise ValueError if a classifier would see one class."""
    classifies = kind == "logistic" if isinstance(kind, str) else is_classifier(kind)
    rows = y if sample_weight is None else y[sample_weight > 0]
    if classifies and len(classes := np.unique(rows, axis=0 if y.ndim > 1 else None)) < 2:
        raise ValueError(
            f"y has only one class, {classes[0]!s}, while head={kind!r} needs 2 or more: pass rows "
            "of every class, of positive weight, a LinearHead that is fitted already, or, with an "
            "adapter that needs no head, head=None"
        )


@one_blas_thread()
def _fit_estimator(
    estimator: Any, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any] | None
) -> LinearHead:
    """Fit a clone of `estimator` to the embeddings, to repeated rows if it takes no weights."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    if sample_weight is not None and not has_fit_parameter(estimator, "sample_weight"):
        counts, weights = sample_weight.astype(np.int64), {}
        if (counts != sample_weight).any():
            raise ValueError(
                f"sample_weight has fractions, but head={estimator!r} does not take it in fit: "
                "pass a head that does, such as 'logistic' or 'ridge', or whole numbers"
            )
        X, y = X.repeat(counts, axis=0), y.repeat(counts, axis=0)
    fitted = clone(estimator).fit(X.astype(np.float64), y, **weights)
    return LinearHead.from_estimator(fitted)

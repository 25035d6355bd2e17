"""The heads of adapters, and the probes that are fitted to embeddings and then frozen.

The parameter ``head`` of an adapter is one of the following.

- A :class:`LinearHead`, for example that of a checkpoint. It is used as it is.
- A fitted linear estimator in :class:`sklearn.frozen.FrozenEstimator`. It is used as it is.
- Any other linear classifier or regressor of scikit-learn, such as ``LogisticRegression(C=0.1)``
  or ``RidgeCV()``. A clone of it is fitted to the embeddings and then frozen, so its own
  parameters set the regularisation, and ``head__C`` can be searched.
- ``"logistic"`` or ``"ridge"``. The embeddings are standardised, ``LogisticRegression(C=1.0)`` or
  ``Ridge(alpha=1.0)`` is fitted to them, and the scaling is folded into the frozen head. The
  penalty therefore does not depend on the scale of the embeddings. To choose another strength,
  pass an estimator. Estimators are fitted to the embeddings without standardisation, and a
  Pipeline with a scaler is not accepted, because its weights are those of scaled embeddings.
- None, where the adapter needs no head.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.validation import has_fit_parameter

from isoadapt.geometry._spread import LARGEST, dead_dimensions
from isoadapt.heads import LinearHead

_FLOOR = 1e-6  # smaller variances, relative to the mean variance, are raised to it


def needs_fit(head: Any) -> bool:
    """Whether the parameter `head` of an adapter is a name or an estimator still to be fitted."""
    return head is not None and not isinstance(head, LinearHead | FrozenEstimator)


def fit_head(
    kind: Any, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any] | None = None
) -> LinearHead:
    """Fit a linear head to embeddings (n_samples, n_features).

    "logistic" (C=1) and "ridge" (alpha=1) are fitted to standardised features, with the scaling
    folded into the head. Standard deviations below 1e-3 of the root mean square one are raised to
    it, which bounds the weights; features without variance get weight zero. A linear estimator is
    cloned and fitted to the embeddings as they are.
    """
    _check_targets(kind, y, sample_weight)
    if not isinstance(kind, str):
        return _fit_estimator(kind, X, y, sample_weight)
    rows = X.astype(np.float64)
    mean = np.average(rows, axis=0, weights=sample_weight)
    variances = np.average((rows - mean) ** 2, axis=0, weights=sample_weight)
    dead = dead_dimensions(variances)
    live = ~dead | dead.all()
    clipped = variances.clip(min=_FLOOR * variances.mean())
    deviations = np.sqrt(np.where(dead, 1.0, clipped))[live]
    model = LogisticRegression(max_iter=1000) if kind == "logistic" else Ridge()
    model.fit((rows - mean)[:, live] / deviations, y, sample_weight=sample_weight)
    probe = LinearHead.from_estimator(model)
    coef = np.zeros((len(probe.coef_), len(mean)))
    coef[:, live] = probe.coef_ / deviations
    return LinearHead(coef, probe.intercept_ - coef @ mean, probe.classes_)


def _check_targets(kind: Any, y: NDArray[Any], sample_weight: NDArray[Any] | None) -> None:
    """Raise ValueError if a classifier would see one class, or "ridge" targets too large."""
    if kind == "ridge":
        largest = np.abs(np.asarray(y, dtype=np.float64)).max()
        if largest > LARGEST:
            raise ValueError(
                f"y has an entry of size {largest:.2g}, whose square may overflow: divide y by its "
                "standard deviation"
            )
        return
    if kind != "logistic" and not is_classifier(kind):
        return
    classes = np.unique(y if sample_weight is None else y[np.asarray(sample_weight) > 0])
    if len(classes) < 2:
        weighted = "" if sample_weight is None else " among the rows of positive weight"
        raise ValueError(
            f"y has only one class, {classes[0]!s}{weighted}, while head={kind!r} needs 2 or more: "
            "pass rows of every class, a LinearHead that is fitted already, or, with an adapter "
            "that needs no head, head=None"
        )


def _fit_estimator(
    estimator: Any, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any] | None
) -> LinearHead:
    """Fit a clone of `estimator` to the embeddings as they are, in float64."""
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    if weights and not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"sample_weight was given, but head={estimator!r} does not take it in fit: pass a head "
            "that does, such as 'logistic' or 'ridge', or fit without sample_weight"
        )
    model = clone(estimator).fit(X.astype(np.float64), y, **weights)
    if not hasattr(model, "coef_"):
        raise ValueError(
            f"head={estimator!r} has no coef_ after fit, so it is not a linear model: pass "
            "'logistic', 'ridge', a LinearHead, or a linear model such as LogisticRegression or "
            "Ridge without a Pipeline or a search around it"
        )
    return LinearHead.from_estimator(model)

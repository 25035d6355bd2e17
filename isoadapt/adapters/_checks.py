"""Checks of rows, labels and weights, and attributes that a failed fit leaves as they were."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight

from isoadapt._utils.messages import warn
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import LARGEST, SMALLEST
from isoadapt.metrics._points import is_missing

_Fit = TypeVar("_Fit", bound=Callable[..., Any])
_BLOCK = 1024
_MAX_MEAN_TO_SPREAD = 1e5


def check_spread(X: NDArray[Any] | Moments, rows: str = "rows") -> None:
    """Raise ValueError if all rows are equal, or if their squares overflow or underflow."""
    if isinstance(X, Moments):
        overflows = not math.isfinite(float(X.scatter.trace())) or not X.scatter.isfinite().all()
        n_samples, constant = X.count, float(X.scatter.diagonal().max()) < SMALLEST**2
    else:
        starts = range(0, len(X), _BLOCK)
        largest = max(float(X.max()), -float(X.min()))
        n_samples, overflows = len(X), largest > LARGEST
        constant = all((X[start : start + _BLOCK] == X[0]).all() for start in starts)
        constant = constant or largest < SMALLEST
    if overflows:
        raise ValueError(
            "X is too large: sums of squares of its entries overflow float64; divide X by its "
            "largest absolute entry"
        )
    if constant:
        raise ValueError(
            f"X is constant: all {n_samples:.0f} {rows} are equal, or differ by less than about "
            f"{SMALLEST:g}, but an adapter needs rows that differ; check that the texts differ and "
            "that the encoder is the fine-tuned one, or divide tiny X by its largest absolute entry"
        )


def warn_of_large_mean(moments: Moments) -> None:
    """Warn if the mean is so large that float32 loses the differences between the rows."""
    spread = math.sqrt(moments.covariance().trace())
    size = float(moments.mean.norm())
    if size > _MAX_MEAN_TO_SPREAD * spread:
        warn(
            f"the mean of X is {size / spread:.1g} times as large as its spread, so training in "
            "float32 loses precision: subtract the mean from X first, or use an adapter that "
            "computes in float64, such as LogitPreservingWhitening"
        )


def check_frequencies(
    sample_weight: ArrayLike | None, X: NDArray[Any], before: float = 0.0
) -> NDArray[Any] | None:
    """Validate weights in float64; with `before`, of earlier rows, they must sum to more than 1."""
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if before + weights.sum() <= 1:
        raise ValueError(
            f"sample_weight sums to {weights.sum():g}, but frequency weights must sum to more than "
            "1: multiply them by the number of rows, or pass counts"
        )
    return weights


def check_labels(y: NDArray[Any], head: str, way_out: str) -> None:
    """Raise ValueError if y has no labels, or lacks some; `head` names the classifier."""
    of_objects = enumerate(y) if y.dtype.kind == "O" else ()
    missing = [row for row, label in of_objects if is_missing(label)]
    if missing:
        raise ValueError(
            f"y lacks the label of {len(missing)} row(s), first of row {missing[0]} (None or "
            "NaN): leave these rows out, or give them a label"
        )
    try:
        check_classification_targets(y)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"y must contain labels, because {head} is a classifier ({error}): {way_out}"
        ) from error


def restore_on_failure(fit: _Fit) -> _Fit:
    """Decorate a method so that it restores the attributes of the estimator if it raises."""

    @wraps(fit)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(_Fit, guarded)

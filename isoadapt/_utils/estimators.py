"""What estimators share: labels of rows, and attributes that a failed fit leaves as they were."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def is_missing(label: Any) -> bool:
    """Whether a label is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # the truth value of pandas.NA is not defined
        return True


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

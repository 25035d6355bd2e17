"""Fits that fail, or are interrupted, leave their estimator as it was."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

_Fit = TypeVar("_Fit", bound=Callable[..., Any])


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

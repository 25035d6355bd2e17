"""Fits that fail, or are interrupted, leave their estimator as it was."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

_Fit = TypeVar("_Fit", bound=Callable[..., Any])


def restore_on_failure(fit: _Fit) -> _Fit:
    """Decorate a method so that it restores the attributes of the estimator if it raises.

    This holds for every exception, including KeyboardInterrupt. The latter can also prevent
    ``torch.no_grad`` from enabling gradients again, so that this is done too.
    """

    @wraps(fit)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, gradients = dict(vars(self)), torch.is_grad_enabled()
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            torch.set_grad_enabled(gradients)
            vars(self).clear()
            vars(self).update(before)
            raise

    return cast(_Fit, guarded)

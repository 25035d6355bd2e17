"""Warnings that point to the line of the caller's code."""

import sys
import warnings

_AROUND = ("isoadapt", "sklearn", "joblib", "contextlib")  # packages whose lines are skipped


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Give a warning for the line that called this package, or scikit-learn or joblib around it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _AROUND:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)

"""Warnings that point to the line of the caller's code."""

import contextlib
import os
import sys
import warnings
from pathlib import Path

import joblib
import sklearn

_PACKAGES = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(__file__).parents[1], *(Path(m.__file__).parent for m in (sklearn, joblib)))
)


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Give a warning for the line that called this package, or scikit-learn or joblib around it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_inside(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _is_inside(file: str) -> bool:
    return file.startswith(_PACKAGES) or file == contextlib.__file__

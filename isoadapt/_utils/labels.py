"""Labels of rows."""

from typing import Any


def is_missing(label: Any) -> bool:
    """Whether a label is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # the truth value of pandas.NA is not defined
        return True

"""Labels of rows."""

from typing import Any

import numpy as np


def is_missing(label: Any) -> bool:
    """Whether a label is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    same = label == label
    return label is None or not (isinstance(same, bool | np.bool_) and same)

"""What counts as no variance: one relative threshold for every adapter, head and report."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

DEAD = 1e-12  # share of the total variance up to which a direction counts as constant


@overload
def dead_dimensions(variances: Tensor) -> Tensor: ...
@overload
def dead_dimensions(variances: NDArray[np.float64]) -> NDArray[np.bool_]: ...
def dead_dimensions(variances: Any) -> Any:
    """Tell which dimensions are constant but for rounding.

    Parameters
    ----------
    variances : Tensor or ndarray of shape (d,)
        Variance along each dimension, or along each principal direction.

    Returns
    -------
    Tensor or ndarray of shape (d,), bool
        True where the variance is at most `DEAD` times the sum of all variances, that is where
        the standard deviation is at most 1e-6 of the root of the total variance; everywhere if
        there is no variance at all.
    """
    return variances <= DEAD * variances.sum()

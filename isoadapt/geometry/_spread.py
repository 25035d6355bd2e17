"""Limits of entries and variances, the same everywhere."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SMALLEST = 1e-150  # squares of smaller numbers may underflow float64
LARGEST = 1e152  # sums of squares of larger numbers may overflow float64
DEAD = 1e-12  # share of the total variance at or below which a direction counts as constant


@overload
def dead_dimensions(variances: Tensor) -> Tensor: ...
@overload
def dead_dimensions(variances: NDArray[np.float64]) -> NDArray[np.bool_]: ...
def dead_dimensions(variances: Any) -> Any:
    """Mask (d,) of the dimensions, or principal directions, that are constant up to rounding.

    Their variance is at most `DEAD` times the sum of all `variances` (d,): their standard deviation
    is at most 1e-6 of the root of that sum. If all variances are zero, all dimensions are dead.
    """
    return variances <= DEAD * variances.sum()

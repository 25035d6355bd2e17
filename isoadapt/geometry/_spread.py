"""Dimensions without variance."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

# Largest variance of a dead dimension, as a share of the mean variance over all dimensions: its
# standard deviation is at most 1e-6 of the root mean square of all of them.
DEAD = 1e-12

Array = TypeVar("Array", Tensor, NDArray[np.floating])


def dead_dimensions(variances: Array) -> Array:
    """Find the dimensions that are constant, or nearly so beside the others.

    Parameters
    ----------
    variances : Tensor or ndarray of shape (n_features,)
        Variance of each dimension, in any unit.

    Returns
    -------
    Tensor or ndarray of bool of shape (n_features,)
        True where the variance is at most :data:`DEAD` times the mean variance over all
        dimensions; everywhere if there is no variance at all.
    """
    return variances <= DEAD * variances.mean()

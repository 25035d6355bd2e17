"""Checks of the points that the penalties are computed from."""

from typing import Any

from torch import Tensor


def check_points(Z: Any) -> None:
    """Raise ValueError unless Z is a tensor of shape (..., n, d)."""
    if not isinstance(Z, Tensor) or Z.ndim < 2:
        given = f"a tensor of shape {tuple(Z.shape)}" if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(
            f"Z is {given}; it must be a tensor of shape (..., n, d), with one row for each of n "
            "points"
        )

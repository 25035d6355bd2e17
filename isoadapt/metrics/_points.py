"""Matrices as they come in, checked, and figures kept inside their range."""

from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt import geometry
from isoadapt._utils.devices import as_array
from isoadapt.geometry import Moments
from isoadapt.metrics._chunks import Chunked, gather, in_chunks, is_memmap, refuse_chunks


def as_points(X: ArrayLike, min_samples: int = 2, spread: bool = True) -> Tensor:
    """Check a matrix and return it as float64.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Array or tensor of numbers.
    min_samples : int, default=2
        Rows that are needed.
    spread : bool, default=True
        Whether the rows must differ.

    Returns
    -------
    Tensor of shape (n_samples, n_features), float64
        The same numbers, on the CPU.

    Raises
    ------
    TypeError
        If X comes in chunks.
    ValueError
        If X is too small or not finite, or constant where it must not be.
    """
    refuse_chunks(X, "this figure needs all rows at once")
    array = check_array(
        as_array(X),
        dtype=np.float64,
        input_name="X",
        ensure_min_samples=min_samples,
        ensure_min_features=2,
    )
    points = as_tensor(array)
    if spread and not varies(points):
        raise ValueError(_constant(len(points)))
    return points


def as_spread(X: Chunked, min_samples: int = 2) -> Tensor | Moments:
    """Check a matrix, or read chunks, of which a figure needs no more than the moments.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features), iterable of such, dask array or Moments
        Embeddings.
    min_samples : int, default=2
        Rows that are needed.

    Returns
    -------
    Tensor of shape (n_samples, n_features), float64, or Moments
        The same numbers where they came as one matrix in memory; else their moments.

    Raises
    ------
    ValueError
        If X is too small, not finite or constant.
    """
    if not (in_chunks(X) or is_memmap(X)):
        return as_points(cast(ArrayLike, X), min_samples)
    moments = gather(X, min_samples=min_samples)
    variance, count = float(moments.scatter.trace()), moments.count
    whole = variance + count * float(moments.mean.square().sum())
    if variance <= (8 * np.finfo(np.float64).eps) ** 2 * whole:
        raise ValueError(_constant(count))
    return moments


def _constant(count: float) -> str:
    return (
        f"X is constant: all {count:.0f} rows are equal, so isotropy is not defined; check that "
        "the texts differ"
    )


def as_tensor(array: NDArray[np.float64]) -> Tensor:
    """Wrap an array of any layout; one that is read-only is copied.

    Parameters
    ----------
    array : ndarray
        Numbers.

    Returns
    -------
    Tensor
        Over the same memory where that may be written to.
    """
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def varies(points: Tensor) -> bool:
    """Say whether two rows differ.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        Rows.

    Returns
    -------
    bool
        False for one row.
    """
    return len(points) > 1 and bool((points != points[0]).any())


def clamped_score(score: Tensor) -> float:
    """Clamp away what rounding puts outside [0, 1].

    Parameters
    ----------
    score : Tensor of shape ()
        An IsoScore.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    ValueError
        If the score is NaN.
    """
    if score.isnan():
        raise ValueError(
            "X is constant but for rounding, so isotropy is not defined; check that the texts "
            "differ, or subtract the mean in a wider type first"
        )
    return float(score.clamp(0, 1))


def mean_cosine(points: Tensor) -> float:
    """Mean cosine of all pairs of different rows, whatever their scale.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        Rows, n at least 2.

    Returns
    -------
    float
        In [-1, 1].
    """
    largest = points.abs().max()  # a common scale, lest tiny rows count as zero
    scaled = points / largest if largest > 0 else points
    return float(geometry.mean_cosine(scaled).clamp(-1, 1))

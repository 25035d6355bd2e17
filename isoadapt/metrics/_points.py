"""Input checks of the metrics, and figures that several of them share."""

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt._utils.devices import as_array
from isoadapt.geometry import Moments, _neighbours, _spread
from isoadapt.geometry._chunks import (
    Chunked,
    gather,
    in_chunks,
    is_memmap,
    refuse_chunks,
)
from isoadapt.geometry._spread import LARGEST, SMALLEST

IF_FEW = (
    "the plain IsoScore and the effective rank can be far too low; use the bias-corrected score, "
    "or more rows"
)


def as_points(X: ArrayLike, min_samples: int = 2, by_variance: bool = True) -> Tensor:
    """Check a matrix and return it as a float64 tensor (n_samples, n_features) on the CPU.

    Chunks raise TypeError. For figures that are computed from variances, ValueError is raised if
    all rows are equal, or if squares of entries overflow or underflow.
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
    if not by_variance:
        return points
    check_scale(max(abs(float(extreme)) for extreme in points.aminmax()))
    if not varies(points):
        raise ValueError(constant_message(len(points)))
    return points


def as_points_or_moments(
    X: Chunked, min_samples: int = 2, distinct: bool = False
) -> Tensor | Moments:
    """Check embeddings, and return a matrix as a tensor and chunks as their moments.

    With `distinct`, equal rows of chunks count once, except those given by their moments.
    """
    if not (in_chunks(X) or is_memmap(X)):
        return as_points(cast(ArrayLike, X), min_samples)
    moments = gather(X, min_samples=min_samples, distinct=distinct)
    variance, count = float(moments.scatter.trace()), moments.count
    check_scale(max(math.sqrt(variance / count), float(moments.mean.abs().max())))
    if is_constant(moments):
        raise ValueError(constant_message(count))
    return moments


def is_constant(moments: Moments) -> bool:
    """Whether all rows are equal up to rounding."""
    scatter, mean = moments.scatter.trace(), moments.mean
    second_moment = scatter + moments.count * mean.square().sum()
    return bool(scatter <= (8 * torch.finfo(mean.dtype).eps) ** 2 * second_moment)


def check_scale(largest: float) -> None:
    """Raise ValueError if squares of numbers as large as the largest entry do not fit."""
    if largest and not SMALLEST < largest < LARGEST:
        raise ValueError(
            f"the largest entries of X are about {largest:.3g}, but their squares must fit into "
            f"float64, so they must lie between {SMALLEST:g} and {LARGEST:g}: divide X by its "
            "largest absolute entry"
        )


def constant_message(count: float) -> str:
    """Error message for `count` equal rows."""
    return (
        f"X is constant: all {count:.0f} rows are equal, so isotropy is not defined; check that "
        "the texts differ"
    )


def as_tensor(array: NDArray[np.float64]) -> Tensor:
    """Wrap an array of any layout as a tensor; a read-only array is copied."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def varies(points: Tensor) -> bool:
    """Whether at least two rows of `points` (n, d) differ."""
    return len(points) > 1 and bool((points != points[0]).any())


def clamped_score(score: Tensor) -> float:
    """IsoScore clamped to [0, 1], which rounding can exceed; NaN raises ValueError."""
    if score.isnan():
        raise ValueError(
            "X is constant up to rounding, so isotropy is not defined; check that the texts "
            "differ, or subtract the mean in a wider dtype first"
        )
    return float(score.clamp(0, 1))


def spectral_figures(raw: Tensor, centred: Tensor, corrected: float, d: int) -> dict[str, Any]:
    """Metrics of `IsotropyReport` that depend only on the spectra, and the corrected IsoScore.

    `raw` and `centred` (r,) are the squared singular values, descending, without and with centring.
    ValueError if there is no variance.
    """
    square = (centred / centred.sum()).square().sum()
    ev1, ev2, ev3 = (float(_spread.cumulative_explained_variance(centred, k)) for k in (1, 2, 3))
    return {
        "isoscore": clamped_score((1 / square - 1) / (d - 1)),
        "isoscore_corrected": corrected,
        "ev1": ev1,
        "ev2": ev2,
        "ev3": ev3,
        "anisotropy1": float(_spread.anisotropy(raw, 1)),
    }


def two_nn_or_nan(points: Tensor, tolerance: float = 0.0) -> float:
    """TwoNN dimension of points (n, d), NaN where it is not defined."""
    try:
        return float(_neighbours.two_nn(points, tolerance=tolerance))
    except ValueError:
        return math.nan


def is_missing(label: Any) -> bool:
    """Whether a label is None, or a NaN, NaT or pandas.NA, none of which is equal to itself."""
    try:
        return label is None or bool(label != label)
    except (TypeError, ValueError):  # the truth value of pandas.NA is not defined
        return True

"""Rows of embeddings: checks, reading in blocks, what counts as independent, shared figures."""

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt._utils.containers import as_matrix, as_values
from isoadapt._utils.messages import warn
from isoadapt.geometry import Moments, _isoscore, _neighbours, _spread
from isoadapt.geometry._chunks import (
    FLOATS,
    Chunked,
    RowReader,
    first_of_equal,
    gather,
    in_chunks,
    is_dask,
    is_memmap,
    refuse_chunks,
    row_hashes,
)
from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import LARGEST, SMALLEST

IF_FEW = (
    "the plain IsoScore and the effective rank can be far too low; use the bias-corrected score, "
    "or more rows"
)
_SHARE, _UNITS = 0.05, 10  # one unit with more than 5 %, or ten times its part, dominates


def as_points(X: ArrayLike, min_samples: int = 2, by_variance: bool = True) -> Tensor:
    """Check a matrix, and its variance if `by_variance`; return it in float64 on the CPU."""
    refuse_chunks(X, "this figure needs all rows at once")
    array = check_array(
        as_matrix(X),
        dtype=np.float64,
        input_name="X",
        ensure_min_samples=min_samples,
        ensure_min_features=2,
    )
    points = as_tensor(array)
    if not by_variance:
        return points
    check_scale(max(abs(float(extreme)) for extreme in points.aminmax()))
    mean = points.mean(0)
    if _is_constant((points - mean).norm(), mean, len(points)):
        raise ValueError(constant_message(len(points)))
    return points


def as_points_or_moments(
    X: Chunked, min_samples: int = 2, distinct: bool = False
) -> Tensor | Moments:
    """Check embeddings; return a matrix, or the moments of chunks or of their `distinct` rows."""
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
    return _is_constant(moments.scatter.trace().sqrt(), moments.mean, moments.count)


def _is_constant(deviation: Tensor, mean: Tensor, count: float) -> bool:
    return bool(_spread.is_rounding(deviation, count**0.5 * mean.norm()))


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
        f"X is constant: all {count:.0f} rows are equal up to rounding, so isotropy is not "
        "defined; check that the texts differ, or subtract the mean in a wider dtype first"
    )


def as_tensor(array: NDArray[np.float64]) -> Tensor:
    """Wrap an array of any layout as a tensor; a read-only array is copied."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def check_k(k: int, most: int, of: str) -> None:
    """Raise ValueError unless k is an integer from 1 to `most`, the number `of` something."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise ValueError(f"k={k!r} must be an integer from 1 to {most}, the number of {of}")


def clamped_score(score: Tensor) -> float:
    """IsoScore clamped to [0, 1], which rounding can exceed."""
    return float(score.clamp(0, 1))


def spectral_figures(raw: Tensor, centred: Tensor, corrected: float, d: int) -> dict[str, Any]:
    """Metrics of `IsotropyReport` from squared singular values (r,), without and with centring."""
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


class Groups(NamedTuple):
    """Groups of dependent rows: their names, and the number (n,) of the name of each row's."""

    names: NDArray[Any]
    codes: NDArray[np.int64]


class Reading(NamedTuple):
    """What is known of rows (n, d) after reading them; their units are rows or, if given, groups.

    For n < d, `rows` and `moments` are in coordinates along the n principal axes.
    """

    source: RowReader
    rows: RowReader  # for n < d in memory
    moments: Moments
    mean: Tensor  # (d,)
    variance: Tensor  # (d,)
    groups: Groups | None
    kept: NDArray[np.bool_]  # mask (n,) of the rows of units that equal no earlier one
    n_units: int  # that equal no earlier one


def read_rows(X: Any, groups: ArrayLike | None = None) -> Reading:
    """Check and read a matrix, memory map or dask array; warn if a row or group dominates."""
    if not (is_dask(X) or is_memmap(X)):
        refuse_chunks(X, "this figure needs all rows at once")
        least = {"ensure_min_samples": 2, "ensure_min_features": 2}
        X = check_array(as_matrix(X), dtype=FLOATS, input_name="X", **least)
    found = read(RowReader(X), groups)
    if is_constant(found.moments):
        raise ValueError(constant_message(found.moments.count))
    if groups is not None and found.n_units < 4:
        raise ValueError(
            f"groups has {found.n_units} different group(s), but rows that depend on each other "
            "need at least 4: pass more groups. For one report for each class, pass the classes to "
            "isotropy_report as labels="
        )
    warn_of_dominance(squared_deviations(found), found.groups)
    return found


def read(source: RowReader, groups: ArrayLike | None = None) -> Reading:
    """Read all rows."""
    n, d, rows = len(source), source.X.shape[1], source
    named = None if groups is None else Groups(*codes_of(groups, n, "groups"))
    hashes = np.concatenate([row_hashes(block) for block in source.blocks()])
    if named is not None:
        of_rows, hashes = hashes, np.zeros(len(named.names), np.uint64)
        np.add.at(hashes, named.codes, of_rows)
    first = first_of_equal(hashes)
    kept = first if named is None else first[named.codes]
    if n < d:
        points = torch.cat([*map(in_float64, source.blocks())])
        rows = RowReader((points @ _spread.principal_axes(points)).numpy())
    moments, largest = Moments(), 0.0
    for block in rows.blocks():
        largest = max(largest, float(block.max()), -float(block.min()))
        moments.update(block)
    check_scale(largest)
    mean, variance = moments.mean, moments.scatter.diagonal() / (n - 1)
    if n < d:
        mean, variance = points.mean(0), points.var(0)
    return Reading(source, rows, moments, mean, variance, named, kept, int(first.sum()))


def different_rows(points: Tensor) -> Tensor:
    """Rows (n, d) that equal no earlier one, at least 4; a warning names one that dominates."""
    first = first_of_equal(row_hashes(points))
    if first.sum() < 4:
        raise ValueError(f"X has {first.sum()} different row(s), while at least 4 are required")
    squared = (points - points.mean(0)).square().sum(1).numpy()
    warn_of_dominance(np.where(first, squared, 0))
    return points if first.all() else points[torch.from_numpy(first)]


def in_float64(block: NDArray[Any]) -> Tensor:
    """Copy a block of rows to a tensor in float64."""
    return torch.from_numpy(block.astype(np.float64))


def codes_of(
    values: ArrayLike, n: int, name: str, rows: str = "X"
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Different values of a parameter that has one for each of n rows, and each row's number."""
    labels = as_values(values, name)
    labels = labels[:, 0] if labels.shape == (n, 1) else labels
    if labels.shape != (n,):
        raise ValueError(
            f"{name} has shape {labels.shape}, {rows} has {n} rows: one value for each row is "
            "needed"
        )
    return np.unique(labels, return_inverse=True)


def corrected_isoscore(found: Reading) -> float:
    """Bias-corrected IsoScore of the different rows; NaN for fewer than 4 of them, or 4 groups."""
    kept, moments, d = np.flatnonzero(found.kept), found.moments, len(found.mean)
    if found.n_units < 4:
        return math.nan
    if found.groups is None:
        copied = len(kept) < len(found.kept)
        return corrected_score(gather(found.rows.take(kept).blocks()) if copied else moments, d)
    order = kept[np.argsort(found.groups.codes[kept], kind="stable")]
    sums = GroupSums(moments.mean, float((moments.scatter.trace() / moments.count).sqrt()))

    def read_part(start: int, stop: int) -> NDArray[Any]:
        return np.concatenate([*found.rows.take(order[start:stop]).blocks()])

    sums.update(read_part, np.unique(found.groups.codes[kept], return_counts=True)[1])
    return sums.score(d)


def corrected_score(moments: Moments, d: int) -> float:
    """Bias-corrected IsoScore from the moments of at least 4 independent rows."""
    if moments.fourth is None:
        raise ValueError(
            "bias_corrected=True needs the fourth moment of the rows, but X is a Moments object "
            "without it, saved by an earlier version or made by Moments.mapped; pass "
            "Moments().update(rows) for the rows themselves, or use bias_corrected=False"
        )
    square = (moments.scatter / moments.scatter.trace()).square().sum()
    return clamped_score(_isoscore.corrected_score(square, moments.fourth, moments.count, d))


def main_figures(X: ArrayLike) -> dict[str, Any]:
    """`spectral_figures` of a matrix, at a fraction of the cost of `isotropy_report`."""
    found = read_rows(X)
    warn_of_few_units(found)
    raw, centred = map(_spread.eigenvalues, (found.moments.second_moment(), found.moments.scatter))
    return spectral_figures(raw, centred, corrected_isoscore(found), len(found.mean))


def squared_deviations(found: Reading) -> NDArray[np.float64]:
    """Squared distance (n,) of each row from the mean; 0 for the rows that are not kept."""
    squared, start = np.empty(len(found.rows)), 0  # small arrays between blocks fragment memory
    for block in found.rows.blocks():
        deviations = in_float64(block) - found.moments.mean
        squared[start : start + len(block)] = deviations.square_().sum(1).numpy()
        start += len(block)
    squared[~found.kept] = 0
    return squared


def warn_of_few_units(found: Reading) -> None:
    """Warn if there are fewer than three different rows, or groups, for each dimension."""
    n, least = len(found.kept), 3 * len(found.mean)
    units = f"n_samples={n}" + f" ({found.n_units} different)" * (found.n_units < n)
    if found.groups is not None:
        units = f"the number of different groups, {found.n_units},"
    if found.n_units < least:
        warn(f"{units} is less than {least} = 3 × n_features: {IF_FEW}")


def warn_of_dominance(squared: NDArray[np.float64], groups: Groups | None = None) -> None:
    """Warn if one row or group holds much of all squared deviations from the mean, (n,)."""
    shares: dict[str, NDArray[Any]] = {f"row {int(squared.argmax())}": squared}
    if groups is not None:
        share = np.bincount(groups.codes, squared)
        shares[f"group {str(groups.names[share.argmax()])!r}"] = share
    for unit, share in shares.items():
        most = share.max() / share.sum()
        if most > max(_SHARE, _UNITS / np.count_nonzero(share)):
            warn(
                f"{unit} holds {most:.1%} of the squared deviations from the mean: it decides the "
                "plain IsoScore and EV1, and the corrected one hardly shows it; check it, and "
                "leave it out or divide each row by its norm"
            )
            return

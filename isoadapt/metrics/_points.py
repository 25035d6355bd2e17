"""Rows of embeddings: checks, reading in blocks, what counts as independent, shared figures."""

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt._utils.containers import as_matrix, as_values
from isoadapt._utils.copies import are_copies, copy_hashes, first_of_equal
from isoadapt._utils.messages import warn
from isoadapt._utils.threads import few_rows_in_one_thread
from isoadapt.geometry import Moments, _isoscore, _neighbours, _spread
from isoadapt.geometry._chunks import (
    FLOATS,
    Chunked,
    RowReader,
    gather,
    in_chunks,
    is_dask,
    is_memmap,
    refuse_chunks,
)
from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import LARGEST, SMALLEST

FEWEST = 50  # different rows for a repair that suits other rows, and for a verdict
IF_FEW = "plain IsoScore and effective rank are too low; use the bias-corrected score or more rows"
_SHARE, _UNITS = 0.05, 10  # one unit with more than 5 %, or ten times its part, dominates


def as_points(X: ArrayLike, name: str = "X", min_samples: int = 2, min_features: int = 2) -> Tensor:
    """Check a matrix, and return it in float64 on the CPU."""
    refuse_chunks(X, "this figure needs all rows at once")
    least = {"ensure_min_samples": min_samples, "ensure_min_features": min_features}
    array = check_array(as_matrix(X, name), dtype=np.float64, input_name=name, **least)
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


@few_rows_in_one_thread
def moments_of(X: Chunked, rotated: bool = True) -> tuple[Moments, int]:
    """Check embeddings; return moments and n_features; few rows are `rotated` into n columns."""
    if in_chunks(X) or is_memmap(X):
        moments = gather(X)
        n_features = len(moments)
    else:
        points = as_points(cast(ArrayLike, X))
        n, n_features = points.shape
        moments = Moments().update(_rotated(points) if rotated and 2 * n < n_features else points)
    check_variance(moments)
    return moments, n_features


def _rotated(points: Tensor) -> Tensor:
    """Coordinates (n, n) of points (n, d), n < d, along axes that span their rows."""
    return torch.linalg.qr(points.T, mode="r").R.T


def is_constant(moments: Moments) -> bool:
    """Whether all rows are equal up to rounding."""
    deviation, size = moments.scatter.trace().sqrt(), moments.count**0.5 * moments.mean.norm()
    return bool(_spread.is_rounding(deviation, size))


def check_variance(moments: Moments) -> None:
    """Raise ValueError if all rows are equal, or if their squares do not fit into float64."""
    deviation = (moments.scatter.trace() / moments.count).sqrt()
    largest = float(torch.maximum(deviation, moments.mean.abs().max()))
    if largest and not SMALLEST < largest < LARGEST:
        raise ValueError(
            f"the largest entries of X must lie between {SMALLEST:g} and {LARGEST:g}, so that "
            "their squares fit into float64: divide X by its largest absolute entry"
        )
    if is_constant(moments):
        raise ValueError(
            f"X is constant: all {moments.count:.0f} rows are equal up to rounding, so isotropy is "
            "not defined; check that the texts differ, or subtract the mean in a wider dtype first"
        )


def check_k(k: int, most: int, of: str) -> None:
    """Raise ValueError unless k is an integer from 1 to `most`, the number `of` something."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise ValueError(f"k={k!r} must be an integer from 1 to {most}, the number of {of}")


def score_of(shares: Tensor, d: int) -> float:
    """IsoScore of a covariance, or of variances, divided by their sum; d is n_features."""
    return float(((1 / shares.square().sum() - 1) / (d - 1)).clamp(0, 1))


def spectral_figures(raw: Tensor, centred: Tensor, corrected: float, d: int) -> dict[str, Any]:
    """Metrics of `IsotropyReport` from squared singular values (r,), without and with centring."""
    ev1, ev2, ev3 = (float(_spread.cumulative_explained_variance(centred, k)) for k in (1, 2, 3))
    return {
        "isoscore": score_of(centred / centred.sum(), d),
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
    """What is known of rows (n, d) after reading; their units are rows or, if given, groups."""

    source: RowReader
    rows: RowReader  # few rows are in memory, in n coordinates
    moments: Moments  # of `rows`
    n_features: int
    groups: Groups | None
    kept: NDArray[np.bool_]  # mask (n,) of the rows of units that are not copies
    n_units: int  # that are not copies
    n_different: int  # units that equal no earlier one


@few_rows_in_one_thread
def read_rows(X: Any, groups: ArrayLike | None = None, least: int = 2) -> Reading:
    """Check and read a matrix, memory map or dask array; warn if a row or group dominates."""
    if not (is_dask(X) or is_memmap(X)):
        refuse_chunks(X, "this figure needs all rows at once")
        size = {"ensure_min_samples": least, "ensure_min_features": 2}
        X = check_array(as_matrix(X), dtype=FLOATS, input_name="X", **size)
    found = read(RowReader(X), groups)
    check_variance(found.moments)
    if groups is not None and found.n_units < 4:
        raise ValueError(
            f"groups has {found.n_units} different group(s), but rows that depend on each other "
            "need at least 4: pass more groups. For one report for each class, pass the classes to "
            "isotropy_report as labels="
        )
    warn_of_dominance(found)
    return found


def read(source: RowReader, groups: ArrayLike | None = None) -> Reading:
    """Read all rows."""
    n, d, rows = len(source), source.X.shape[1], source
    if 2 * n < d:  # rotating more rows takes longer than it saves
        points = torch.cat([*map(in_float64, source.blocks())])
        rows = RowReader(_rotated(points).numpy())
    moments = Moments()
    for block in rows.blocks():
        moments.update(block)
    named = None if groups is None else Groups(*codes_of(groups, n, "groups"))
    hashes = np.concatenate([copy_hashes(block, moments.mean.numpy()) for block in rows.blocks()])
    if named is not None:
        of_rows, hashes = hashes, np.zeros(len(named.names), np.uint64)
        np.add.at(hashes, named.codes, of_rows)
    first = first_of_equal(hashes)
    n_different = int(first.sum())
    first |= not are_copies(n_different, len(first))
    kept = first if named is None else first[named.codes]
    return Reading(source, rows, moments, d, named, kept, int(first.sum()), n_different)


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
    """Bias-corrected IsoScore of rows that are not copies; NaN for fewer than 4, or groups."""
    kept, moments, d = np.flatnonzero(found.kept), found.moments, found.n_features
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
            "bias_corrected=True needs the fourth moment of the rows, which X, a Moments object "
            "made by Moments.mapped, lacks: pass Moments().update(rows) for the mapped rows"
        )
    square = (moments.scatter / moments.scatter.trace()).square().sum()
    return float(_isoscore.corrected_score(square, moments.fourth, moments.count, d))


def main_figures(X: ArrayLike) -> dict[str, Any]:
    """`spectral_figures` of a matrix, at a fraction of the cost of `isotropy_report`."""
    found = read_rows(X)
    warn_of_few_units(found)
    raw, centred = map(_spread.eigenvalues, (found.moments.second_moment(), found.moments.scatter))
    return spectral_figures(raw, centred, corrected_isoscore(found), found.n_features)


def warn_of_few_units(found: Reading) -> None:
    """Warn if there are fewer than three different rows, or groups, for each dimension."""
    n, different, least = len(found.kept), found.n_different, 3 * found.n_features
    units = f"n_samples={n}" + f" ({different} different)" * (different < n)
    if found.groups is not None:
        units = f"the number of different groups, {different},"
    if different < least:
        advice = IF_FEW
        if found.n_units > different:
            advice = "equal ones count as draws by chance; if they are copies, pass groups= of them"
        warn(f"{units} is less than {least} = 3 × n_features: {advice}")


def warn_of_few_rows(n: int) -> None:
    """Warn if there are too few rows to fit an adapter to."""
    if n < FEWEST:
        least = f"fit it to {FEWEST} or more, like those that it will be used for"
        warn(f"an adapter that is fitted to {n} rows may harm others: {least}")


def warn_of_dominance(found: Reading) -> None:
    """Warn if one kept row, or group, holds much of all squared deviations from the mean."""
    squared, start = np.empty(len(found.rows)), 0  # small arrays between blocks fragment memory
    for block in found.rows.blocks():
        deviations = in_float64(block) - found.moments.mean
        squared[start : start + len(block)] = deviations.square_().sum(1).numpy()
        start += len(block)
    squared[~found.kept] = 0
    shares: dict[str, NDArray[Any]] = {f"row {int(squared.argmax())}": squared}
    if found.groups is not None:
        share = np.bincount(found.groups.codes, squared)
        shares[f"group {str(found.groups.names[share.argmax()])!r}"] = share
    for unit, share in shares.items():
        most = share.max() / share.sum()
        if most > max(_SHARE, _UNITS / np.count_nonzero(share)):
            warn(
                f"{unit} holds {most:.1%} of the squared deviations from the mean: it decides the "
                "plain IsoScore and EV1, and the corrected one hardly shows it; check it, and "
                "leave it out or divide each row by its norm"
            )
            return

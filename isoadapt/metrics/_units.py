"""Rows of embeddings read in blocks, and what counts as independent: different rows, or groups."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_array
from torch import Tensor

from isoadapt._utils.devices import as_array
from isoadapt._utils.messages import warn
from isoadapt.geometry import Moments, _isoscore, _spread
from isoadapt.geometry._chunks import (
    FLOATS,
    Rows,
    first_of_equal,
    is_dask,
    is_memmap,
    refuse_chunks,
    row_hashes,
)
from isoadapt.geometry._groups import GroupSums
from isoadapt.metrics._points import (
    IF_FEW,
    check_scale,
    clamped_score,
    constant_message,
    is_missing,
    spectral_figures,
)

_SHARE, _UNITS = 0.05, 10  # one unit with more than 5 %, or ten times its part, dominates


class Reading(NamedTuple):
    """What one pass over rows (n, d) gives.

    For n < d, `rows` and both moments are in coordinates along the n principal axes.
    """

    source: Rows
    rows: Rows  # for n < d in memory
    few: bool  # whether n < d
    moments: Moments
    distinct: Moments  # of the rows that equal no earlier one
    first: NDArray[np.bool_]  # mask of these rows
    hashes: NDArray[np.uint64]  # of all rows
    mean: Tensor  # (d,)
    variance: Tensor  # (d,)


def read_rows(X: Any) -> Reading:
    """Check a matrix, memory map or dask array of rows that are not all equal, and read it."""
    if not (is_dask(X) or is_memmap(X)):
        refuse_chunks(X, "this figure needs all rows at once")
        least = {"ensure_min_samples": 2, "ensure_min_features": 2}
        X = check_array(as_array(X), dtype=FLOATS, input_name="X", **least)
    found = read(Rows(X))
    if found.distinct.count < 2:
        raise ValueError(constant_message(found.moments.count))
    return found


def read(rows: Rows) -> Reading:
    """Read all rows."""
    source, few = rows, len(rows) < rows.X.shape[1]
    hashes = np.concatenate([row_hashes(block) for block in rows.blocks()])
    first = first_of_equal(hashes)
    if few:
        points = torch.cat([*map(in_float64, rows.blocks())])
        rows = Rows((points @ _spread.principal_axes(points)).numpy())
    distinct, copies, largest, start = Moments(), Moments(), 0.0, 0
    for block in rows.blocks():
        largest = max(largest, float(block.max()), -float(block.min()))
        mask, start = first[start : start + len(block)], start + len(block)
        distinct.update(block if mask.all() else block[mask])
        copies.update(block[~mask])
    check_scale(largest)
    moments = Moments().merge(distinct).merge(copies)
    mean, variance = moments.mean, moments.scatter.diagonal() / (len(first) - 1)
    if few:
        mean, variance = points.mean(0), points.var(0)
    return Reading(source, rows, few, moments, distinct, first, hashes, mean, variance)


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


def codes_of(values: ArrayLike, n: int, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Different values of a parameter that has one for each of n rows, and each row's number."""
    labels = np.asarray(values)
    if labels.shape != (n,):
        raise ValueError(
            f"{name} has shape {labels.shape}, X has {n} rows: one value for each row is needed"
        )
    objects: Any = () if labels.dtype.kind in "biu" else np.asarray(values, dtype=object)
    missing = [i for i, label in enumerate(objects) if is_missing(label)]
    if missing:
        raise ValueError(
            f"{name} lacks that of {len(missing)} row(s), first of row {missing[0]} (NaN or None): "
            "leave these rows out, or give them a name, for example 'none'"
        )
    return np.unique(labels, return_inverse=True)


class Groups(NamedTuple):
    """Groups of dependent rows."""

    names: NDArray[Any]
    n_different: int  # copies of a group left out
    codes: NDArray[np.int64]  # (n,): number of the name of each row's group
    kept: NDArray[np.bool_]  # mask (n,) of the rows of groups that equal no earlier one


def groups_of(groups: ArrayLike, found: Reading) -> Groups:
    """Check groups of rows, at least 4."""
    names, codes = codes_of(groups, len(found.first), "groups")
    sums = np.zeros(len(names), np.uint64)
    np.add.at(sums, codes, found.hashes)
    first = first_of_equal(sums)
    if first.sum() < 4:
        raise ValueError(
            f"groups has {first.sum()} different group(s), but rows that depend on each other need "
            "at least 4: pass more groups. For one report for each class, pass the classes to "
            "isotropy_report as labels="
        )
    return Groups(names, int(first.sum()), codes, first[codes])


def corrected_isoscore(found: Reading, groups: Groups | None, d: int) -> float:
    """Bias-corrected IsoScore of the different rows; NaN for fewer than 4 of them, or 4 groups."""
    if groups is None:
        return corrected_score(found.distinct, d) if found.distinct.count >= 4 else math.nan
    kept, moments = np.flatnonzero(groups.kept), found.moments
    order = kept[np.argsort(groups.codes[kept], kind="stable")]
    sums = GroupSums(moments.mean, float((moments.scatter.trace() / moments.count).sqrt()))
    sizes = np.unique(groups.codes[kept], return_counts=True)[1]
    sums.update(found.rows.take(order).blocks(), sizes)
    return sums.score(d)


def score_of_groups(X: Any, groups: ArrayLike) -> float:
    """Bias-corrected IsoScore of dependent rows."""
    found = read_rows(X)
    checked = groups_of(groups, found)
    warn_of_dominance(squared_deviations(found, checked.kept), checked)
    return corrected_isoscore(found, checked, len(found.mean))


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
    found, d = read_rows(X), np.shape(X)[1]
    warn_of_few_units(found, None, d)
    warn_of_dominance(squared_deviations(found, found.first))
    matrices = (found.moments.second_moment(), found.moments.scatter)
    raw, centred = (torch.linalg.eigvalsh(matrix).flip(0).clamp(min=0) for matrix in matrices)
    return spectral_figures(raw, centred, corrected_isoscore(found, None, d), d)


def squared_deviations(found: Reading, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Squared distance (n,) of each row from the mean; 0 for the rows that are not `kept`."""
    squared, start = np.empty(len(kept)), 0
    for block in found.rows.blocks():
        deviations = in_float64(block) - found.moments.mean
        squared[start : start + len(block)] = deviations.square().sum(1)
        start += len(block)
    return np.where(kept, squared, 0)


def warn_of_few_units(found: Reading, groups: Groups | None, d: int) -> None:
    """Warn if there are fewer than three different rows, or groups, for each dimension."""
    n, different = len(found.first), int(found.distinct.count)
    units = f"n_samples={n}" + f" ({different} different)" * (different < n)
    if groups is not None:
        different = groups.n_different
        units = f"the number of different groups, {different},"
    if different < 3 * d:
        warn(f"{units} is less than 3 × n_features={3 * d}: {IF_FEW}")


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

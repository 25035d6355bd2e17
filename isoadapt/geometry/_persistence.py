"""Persistence of dimension 0: bars, the selection of those that count, and persistent entropy.

The finite bars of dimension 0 of the Vietoris-Rips filtration are as long as the edges of the
Euclidean minimum spanning tree. The tree is found without gradient; the lengths are then taken
from the points, so that gradients flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr
from torch import Tensor

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

_WIDE = ("float32", "float64")
_MATRIX_BYTES = 2**30  # above it, distances are computed row by row
_CLOSE = {"float32": 1e-2, "float64": 1e-4}  # d²/(|x|² + |y|²) that cancellation has spoilt
_EQUAL = 8  # bars this many units in the last place apart are equal
_LEAST = 1e-300


@overload
def persistence_bars(X: Tensor) -> Tensor: ...
@overload
def persistence_bars(X: ArrayLike) -> Floats: ...
def persistence_bars(X: ArrayLike | Tensor) -> Floats | Tensor:
    """Find the finite bars of dimension 0 of the Vietoris-Rips filtration.

    They are as long as the edges of the Euclidean minimum spanning tree. Those of a tensor are
    differentiable with respect to the points, with zero gradient for bars of length zero.

    Parameters
    ----------
    X : array-like or Tensor of shape (n, d)
        Points, n and d at least 1; half precision is computed in float32, integers in float64.

    Returns
    -------
    ndarray or Tensor of shape (n - 1,)
        Lengths, longest first, those of length zero among them; a tensor on the device of X if X
        is one.

    Raises
    ------
    ValueError
        If X is not a matrix, has no entries, or holds rows whose distances are not finite.

    References
    ----------
    Kudrjashov, Karpik and Klyshinsky, "Shrink the Longest: Improving Latent Space Isotropy with
    Simplicial Geometry", section 3.

    Examples
    --------
    >>> from isoadapt.geometry import persistence_bars
    >>> persistence_bars([[0.0], [7.0], [1.0], [3.0]])
    array([4., 2., 1.])
    """
    points = _as_floats(X)
    if points.ndim != 2 or not all(points.shape):
        raise ValueError(
            f"X has shape {tuple(points.shape)}: a matrix of shape (n, d), with one point or more "
            "in one dimension or more, is needed"
        )
    cloud = on_host(points)
    parents = spanning_parents(cloud)
    if isinstance(points, Tensor):
        ends = points.index_select(0, torch.from_numpy(parents).to(points.device))
        lengths = torch.linalg.vector_norm(points[1:] - ends, dim=1)
        bars: Floats | Tensor = lengths.sort(descending=True).values
    else:
        bars = np.sort(edge_lengths(cloud, parents))[::-1].copy()
    if not math.isfinite(on_host(bars).sum()):
        raise ValueError("X is not finite: drop the rows that hold NaN, infinity or huge values")
    return bars


@overload
def select_bars(bars: Tensor) -> Tensor: ...
@overload
def select_bars(bars: ArrayLike) -> Floats: ...
def select_bars(bars: ArrayLike | Tensor) -> Floats | Tensor:
    """Separate the bars that are features from those that are noise.

    The longest bar is a feature and the shortest is noise; how many of those between are features
    follows from what persistent entropy gains as the longest of them are replaced by bars that
    make it largest. Fewer than four bars, and bars that are equal up to rounding, are kept all.

    Parameters
    ----------
    bars : array-like or Tensor of shape (n,)
        Lengths in any order; zeros are dropped first.

    Returns
    -------
    ndarray or Tensor of shape (n_selected,)
        The bars kept, longest first. Gradients flow through those of a tensor; which are kept is
        decided without.

    Raises
    ------
    ValueError
        If bars is not one-dimensional, or an entry is negative or not finite.

    References
    ----------
    Atienza, Gonzalez-Diaz and Rucco (2019), "Persistent entropy for separating topological
    features from noise in Vietoris-Rips complexes"; "Shrink the Longest", algorithm 1.

    Examples
    --------
    >>> from isoadapt.geometry import select_bars
    >>> select_bars([0.2, 9.0, 0.1, 8.0, 0.3, 0.2, 0.1, 0.0, 0.2, 0.3])
    array([9., 8.])
    """
    lengths, values = _checked_bars(bars)
    order = selected(values)
    if isinstance(lengths, Tensor):
        return lengths[torch.from_numpy(order).to(lengths.device)]
    return lengths[order]


@overload
def persistent_entropy(bars: Tensor) -> Tensor: ...
@overload
def persistent_entropy(bars: ArrayLike) -> float: ...
def persistent_entropy(bars: ArrayLike | Tensor) -> float | Tensor:
    """Persistent entropy: the entropy of the shares that bars have in their total length.

    Parameters
    ----------
    bars : array-like or Tensor of shape (n,)
        Lengths; zeros are dropped first.

    Returns
    -------
    float or Tensor of shape ()
        Persistent entropy in nats, at most ln n; zero, with zero gradient, if no bar is left.

    Raises
    ------
    ValueError
        If bars is not one-dimensional, or an entry is negative or not finite.

    References
    ----------
    "Shrink the Longest", section 3.

    Examples
    --------
    >>> import math
    >>> from isoadapt.geometry import persistent_entropy
    >>> round(math.exp(persistent_entropy([2.0, 2.0, 0.0, 2.0])), 6)
    3.0
    """
    lengths, values = _checked_bars(bars)
    if isinstance(lengths, Tensor):
        lengths = lengths[lengths > 0]
        return -times_own_log(lengths / lengths.sum()).sum()
    total = values.sum()
    return float(entr(values / total).sum()) if total else 0.0


def times_own_log(shares: Tensor) -> Tensor:
    """Compute p ln p; where p is zero, zero with a finite gradient.

    Parameters
    ----------
    shares : Tensor
        Each p, zero or more.

    Returns
    -------
    Tensor
        Each p ln p.
    """
    return shares * shares.clamp(min=torch.finfo(shares.dtype).tiny).log()


def on_host(values: Tensor | Floats) -> Floats:
    """Give the values of a tensor or array as an array.

    Parameters
    ----------
    values : Tensor or ndarray
        In float32 or float64.

    Returns
    -------
    ndarray
        May share memory with `values`: not to be written to.
    """
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else values


def spanning_parents(points: Floats) -> Indices:
    """Find the Euclidean minimum spanning tree, rooted at point 0.

    Points that are not finite give some tree.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        In float32 or float64, n at least 1.

    Returns
    -------
    ndarray of shape (n - 1,)
        The other end of the edge from each point but the first to the tree's root.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if 8 * len(points) ** 2 > _MATRIX_BYTES:
            return _prim(_distance_rows(points.astype(np.float64)), len(points))
        return _prim(_distance_matrix(points).__getitem__, len(points))


def edge_lengths(points: Floats, parents: Indices) -> Floats:
    """Compute the lengths of the edges of a tree.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        Points.
    parents : ndarray of shape (n - 1,)
        As `spanning_parents` gives them.

    Returns
    -------
    ndarray of shape (n - 1,)
        Lengths, in the order of `parents`.
    """
    steps = points[1:] - points[parents]
    return np.sqrt(np.einsum("ij,ij->i", steps, steps))


def selected(lengths: Floats) -> Indices:
    """Find the bars that are features.

    Parameters
    ----------
    lengths : ndarray of shape (n,)
        Lengths, zero or more and finite.

    Returns
    -------
    ndarray of shape (n_selected,)
        Their places, longest first.
    """
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    if len(order) < 4:
        return order
    ratios = lengths[order].astype(np.float64) / lengths[order[0]]
    if 1 - ratios[-1] <= _EQUAL * np.finfo(lengths.dtype).eps:
        return order
    return order[: _n_features(np.maximum(ratios, _LEAST))]


def _n_features(lengths: NDArray[np.float64]) -> int:
    """Count the features among four bars or more, longest first, the longest of length 1.

    In question are the `size` longest of the bars between the longest and the shortest. Replacing
    the i longest of these by neutral bars makes the total fall up to some i: only those i stay in
    question, until they are no more than there can be features.
    """
    shortest = float(lengths[-1])
    share = _feature_share(shortest)
    middle = lengths[1:-1]
    taken = np.concatenate(([0.0], middle.cumsum()))
    taken_logs = np.concatenate(([0.0], (middle * np.log(middle)).cumsum()))
    counts = np.arange(len(middle))
    size = len(middle)
    while True:
        sums = (taken[size] + (1 + shortest)) - taken[:size]  # of all but the i longest
        logs = (taken_logs[size] + shortest * math.log(shortest)) - taken_logs[:size]
        totals = sums + counts[:size] * np.exp(logs / sums)
        rises = totals[1:] > totals[:-1]
        first = int(rises.argmax())
        i = first + 1 if rises[first] else size - 1
        if math.ceil(share * (size + 2)) >= i:
            return i + 1
        size = i


def _feature_share(alpha: float) -> float:
    """Largest share of features if the shortest bar is `alpha` times the longest.

    α(α - 1 - ln α)/(1 - α)², which tends to 1/2 as α tends to 1.
    """
    gap = 1 - alpha
    if gap < 1e-4:
        return alpha * (1 / 2 + gap / 3 + gap**2 / 4)
    return alpha * (-gap - math.log(alpha)) / gap**2


def _distance_matrix(points: Floats) -> Floats:
    """Squared distances of all pairs; infinity on the diagonal."""
    centred = points - points.mean(0)
    distances = centred @ centred.T
    squares = distances.diagonal().copy()
    distances *= -2
    distances += squares
    distances += squares[:, None]
    np.fill_diagonal(distances, np.inf)
    limit = _CLOSE[points.dtype.name]
    suspects = np.flatnonzero(distances.min(1) < limit * (squares + squares.max()))
    if len(suspects) and points.dtype == np.float32:
        return _distance_matrix(points.astype(np.float64))
    for i in suspects:
        _repair(distances[i], int(i), points, squares)
    return distances


def _distance_rows(points: Floats) -> Callable[[int], Floats]:
    """Squared distances of all points from one, as a function of this one."""
    centred = points - points.mean(0)
    squares = np.einsum("ij,ij->i", centred, centred)

    def row(i: int) -> Floats:
        distances = centred @ centred[i]
        distances *= -2
        distances += squares
        distances += squares[i]
        _repair(distances, i, points, squares)
        return distances

    return row


def _repair(distances: Floats, i: int, points: Floats, squares: Floats) -> None:
    """Recompute from the points the distances from point i that cancellation has spoilt."""
    close = np.flatnonzero(distances < _CLOSE["float64"] * (squares + squares[i]))
    if len(close):
        steps = points[close] - points[i]
        distances[close] = np.einsum("ij,ij->i", steps, steps)


def _prim(row: Callable[[int], Floats], n: int) -> Indices:
    """Grow the tree from point 0; `row` gives the distances of all points from one."""
    distances = row(0).copy()
    nearest, inside = distances.copy(), np.zeros_like(distances)
    nearest[0] = inside[0] = np.inf  # added to a distance, keeps it out of reach
    closer, parents = np.empty(n, dtype=bool), np.zeros(n, dtype=np.intp)
    for _ in range(n - 1):
        newest = int(nearest.argmin())
        nearest[newest] = inside[newest] = np.inf
        np.add(row(newest), inside, out=distances)
        np.less(distances, nearest, out=closer)
        np.minimum(nearest, distances, out=nearest)
        parents[closer] = newest
    return parents[1:]


@overload
def _as_floats(values: Tensor) -> Tensor: ...
@overload
def _as_floats(values: ArrayLike) -> Floats: ...
def _as_floats(values: ArrayLike | Tensor) -> Floats | Tensor:
    """Float32 from half precision, float64 from integers."""
    if isinstance(values, Tensor):
        if values.dtype in (torch.float32, torch.float64):
            return values
        return values.to(torch.float32 if values.is_floating_point() else torch.float64)
    array = np.asarray(values)
    if array.dtype.name in _WIDE:
        return array
    return array.astype(np.float32 if array.dtype == np.float16 else np.float64)


def _checked_bars(bars: ArrayLike | Tensor) -> tuple[Floats | Tensor, Floats]:
    lengths = _as_floats(bars)
    if lengths.ndim != 1:
        raise ValueError(f"bars has shape {tuple(lengths.shape)}: (n,) is needed")
    values = on_host(lengths)
    if len(values) and not 0 <= values.min() <= values.max() < np.inf:
        raise ValueError("bars holds NaN, infinity or negative values: lengths are needed")
    return lengths, values

"""Persistence bars of dimension 0, the selection of significant bars, and persistent entropy.

The finite bars of dimension 0 of the Vietoris-Rips filtration have the lengths of the edges of the
Euclidean minimum spanning tree. The tree is found without gradient; the lengths are then computed
from the points, so that gradients flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isoadapt._utils.containers import as_array

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]

_MATRIX_BYTES = 2**30  # larger distance matrices are not formed: distances are computed row by row
# d² / (‖x‖² + ‖y‖²) below which cancellation makes d² inaccurate
_CLOSE = {"float32": 1e-2, "float64": 1e-4}
_EQUAL = 8  # bars that differ by at most this many machine epsilons are equal
_LEAST = 1e-300  # smaller relative lengths are raised to it, so that logarithms are finite


@overload
def persistence_bars(X: Tensor) -> Tensor: ...
@overload
def persistence_bars(X: ArrayLike) -> Floats: ...
def persistence_bars(X: ArrayLike | Tensor) -> Floats | Tensor:
    """Compute the finite bars of dimension 0 of the Vietoris-Rips filtration.

    They have the lengths of the edges of the Euclidean minimum spanning tree. If X is a tensor, the
    bars are differentiable with respect to the points; bars of length zero have zero gradient.

    Parameters
    ----------
    X : array-like or Tensor of shape (n, d)
        Points, with n and d at least 1. Half precision is computed in float32, integers in
        float64.

    Returns
    -------
    ndarray or Tensor of shape (n - 1,)
        Lengths of the bars in descending order, also of length zero. If X is a tensor, a tensor on
        its device.

    Raises
    ------
    ValueError
        If X is not a matrix, has no entries, or has rows whose distances are not finite.

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
    points = _as_tensor(X)
    if points.ndim != 2 or not all(points.shape):
        raise ValueError(
            f"X has shape {tuple(points.shape)}: a matrix of shape (n, d) with n >= 1 and d >= 1 "
            "is needed"
        )
    parents = torch.from_numpy(spanning_parents(points.numpy(force=True)))
    ends = points.index_select(0, parents.to(points.device))
    bars = torch.linalg.vector_norm(points[1:] - ends, dim=1).sort(descending=True).values
    if not math.isfinite(bars.detach().sum()):
        raise ValueError(
            "X is not finite: it contains NaN, infinity or values whose squares overflow; drop "
            "these rows, or scale X down"
        )
    return bars if isinstance(X, Tensor) else bars.numpy()


@overload
def select_bars(bars: Tensor) -> Tensor: ...
@overload
def select_bars(bars: ArrayLike) -> Floats: ...
def select_bars(bars: ArrayLike | Tensor) -> Floats | Tensor:
    """Select the bars that are topological features and drop those that are noise.

    The longest bar is always a feature and the shortest always noise. The number of features among
    the others follows from how persistent entropy changes as the longest bars are replaced, one
    after another, by bars of the length that makes it largest. All bars are kept if there are fewer
    than four or if they are equal up to rounding.

    Parameters
    ----------
    bars : array-like or Tensor of shape (n,)
        Lengths in any order. Bars of length zero are dropped first.

    Returns
    -------
    ndarray or Tensor of shape (n_selected,)
        The bars kept, in descending order. For a tensor, gradients flow through the lengths, but
        not through the choice of the bars.

    Raises
    ------
    ValueError
        If `bars` is not one-dimensional, or an entry is negative or not finite.

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
    lengths = _check_bars(bars)
    order = torch.from_numpy(selected_indices(lengths.numpy(force=True)))
    selected = lengths[order.to(lengths.device)]
    return selected if isinstance(bars, Tensor) else selected.numpy()


@overload
def persistent_entropy(bars: Tensor) -> Tensor: ...
@overload
def persistent_entropy(bars: ArrayLike) -> float: ...
def persistent_entropy(bars: ArrayLike | Tensor) -> float | Tensor:
    """Compute persistent entropy, the entropy of the relative lengths of the bars.

    Parameters
    ----------
    bars : array-like or Tensor of shape (n,)
        Lengths in any order. Bars of length zero are dropped first.

    Returns
    -------
    float or Tensor of shape ()
        ``-sum_i p_i ln(p_i)`` with ``p_i = bars_i / sum(bars)``, in nats, at most ln n. Zero, with
        zero gradient, if no bar is left.

    Raises
    ------
    ValueError
        If `bars` is not one-dimensional, or an entry is negative or not finite.

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
    lengths = _check_bars(bars)
    lengths = lengths[lengths > 0]
    entropy = -p_log_p(lengths / lengths.sum()).sum()
    return entropy if isinstance(bars, Tensor) else float(entropy)


def p_log_p(shares: Tensor) -> Tensor:
    """p ln p of non-negative `shares`; zero, with a finite gradient, where p is zero."""
    return shares * shares.clamp(min=torch.finfo(shares.dtype).tiny).log()


def spanning_parents(points: Floats) -> Indices:
    """Parents (n - 1,) in the Euclidean minimum spanning tree of n points, rooted at the first."""
    with np.errstate(over="ignore", invalid="ignore"):
        if 8 * len(points) ** 2 > _MATRIX_BYTES:
            return _prim(_distance_rows(points.astype(np.float64)), len(points))
        return _prim(_distance_matrix(points).__getitem__, len(points))


def selected_indices(lengths: Floats) -> Indices:
    """Indices of the bars that are features, longest first; `lengths` (n,) are finite and >= 0."""
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    if len(order) < 4:
        return order
    ratios = lengths[order].astype(np.float64) / lengths[order[0]]
    if 1 - ratios[-1] <= _EQUAL * np.finfo(lengths.dtype).eps:
        return order
    return order[: _n_selected(np.maximum(ratios, _LEAST))]


def _n_selected(lengths: NDArray[np.float64]) -> int:
    """Number of features among four or more bars, in descending order, the longest of length 1."""
    # The candidates are the `size` longest bars between the longest and the shortest. Replacing the
    # i longest of them by neutral bars makes the total fall up to some i. The candidates are
    # reduced to those i until they are at most as many as there can be features.
    shortest = float(lengths[-1])
    share = _feature_share(shortest)
    middle = lengths[1:-1]
    taken = np.concatenate(([0.0], middle.cumsum()))
    taken_logs = np.concatenate(([0.0], (middle * np.log(middle)).cumsum()))
    counts = np.arange(len(middle))
    size = len(middle)
    while True:
        # Entry i sums over all bars but the i longest candidates.
        sums = (taken[size] + (1 + shortest)) - taken[:size]
        logs = (taken_logs[size] + shortest * math.log(shortest)) - taken_logs[:size]
        totals = sums + counts[:size] * np.exp(logs / sums)
        rises = totals[1:] > totals[:-1]
        first = int(rises.argmax())
        i = first + 1 if rises[first] else size - 1
        if math.ceil(share * (size + 2)) >= i:
            return i + 1
        size = i


def _feature_share(alpha: float) -> float:
    """Largest share of features, α(α - 1 - ln α) / (1 - α)², for a shortest bar of α."""
    gap = 1 - alpha
    if gap < 1e-4:
        return alpha * (1 / 2 + gap / 3 + gap**2 / 4)
    return alpha * (-gap - math.log(alpha)) / gap**2


def _distance_matrix(points: Floats) -> Floats:
    """Squared distances (n, n) of all pairs of points; infinity on the diagonal."""
    centred = torch.from_numpy(points - points.mean(0))
    # A product by NumPy would wait for torch's threads, which are still busy after its last call.
    with torch.autocast("cpu", enabled=False):
        distances = (centred @ centred.T).numpy()
    squares = distances.diagonal().copy()
    distances *= -2
    distances += squares
    distances += squares[:, None]
    np.fill_diagonal(distances, np.inf)
    limit = _CLOSE[points.dtype.name]
    inaccurate = np.flatnonzero(distances.min(1) < limit * (squares + squares.max()))
    if len(inaccurate) and points.dtype == np.float32:
        return _distance_matrix(points.astype(np.float64))
    for i in inaccurate:
        _recompute_close(distances[i], int(i), points, squares)
    return distances


def _distance_rows(points: Floats) -> Callable[[int], Floats]:
    """Function that returns the squared distances (n,) of all points from the i-th."""
    centred = points - points.mean(0)
    squares = np.einsum("ij,ij->i", centred, centred)

    def row(i: int) -> Floats:
        distances = centred @ centred[i]
        distances *= -2
        distances += squares
        distances += squares[i]
        _recompute_close(distances, i, points, squares)
        return distances

    return row


def _recompute_close(distances: Floats, i: int, points: Floats, squares: Floats) -> None:
    """Recompute in place the distances from point i that cancellation makes inaccurate."""
    close = np.flatnonzero(distances < _CLOSE["float64"] * (squares + squares[i]))
    if len(close):
        differences = points[close] - points[i]
        distances[close] = np.einsum("ij,ij->i", differences, differences)


def _prim(row: Callable[[int], Floats], n: int) -> Indices:
    """Parents (n - 1,) of the tree grown from point 0; `row(i)` are the distances from point i."""
    distances = row(0).copy()
    nearest, inside = distances.copy(), np.zeros_like(distances)
    # Points in the tree are at infinity, so that they are not chosen again.
    nearest[0] = inside[0] = np.inf
    is_closer, parents = np.empty(n, dtype=bool), np.zeros(n, dtype=np.intp)
    for _ in range(n - 1):
        newest = int(nearest.argmin())
        nearest[newest] = inside[newest] = np.inf
        np.add(row(newest), inside, out=distances)
        np.less(distances, nearest, out=is_closer)
        np.minimum(nearest, distances, out=nearest)
        parents[is_closer] = newest
    return parents[1:]


def _as_tensor(values: ArrayLike | Tensor) -> Tensor:
    """Convert half precision to float32 and integers to float64."""
    if not isinstance(values, Tensor):
        values = torch.from_numpy(np.array(as_array(values), order="C"))
    wider = torch.float32 if values.is_floating_point() else torch.float64
    return values if values.dtype in (torch.float32, torch.float64) else values.to(wider)


def _check_bars(bars: ArrayLike | Tensor) -> Tensor:
    """Check shape and range of bars; return them as floats."""
    lengths = _as_tensor(bars)
    if lengths.ndim != 1:
        raise ValueError(
            f"bars has shape {tuple(lengths.shape)}: one-dimensional bars, shape (n,), are needed"
        )
    if not bool(((lengths >= 0) & (lengths < torch.inf)).all()):
        raise ValueError(
            "bars contains NaN, infinity or negative values: lengths must be finite and not "
            "negative"
        )
    return lengths

"""Intrinsic dimension from the two nearest neighbours of each point."""

import torch
from torch import Tensor

from isoadapt.geometry._neighbours import nearest_neighbours

_ENTRIES = 2**22  # distances in memory at a time: 32 MiB in float64
_SLACK = 1e-10  # relative differences of distances up to it may be rounding
_MIN_POINTS = 4


def two_nn(X: Tensor, discard: float = 0.1, tolerance: float = 0.0) -> Tensor:
    """Estimate the intrinsic dimension of points X (n, d) in float64 by TwoNN (Facco et al., 2017).

    The ratio of the distances to the second and to the first neighbour follows a Pareto law whose
    exponent is the dimension: the slope through the origin of -log(1 - F) over the log ratios, F
    being their empirical distribution. The share `discard`, in (0, 1), of largest ratios is left
    out. Duplicates are dropped; with `tolerance` above 0, so are points closer to an earlier one
    than this multiple of the root mean square distance from the mean.
    """
    points = torch.unique(X, dim=0)
    nearest = _two_nearest(points, discard)
    if tolerance:
        limit = tolerance * float((points - points.mean(0)).square().sum(1).mean().sqrt())
        close = nearest[:, 0] <= limit
        if close.any():
            close[close.clone()] = _near_an_earlier_point(points[close], limit)
            nearest = _two_nearest(points[~close], discard)
    nearest = nearest[nearest[:, 0] > 0]  # distances may underflow to zero
    kept = _n_ratios(len(nearest), discard)
    ratios = (nearest[:, 1] / nearest[:, 0]).log().sort().values[:kept]
    if ratios[-1] < _SLACK:
        raise ValueError(
            "the two nearest neighbours of every row of X are equally far away, as on a lattice or "
            "a simplex, so the TwoNN dimension is not defined; use other rows"
        )
    ranks = torch.arange(1, kept + 1, dtype=X.dtype, device=X.device)
    heights = -torch.log1p(-ranks / len(nearest))
    return ratios @ heights / (ratios @ ratios)


def _two_nearest(points: Tensor, discard: float) -> Tensor:
    """Distances (n, 2) from each of the points (n, d) to its two nearest neighbours."""
    _n_ratios(len(points), discard)  # raises if there are too few
    return nearest_neighbours(points, 2, "euclidean")[0]


def _n_ratios(n: int, discard: float) -> int:
    """Number of ratios to use, given `n` distinct rows; raises if there are too few."""
    kept = min(int(n * (1 - discard)), n - 1)
    if n < _MIN_POINTS or kept < 2:
        raise ValueError(
            f"X has {n} distinct rows, and discard={discard} leaves {max(kept, 0)} ratios: TwoNN "
            f"needs at least {_MIN_POINTS} distinct rows and 2 ratios; use more rows, or a smaller "
            "discard"
        )
    return kept


def _near_an_earlier_point(points: Tensor, limit: float) -> Tensor:
    """Mask (n,) of the points with an earlier point no further away than `limit`."""
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    rows = torch.arange(len(points), device=points.device)
    masks = []
    for part in rows.split(max(1, _ENTRIES // len(points))):
        squares = torch.addmm(norms, centred[part], centred.T, alpha=-2) + norms[part, None]
        masks.append(((squares <= limit**2) & (rows < part[:, None])).any(1))
    return torch.cat(masks)

"""Intrinsic dimension from the two nearest neighbours of each point."""

import math

import torch
from torch import Tensor

_ENTRIES = 2**22  # distances in memory at a time: 32 MiB in float64
_CANDIDATES = 4  # neighbours whose distances are recomputed without cancellation
_SLACK = 1e-10  # admissible relative error of the distance to the second neighbour
_MIN_POINTS = 4


def two_nn(X: Tensor, discard: float = 0.1, tolerance: float = 0.0) -> Tensor:
    """Estimate the intrinsic dimension of points X (n, d) in float64 by TwoNN (Facco et al., 2017).

    The ratio of the distances to the second and to the first neighbour follows a Pareto law whose
    exponent is the dimension: the slope through the origin of -log(1 - F) over the log ratios, F
    being their empirical distribution. The share `discard`, in (0, 1), of largest ratios is left
    out. Duplicates are dropped; with `tolerance` above 0, so are points closer to an earlier one
    than this multiple of the root mean square distance from the mean.
    """
    points = _unit_range(torch.unique(X, dim=0))
    nearest = _two_nearest(points)
    if tolerance:
        limit = tolerance * float((points - points.mean(0)).square().sum(1).mean().sqrt())
        close = nearest[:, 0] <= limit
        if close.any():
            close[close.clone()] = _near_an_earlier_point(points[close], limit)
            points = points[~close]
            nearest = _two_nearest(points)
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


def _unit_range(points: Tensor) -> Tensor:
    """Scale by a power of two, which is exact, so that squares neither over- nor underflow."""
    _, exponent = math.frexp(float(points.abs().max()))
    return points * 2.0 ** min(-exponent, 1022)


def _two_nearest(points: Tensor) -> Tensor:
    """Distances (n, 2) from each point to its two nearest neighbours; infinite for n < 3."""
    if len(points) < 3:
        return points.new_full((len(points), 2), torch.inf)
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    return torch.cat([_search(points, centred, norms, part) for part in _chunks(points)])


def _search(points: Tensor, centred: Tensor, norms: Tensor, rows: Tensor) -> Tensor:
    """Distances (len(rows), 2) from the points numbered `rows` to their two nearest neighbours.

    One matrix product finds candidates, whose distances are then computed directly. Where rounding
    leaves it uncertain that the candidates are the nearest, all distances are computed directly.
    """
    squares = torch.addmm(norms, centred[rows], centred.T, alpha=-2)  # squared distance - ‖row‖²
    squares[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    found = squares.topk(min(_CANDIDATES, len(points) - 1), largest=False)
    differences = points[rows].unsqueeze(1) - points[found.indices]
    nearest = differences.norm(dim=-1).sort(dim=1).values[:, :2]
    if found.values.shape[1] < len(points) - 1:
        rounding = 4 * points.shape[1] * torch.finfo(points.dtype).eps * norms.max()
        others = found.values[:, -1] + norms[rows] - rounding  # lower bound of all other distances
        uncertain = others < nearest[:, 1].square() * (1 - _SLACK)
        if uncertain.any():
            nearest[uncertain] = _search_directly(points, rows[uncertain])
    return nearest


def _search_directly(points: Tensor, rows: Tensor) -> Tensor:
    """Distances (len(rows), 2) to the two nearest neighbours, without cancellation."""
    distances = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
    distances[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    return distances.topk(2, largest=False).values


def _near_an_earlier_point(points: Tensor, limit: float) -> Tensor:
    """Mask (n,) of the points with an earlier point no further away than `limit`."""
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    rows = torch.arange(len(points), device=points.device)
    masks = []
    for part in _chunks(points):
        squares = torch.addmm(norms, centred[part], centred.T, alpha=-2) + norms[part, None]
        masks.append(((squares <= limit**2) & (rows < part[:, None])).any(1))
    return torch.cat(masks)


def _chunks(points: Tensor) -> tuple[Tensor, ...]:
    """Split the row numbers so that the distances of a chunk, and its candidates, fit in memory."""
    n, d = points.shape
    return torch.arange(n, device=points.device).split(max(1, _ENTRIES // max(n, _CANDIDATES * d)))

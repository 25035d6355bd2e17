"""Intrinsic dimension from the two nearest neighbours of each point."""

import math

import torch
from torch import Tensor

_ENTRIES = 2**22  # numbers in memory at a time, 32 MiB
_CANDIDATES = 4  # neighbours whose distances are computed anew, without cancellation
_SLACK = 1e-10  # relative error allowed to the second distance
_MIN_POINTS = 4


def two_nn(X: Tensor, discard: float = 0.1, tolerance: float = 0.0) -> Tensor:
    """TwoNN intrinsic dimension: how fast the second neighbour's distance outgrows the first's.

    The ratios of the two distances follow a Pareto law whose exponent is the dimension; it is
    the slope through the origin of -log(1 - F) over the logarithm of the ratios, F their
    empirical distribution, with the largest ratios cut off (Facco et al., 2017).

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Points, float64; a few million distances are in memory at a time.
    discard : float, default=0.1
        Share of the largest ratios to cut, above 0 and below 1.
    tolerance : float, default=0.0
        Of points closer than this share of the root mean square distance from the mean only
        one is kept. Exact duplicates are always dropped.

    Returns
    -------
    Tensor of shape ()
        Above 0.

    Raises
    ------
    ValueError
        If fewer than 4 points or 2 ratios are left, or every point has its two neighbours
        equally far away.
    """
    points = _unit_range(torch.unique(X, dim=0))
    nearest = _two_nearest(points)
    if tolerance:
        limit = tolerance * float((points - points.mean(0)).square().sum(1).mean().sqrt())
        close = nearest[:, 0] <= limit
        if close.any():
            close[close.clone()] = _follows_another(points[close], limit)
            points = points[~close]
            nearest = _two_nearest(points)
    nearest = nearest[nearest[:, 0] > 0]  # a distance may underflow
    kept = _kept(len(nearest), discard)
    ratios = (nearest[:, 1] / nearest[:, 0]).log().sort().values[:kept]
    if ratios[-1] < _SLACK:
        raise ValueError(
            "the two nearest neighbours of every row of X are equally far away, so TwoNN is not "
            "defined; use rows that lie on no lattice or simplex"
        )
    ranks = torch.arange(1, kept + 1, dtype=X.dtype, device=X.device)
    heights = -torch.log1p(-ranks / len(nearest))
    return ratios @ heights / (ratios @ ratios)


def _kept(n: int, discard: float) -> int:
    kept = min(int(n * (1 - discard)), n - 1)
    if n < _MIN_POINTS or kept < 2:
        raise ValueError(
            f"X has {n} distinct rows, and discard={discard} leaves {max(kept, 0)} ratios: TwoNN "
            f"needs at least {_MIN_POINTS} distinct rows and 2 ratios; use more rows"
        )
    return kept


def _unit_range(points: Tensor) -> Tensor:
    """Divide by a power of two, which is exact, so that squares neither over- nor underflow."""
    _, exponent = math.frexp(float(points.abs().max()))
    return points * 2.0 ** min(-exponent, 1022)


def _two_nearest(points: Tensor) -> Tensor:
    """Distances (n, 2) from each point to its two nearest neighbours; infinite if n < 3."""
    if len(points) < 3:
        return points.new_full((len(points), 2), torch.inf)
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    return torch.cat([_search(points, centred, norms, part) for part in _chunks(points)])


def _search(points: Tensor, centred: Tensor, norms: Tensor, rows: Tensor) -> Tensor:
    """Find candidates by one matrix product, then measure them directly."""
    squares = torch.addmm(norms, centred[rows], centred.T, alpha=-2)  # less ‖row‖² each
    squares[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    found = squares.topk(min(_CANDIDATES, len(points) - 1), largest=False)
    differences = points[rows].unsqueeze(1) - points[found.indices]
    nearest = differences.norm(dim=-1).sort(dim=1).values[:, :2]
    if found.values.shape[1] < len(points) - 1:
        rounding = 4 * points.shape[1] * torch.finfo(points.dtype).eps * norms.max()
        others = found.values[:, -1] + norms[rows] - rounding  # no other is nearer than this
        unsure = others < nearest[:, 1].square() * (1 - _SLACK)
        if unsure.any():
            nearest[unsure] = _search_directly(points, rows[unsure])
    return nearest


def _search_directly(points: Tensor, rows: Tensor) -> Tensor:
    distances = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
    distances[torch.arange(len(rows), device=rows.device), rows] = torch.inf
    return distances.topk(2, largest=False).values


def _follows_another(points: Tensor, limit: float) -> Tensor:
    """Say of each point whether an earlier one is no further away than `limit`."""
    centred = points - points.mean(0)
    norms = centred.square().sum(1)
    rows = torch.arange(len(points), device=points.device)
    follows = []
    for part in _chunks(points):
        squares = torch.addmm(norms, centred[part], centred.T, alpha=-2) + norms[part, None]
        follows.append(((squares <= limit**2) & (rows < part[:, None])).any(1))
    return torch.cat(follows)


def _chunks(points: Tensor) -> tuple[Tensor, ...]:
    """Split the row numbers so that the distances of a chunk, and its candidates, fit."""
    n, d = points.shape
    return torch.arange(n, device=points.device).split(max(1, _ENTRIES // max(n, _CANDIDATES * d)))

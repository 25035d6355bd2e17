"""Exact nearest neighbours by brute force in blocks, and the TwoNN dimension.

A product in float32 finds candidates, whose distances are then computed in float64. A query for
which rounding leaves the candidates uncertain is searched again with a product in float64, and if
this leaves them uncertain too, among all points that may be the nearest.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from isoadapt._utils.copies import row_hashes
from isoadapt.geometry._chunks import RowReader

METRICS = ("cosine", "euclidean")

_GATHERED = 2**18  # numbers of candidates in memory at a time, so that they stay in the cache
_EXPONENT = 30  # of two: products of numbers up to it neither over- nor underflow in float32
_SCORES = 2**24  # scores in memory at a time: 64 MiB in float32
_GROUP = 64  # columns whose largest score is compared first
_ENTRIES = 2**22  # distances in memory at a time: 32 MiB in float64
_SLACK = 1e-10  # ratios of distances that differ less from 1 may be rounding
_MIN_POINTS = 4
_TIE = 8 * torch.finfo(torch.float64).eps  # times √d: cosines that differ by less are equal
_SPARE = 3  # candidates beyond k, whose distances are computed in float64 too


def nearest_neighbours(
    points: Tensor, k: int, metric: str = "cosine", queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances and indices (m, k) of the nearest points, of equal ones the smaller index first."""
    own, unit = queries is None, 1.0
    asked = points if queries is None else queries
    numbers = _first_copies(points, k + 1)  # of equal points, no other can be a neighbour
    points = points if len(numbers) == len(points) else points[numbers]
    if metric == "cosine":
        points, asked = _both(unit_rows, points, asked)
        bias, size = points.new_zeros(len(points)), torch.ones_like(asked[:, 0])
        search = _Search(points, asked, points, asked, bias, size, numbers, own, metric, k)
    else:
        points, asked, unit = _rescale(points, asked)
        mean = points.mean(0)
        centred, targets = _both(lambda rows: rows - mean, points, asked)
        norms = torch.linalg.vector_norm(centred, dim=1)
        size = (torch.linalg.vector_norm(targets, dim=1) + norms.max()) / 2**0.5
        bias = norms.square() / -2
        search = _Search(points, asked, centred, targets, bias, size, numbers, own, metric, k)
    distances = asked.new_empty(len(asked), k)
    indices = torch.empty_like(distances, dtype=torch.long)
    rest = torch.arange(len(asked), device=asked.device)
    for dtype in (torch.float32, torch.float64):
        if not len(rest):
            break
        uncertain = []
        for rows, found, next_score in search.candidates(rest, dtype):
            distances[rows], indices[rows] = search.nearest(rows, found)
            last = search.score(rows, distances[rows, -1])
            uncertain.append(rows[next_score + search.rounding(rows, dtype) >= last])
        rest = torch.cat(uncertain)
    for row in rest[:, None]:
        distances[row], indices[row] = search.nearest(row, search.all_candidates(row))
    return distances * unit, indices


class _Search(NamedTuple):
    """Points and queries whose score, target · centred + bias, is larger if they are nearer."""

    points: Tensor  # (n, d)
    queries: Tensor  # (m, d)
    centred: Tensor  # (n, d): points less their mean, or unit vectors as they are
    targets: Tensor  # (m, d): the same of the queries
    bias: Tensor  # (n,): nothing, or minus half the squared norm
    size: Tensor  # (m,): root of an upper bound of products and scores, for their rounding
    numbers: Tensor  # (n,): of the points among all rows, ascending
    own: bool  # whether the queries are the points, and none is a neighbour of itself
    metric: str
    k: int

    def candidates(self, rest: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, ...]]:
        """Yield numbers of queries (b,), candidates (b, c), and the largest other score (b,)."""
        n = len(self.points)
        count, padding = min(self.k + _SPARE + self.own, n), -n % _GROUP
        centred = F.pad(self.centred.to(dtype), (0, 0, 0, padding))
        bias = F.pad(self.bias.to(dtype), (0, padding), value=-torch.inf)
        size = max(1, _SCORES // len(centred))
        memory = centred.new_empty(min(size, len(rest)), len(centred))
        for rows in rest.split(size):
            targets = self.targets[rows].to(dtype)
            scores = torch.addmm(bias, targets, centred.T, out=memory[: len(rows)])
            values, found = _largest(scores, count)
            yield rows, found, values[:, -1] if count < n else values.new_full((), -torch.inf)

    def all_candidates(self, row: Tensor) -> Tensor:
        """All points (1, c) that may be among the nearest of one query (1,)."""
        scores = torch.addmm(self.bias, self.targets[row], self.centred.T)
        last = scores.topk(self.k + self.own).values[:, -1]
        return (scores >= last - 2 * self.rounding(row, scores.dtype)).nonzero()[:, 1][None]

    def nearest(self, rows: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Distances and indices (b, k) of the nearest, by distance up to rounding, then index."""
        found = found.sort(dim=1).values
        size = max(1, _GATHERED // (found.shape[1] * self.points.shape[1]))
        parts = zip(self.queries[rows].split(size), found.split(size), strict=True)
        distances = torch.cat([self._distances(*part) for part in parts])
        if self.own:
            distances.masked_fill_(self.numbers[found] == rows[:, None], torch.inf)
        distances, places = distances.sort(dim=1)
        limit = self.size[rows, None] * (_TIE * (2 * self.points.shape[1]) ** 0.5)
        keys = _tie_numbers(distances, limit) * places.shape[1] + places
        first = keys.topk(self.k, largest=False).values % places.shape[1]
        return distances[:, : self.k], self.numbers[found.gather(1, first)]

    def _distances(self, queries: Tensor, indices: Tensor) -> Tensor:
        """Distances (b, c) of queries (b, d) to points (b, c), without cancellation."""
        # Each is summed alike, which makes copies equal; a matrix product does not promise it.
        near = self.points.index_select(0, indices.flatten()).unflatten(0, indices.shape)
        if self.metric == "euclidean":
            return near.sub_(queries[:, None]).norm(dim=-1)
        return 1 - near.mul_(queries[:, None]).sum(-1)

    def score(self, rows: Tensor, distances: Tensor) -> Tensor:
        """The scores (b,) that belong to distances (b,)."""
        if self.metric == "cosine":
            return 1 - distances
        return (self.targets[rows].square().sum(1) - distances.square()) / 2

    def rounding(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Upper bound (b,) of errors of scores in some precision, and of equal distances."""
        eps = torch.finfo(dtype).eps / 2 + _TIE
        # The inner product of d numbers, each rounded before, has d + 2 roundings.
        return self.size[rows].square() * ((self.targets.shape[1] + 2) * eps)


def two_nn(X: Tensor, discard: float = 0.1, tolerance: float = 0.0) -> Tensor:
    """TwoNN dimension; drops points within `tolerance` times the spread of an earlier one."""
    points = torch.unique(X, dim=0)
    points, _, _ = _rescale(points, points)
    _n_ratios(len(points), discard)  # raises if there are too few
    nearest = nearest_neighbours(points, 2, "euclidean")[0]
    if tolerance:
        limit = tolerance * float((points - points.mean(0)).square().sum(1).mean().sqrt())
        close = nearest[:, 0] <= limit
        if close.any():
            close[close.clone()] = _near_an_earlier_point(points[close], limit)
            points = points[~close]
            _n_ratios(len(points), discard)
            nearest = nearest_neighbours(points, 2, "euclidean")[0]
    nearest = nearest[nearest[:, 0] > 0]  # distances may underflow to zero
    kept = _n_ratios(len(nearest), discard)
    ratios = (nearest[:, 1] / nearest[:, 0]).log().sort().values[:kept]
    if ratios[-1] < _SLACK:
        raise ValueError(
            "the two nearest neighbours of every row of X are equally far away, as on a lattice or "
            "a simplex, so the TwoNN dimension is not defined; use other rows"
        )
    # The dimension is the slope through the origin of -log(1 - F) over the log ratios, where F is
    # their empirical distribution (Facco et al., 2017).
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


def _near_an_earlier_point(points: Tensor, limit: float) -> Tensor:
    """Mask (n,) of the points with an earlier point no further away than `limit`."""
    centred = points - points.mean(0)
    rows = torch.arange(len(points), device=points.device)
    masks = []
    for part in rows.split(max(1, _ENTRIES // len(points))):
        close = torch.cdist(centred[part], centred) <= limit
        masks.append((close & (rows < part[:, None])).any(1))
    return torch.cat(masks)


def angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles (n,) between pairs of rows by Kahan's formula, made equal where rounding differs."""
    first, second = unit_rows(first), unit_rows(second)
    apart, along = (each.norm(dim=1) for each in (first - second, first + second))
    both_zero = (apart + along == 0).to(apart.dtype)  # the angle is π/2 then
    ordered, order = (2 * torch.atan2(apart + both_zero, along + both_zero)).sort()
    numbers = _tie_numbers(ordered, _TIE * first.shape[1] ** 0.5)
    return ordered[torch.searchsorted(numbers, numbers)][order.argsort()]


def _tie_numbers(ordered: Tensor, limit: Tensor | float) -> Tensor:
    """Numbers (..., n) of the groups of values, in ascending order, that only rounding parts."""
    return F.pad((ordered.diff(dim=-1) > limit).cumsum(-1), (1, 0))


def _first_copies(points: Tensor, most: int) -> Tensor:
    """Numbers (n',) of the rows that fewer than `most` equal rows precede: no other is nearest."""
    hashes = torch.from_numpy(row_hashes(points).view(np.int64)).to(points.device)
    ordered, order = hashes.sort(stable=True)
    place = torch.arange(len(order), device=points.device)
    new = torch.ones_like(place, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[place - place.where(new, 0).cummax(0).values < most].sort().values


def _both(prepare: Callable[[Tensor], Tensor], points: Tensor, queries: Tensor) -> list[Tensor]:
    """Prepare points and queries, once if they are the same."""
    prepared = prepare(points)
    return [prepared, prepared if queries is points else prepare(queries)]


def _rescale(points: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, float]:
    """Divide very large or small points and queries by a power of two, which is returned too."""
    largest = max(float(torch.linalg.vector_norm(part, torch.inf)) for part in (points, queries))
    _, exponent = math.frexp(largest)
    if abs(exponent) <= _EXPONENT:
        return points, queries, 1.0
    unit = 2.0 ** min(max(exponent, -1022), 1023)
    points, queries = _both(lambda rows: rows / unit, points, queries)
    return points, queries, unit


def unit_rows(points: Tensor) -> Tensor:
    """Rows divided by their norms; zero rows stay zero."""
    largest = torch.linalg.vector_norm(points, torch.inf, dim=1, keepdim=True)
    scaled = points / largest.where(largest > 0, 1.0)
    return F.normalize(scaled, dim=1, out=scaled)


def unit_matrix(X: NDArray[Any]) -> NDArray[np.float32]:
    """Unit rows of a matrix (n, d) in float32, computed block by block."""
    blocks = (torch.from_numpy(block.astype(np.float64)) for _, block in RowReader(X).chunks())
    return np.concatenate([unit_rows(block).float().numpy() for block in blocks])


def _largest(block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and columns (m, count) of the largest scores; groups with small maxima are skipped."""
    groups = block.unflatten(1, (-1, _GROUP))
    if groups.shape[1] <= count:
        return block.topk(min(count, block.shape[1]))
    chosen = groups.amax(2).topk(count, sorted=False).indices
    kept = groups.gather(1, chosen[..., None].expand(-1, -1, _GROUP)).flatten(1)
    values, places = kept.topk(count)
    columns = chosen.gather(1, places // _GROUP) * _GROUP + places % _GROUP
    return values, columns

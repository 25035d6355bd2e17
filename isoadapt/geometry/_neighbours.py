"""Exact nearest neighbours by brute force in blocks, their counts, and the TwoNN dimension."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

METRICS = ("cosine", "euclidean")

_GATHERED = 2**18  # numbers of candidates in memory at a time, so that they stay in the cache
_EXPONENT = 30  # of two: products of numbers up to it neither over- nor underflow in float32
_SCORES = 2**24  # scores in memory at a time: 64 MiB
_GROUP = 64  # columns whose largest score is compared first
_ROWS = 16  # rows whose largest score is compared first
_ENTRIES = 2**22  # distances in memory at a time: 32 MiB in float64
_SLACK = 1e-10  # relative differences of distances up to it may be rounding
_MIN_POINTS = 4
_FOUND = 4  # neighbours of which two must be the nearest
_SPARE = 3  # candidates beyond k, whose distances are computed in float64 too


def nearest_neighbours(
    points: Tensor, k: int, metric: str = "cosine", queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances (m, k) and indices (m, k) of the k nearest points of each query, nearest first.

    For points (n, d) and queries (m, d) in float64. Without queries, the neighbours of each point
    among the other points. The distance is 1 - cosine, where a zero row has cosine 0 with every
    other row, or the Euclidean distance. Of equal distances, the smaller index comes first. So
    copies of a row are ordered by index, as are Euclidean distances that float64 holds exactly,
    such as those of integers. Rounding may order other distances that are equal.

    A product in float32 finds candidates, whose distances are then computed in float64. A query for
    which rounding leaves the candidates uncertain is searched again in float64. Distances below
    about 1e-7 of the largest norm are not resolved.
    """
    own = queries is None
    asked, unit = points if queries is None else queries, 1.0
    if metric == "cosine":
        points, asked = _both(_unit, points, asked)
        centred, targets = points, asked
    else:
        points, asked, unit = _scaled(points, asked)
        mean = points.mean(0)
        centred, targets = _both(lambda rows: rows - mean, points, asked)
    scored = (_Scores.cosines if metric == "cosine" else _Scores.half_squares)(centred, targets)
    search = _Search(points, centred, _bias(centred, metric), metric, k)
    others = len(points) - own
    count = min(k + _SPARE, others)
    distances, indices = [], []
    for rows, scores, found in scored.among(count) if own else scored.between(count):
        block = targets[rows]
        near, nearest = search.nearest(asked[rows], found)
        margin = scored.rounding[rows] + _rounding(2 * block.square().sum(1))
        uncertain = scores[:, -1] + margin >= _score(near[:, -1], metric)
        if uncertain.any() and count < others:
            chosen = uncertain.nonzero()[:, 0]
            found = search.candidates(block[chosen], chosen + rows.start if own else None, count)
            near[chosen], nearest[chosen] = search.nearest(asked[rows][chosen], found)
        distances.append(near)
        indices.append(nearest)
    return torch.cat(distances) * unit, torch.cat(indices)


def two_nn(X: Tensor, discard: float = 0.1, tolerance: float = 0.0) -> Tensor:
    """Estimate the intrinsic dimension of points X (n, d) in float64 by TwoNN (Facco et al., 2017).

    The ratio of the distances to the second and to the first neighbour follows a Pareto law whose
    exponent is the dimension: the slope through the origin of -log(1 - F) over the log ratios, F
    being their empirical distribution. The share `discard`, in (0, 1), of largest ratios is left
    out. Duplicates are dropped; with `tolerance` above 0, so are points closer to an earlier one
    than this multiple of the root mean square distance from the mean.
    """
    points = torch.unique(X, dim=0)
    points, _, _ = _scaled(points, points)
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
    """Distances (n, 2) from each of the points (n, d) to its two nearest neighbours.

    Where rounding leaves it uncertain that two of the neighbours found are the nearest, as in tight
    clusters that are far apart, all distances are computed directly.
    """
    n, d = points.shape
    _n_ratios(n, discard)  # raises if there are too few
    found = nearest_neighbours(points, min(_FOUND, n - 1), "euclidean")[0]
    largest = (points - points.mean(0)).square().sum(1).max()
    rounding = 8 * d * torch.finfo(points.dtype).eps * largest
    others = found[:, -1].square() - rounding  # lower bound of all other distances
    uncertain = (others < found[:, 1].square() * (1 - _SLACK)).nonzero()[:, 0]
    nearest = found[:, :2].clone()
    for rows in uncertain.split(max(1, _ENTRIES // n)):
        distances = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
        distances[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        nearest[rows] = distances.topk(2, largest=False).values
    return nearest


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


class _Search(NamedTuple):
    """Search in float64 among unit vectors or other points."""

    points: Tensor  # (n, d)
    centred: Tensor  # (n, d): points less their mean, or unit vectors as they are
    bias: Tensor  # (n,): a larger query · centred point + bias means a smaller distance
    metric: str
    k: int

    def nearest(self, queries: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """Distances and indices (m, k) of the nearest candidates, by distance, then by index."""
        candidates = found.sort(dim=1).values
        size = max(1, _GATHERED // candidates[:1].numel() // queries.shape[1])
        parts = zip(queries.split(size), candidates.split(size), strict=True)
        distances = torch.cat([self._distances(*part) for part in parts])
        distances, places = distances.sort(dim=1, stable=True)
        return distances[:, : self.k], candidates.gather(1, places[:, : self.k])

    def _distances(self, queries: Tensor, indices: Tensor) -> Tensor:
        """Distances (m, c) of queries (m, d) to points (m, c), without cancellation.

        Each is summed alike, which a matrix product does not promise, so those of copies are equal.
        """
        near = self.points.index_select(0, indices.flatten()).unflatten(0, indices.shape)
        if self.metric == "euclidean":
            return near.sub_(queries[:, None]).norm(dim=-1)
        return 1 - near.mul_(queries[:, None]).sum(-1)

    def candidates(self, queries: Tensor, without: Tensor | None, count: int) -> Tensor:
        """Indices (m, count) of the points nearest to centred queries, but for `without` (m,)."""
        scores = torch.addmm(self.bias, queries, self.centred.T)
        if without is not None:
            scores.scatter_(1, without[:, None], -torch.inf)
        best, found = scores.topk(count)
        last = best[:, self.k - 1 : self.k]
        size = queries.square().sum(1) - 2 * self.bias[found[:, self.k - 1]]
        rounding = _rounding(size)[:, None]
        tied = (best[:, -1:] >= last - rounding)[:, 0]  # more than there are candidates
        equal = (scores[tied] - last[tied]).abs() <= rounding[tied]
        scores = scores[tied].where(~equal, last[tied])
        found[tied] = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        return found


def angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles (n,) between rows (n, d), pair by pair, by Kahan's formula; π/2 for a zero row."""
    first, second = _unit(first), _unit(second)
    apart, along = (each.norm(dim=1) for each in (first - second, first + second))
    both_zero = (apart + along == 0).to(apart.dtype)
    return 2 * torch.atan2(apart + both_zero, along + both_zero)


def neighbour_counts(indices: Tensor, n: int) -> Tensor:
    """k-occurrence (n,): how often each of n points is among the neighbours (m, k)."""
    return torch.bincount(indices.flatten(), minlength=n)


def _both(prepare: Callable[[Tensor], Tensor], points: Tensor, queries: Tensor) -> list[Tensor]:
    """Prepare points and queries, once if they are the same."""
    prepared = prepare(points)
    return [prepared, prepared if queries is points else prepare(queries)]


def _scaled(points: Tensor, queries: Tensor) -> tuple[Tensor, Tensor, float]:
    """Divide very large or small points and queries by a power of two, which is returned too."""
    largest = max(float(torch.linalg.vector_norm(part, torch.inf)) for part in (points, queries))
    _, exponent = math.frexp(largest)
    if abs(exponent) <= _EXPONENT:
        return points, queries, 1.0
    unit = 2.0 ** min(max(exponent, -1022), 1023)
    points, queries = _both(lambda rows: rows / unit, points, queries)
    return points, queries, unit


def _unit(points: Tensor) -> Tensor:
    """Rows divided by their norms; zero rows stay zero."""
    largest = torch.linalg.vector_norm(points, torch.inf, dim=1, keepdim=True)
    scaled = points / largest.where(largest > 0, 1.0)
    return F.normalize(scaled, dim=1, out=scaled)


def _bias(points: Tensor, metric: str) -> Tensor:
    """What is added to the product with a query: nothing, or minus half the squared norm."""
    if metric == "cosine":
        return points.new_zeros(len(points))
    return torch.linalg.vector_norm(points, dim=1).square() / -2


def _rounding(size: Tensor) -> Tensor:
    """How much rounding in float64 may change a score; `size` is the sum of both squared norms."""
    return 8 * torch.finfo(size.dtype).eps * size


def _score(distances: Tensor, metric: str) -> Tensor:
    """The scores that belong to distances."""
    return 1 - distances if metric == "cosine" else distances.square() / -2


class _Candidates(NamedTuple):
    """The points with the largest scores for some consecutive queries, largest first."""

    rows: slice  # the queries
    scores: Tensor  # (m, c)
    indices: Tensor  # (m, c)


class _Scores(NamedTuple):
    """Factors in float32 of a matrix of scores, where a larger score means a smaller distance.

    The score of unit vectors is their cosine. The score of other vectors c, with b = -|c|^2 / 2, is
    half their negative squared distance, c · c' + b + b', the product of [c, b, 1] and [c', 1, b'].
    Both are symmetric.
    """

    left: Tensor  # (m, d) or (m, d + 2): queries
    right: Tensor  # (n', d) or (n', d + 2): points, and rows of zeros up to a multiple of _GROUP
    n: int  # number of points
    rounding: Tensor  # (m,) float64: a bound of the error of each query's scores

    @classmethod
    def cosines(cls, points: Tensor, queries: Tensor) -> "_Scores":
        """Scores of unit vectors or zeros in float64."""
        rounding = _eps(points) * torch.ones_like(queries[:, 0])
        return cls(queries.float(), _padded(points.float()), len(points), rounding)

    @classmethod
    def half_squares(cls, points: Tensor, queries: Tensor) -> "_Scores":
        """Scores of other vectors in float64."""
        norms = torch.linalg.vector_norm(points, dim=1)
        asked = norms if queries is points else torch.linalg.vector_norm(queries, dim=1)
        left = torch.ones(len(queries), points.shape[1] + 2, device=points.device)
        left[:, :-2], left[:, -2] = queries, asked.square() / -2
        right = torch.ones(len(points), points.shape[1] + 2, device=points.device)
        right[:, :-2], right[:, -1] = points, norms.square() / -2
        largest = (asked + norms.max()).square() / 2
        return cls(left, _padded(right), len(points), _eps(right) * largest)

    def among(self, count: int) -> Iterator[_Candidates]:
        """Yield the candidates of each point among the others; a score serves both points."""
        n, (size, memory) = self.n, self._blocks()
        best = _Best(
            self.left.new_full((n, count), -torch.inf),
            torch.zeros(n, count, dtype=torch.long, device=self.left.device),
        )
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            block = self._block(rows, start, memory)
            block.fill_diagonal_(-torch.inf)
            values, columns = _largest(block, count)
            best.update(rows, values, columns + start)
            yield _Candidates(rows, best.values[rows], best.indices[rows])
            later = block[:, size : n - start]
            if rows.stop == n:
                return
            if start == 0:
                values, found = later.T.contiguous().topk(min(count, len(later)))
                best.update(slice(size, n), values, found)
            else:
                best.update_columns(rows, later)

    def between(self, count: int) -> Iterator[_Candidates]:
        """Yield the candidates of each query among all points."""
        size, memory = self._blocks()
        for start in range(0, len(self.left), size):
            rows = slice(start, min(start + size, len(self.left)))
            yield _Candidates(rows, *_largest(self._block(rows, 0, memory), count))

    def _blocks(self) -> tuple[int, Tensor]:
        """Rows of a block of scores, and memory for it, which all blocks use."""
        size = max(1, _SCORES // len(self.right) // _GROUP) * _GROUP
        return size, self.left.new_empty(min(size, len(self.left)) * len(self.right))

    def _block(self, rows: slice, first: int, memory: Tensor) -> Tensor:
        """Scores of some queries and the points from number `first` on."""
        left, right = self.left[rows], self.right[first:]
        block = memory[: len(left) * len(right)].view(len(left), len(right))
        torch.mm(left, right.T, out=block)
        block[:, self.n - first :] = -torch.inf
        return block


def _eps(vectors: Tensor) -> float:
    """Relative error of an inner product of n terms, each of two rounded numbers, in float32."""
    return (vectors.shape[1] + 2) * torch.finfo(torch.float32).eps / 2


def _padded(points: Tensor) -> Tensor:
    """Points, and rows of zeros up to a multiple of `_GROUP`."""
    return F.pad(points, (0, 0, 0, -len(points) % _GROUP))


class _Best(NamedTuple):
    """The largest scores of each point so far, largest first."""

    values: Tensor  # (n, c)
    indices: Tensor  # (n, c)

    def update(self, rows: slice | Tensor, values: Tensor, indices: Tensor) -> None:
        """Take in further scores (m, any) of some points."""
        values = torch.cat([self.values[rows], values], dim=1)
        indices = torch.cat([self.indices[rows], indices], dim=1)
        self.values[rows], order = values.topk(self.values.shape[1])
        self.indices[rows] = indices.gather(1, order)

    def update_columns(self, rows: slice, block: Tensor) -> None:
        """Take in the scores (m, l) of the points `rows` for the last l points."""
        first = len(self.values) - block.shape[1]
        least = self.values[first:, -1]
        groups = block.unflatten(0, (-1, _ROWS)).amax(1) > least
        column, group = groups.T.nonzero(as_tuple=True)
        number = group[:, None] * _ROWS + torch.arange(_ROWS, device=block.device)
        values = block[number, column[:, None]]
        entry, member = (values > least[column][:, None]).nonzero(as_tuple=True)
        if len(entry):
            columns, which, counts = column[entry].unique_consecutive(
                return_inverse=True, return_counts=True
            )
            place = torch.arange(len(entry), device=block.device)
            place -= (counts.cumsum(0) - counts)[which]
            found = block.new_full((len(columns), int(counts.max())), -torch.inf)
            found[which, place] = values[entry, member]
            indices = torch.zeros_like(found, dtype=torch.long)
            indices[which, place] = number[entry, member] + rows.start
            self.update(first + columns, found, indices)


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

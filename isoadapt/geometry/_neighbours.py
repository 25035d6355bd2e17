"""Exact nearest neighbours by brute force in blocks, and the hubness of their counts."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

METRICS = ("cosine", "euclidean")

_SCORES = 2**23  # scores in memory at a time: 32 MiB in float32
_GATHERED = 2**18  # numbers of candidates in memory at a time, so that they stay in the cache
_SPARE = 6  # candidates beyond k, whose distances are computed in float64 too
_GROUP = 64  # columns whose largest score is compared first


class _Search(NamedTuple):
    """Points prepared so that a larger score, query · point + bias, means a smaller distance."""

    points: Tensor  # (n, d) float64: unit vectors, or centred points
    bias: Tensor  # (n,) float64
    metric: str

    def scores(self, queries: Tensor) -> Tensor:
        """Scores (m, n) in float64."""
        return torch.addmm(self.bias, queries, self.points.T)

    def distances(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Distances (m, c) from queries (m, d) to candidates (m, c), without cancellation."""
        size = max(1, _GATHERED // (candidates.shape[1] * queries.shape[1]))
        parts = zip(queries.split(size), candidates.split(size), strict=True)
        return torch.cat([self._distances(*part) for part in parts])

    def _distances(self, queries: Tensor, candidates: Tensor) -> Tensor:
        points = self.points[candidates]
        if self.metric == "euclidean":
            return (points - queries[:, None]).norm(dim=-1)
        return 1 - (points @ queries[..., None]).squeeze(-1)


def nearest_neighbours(
    points: Tensor, k: int, metric: str = "cosine", queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Distances (m, k) and numbers (m, k) of the k nearest points of each query, nearest first.

    For points (n, d) and queries (m, d) in float64. Without queries, the neighbours of each point
    among the other points. The distance is 1 - cosine, where a zero row has cosine 0 with every
    other row, or the Euclidean distance. Of equal distances, the smaller number comes first.

    A product in float32 finds candidates, whose distances are then computed in float64. A query for
    which rounding leaves the candidates uncertain is searched again in float64. Distances below
    about 1e-7 of the largest norm are not resolved.
    """
    own = queries is None
    points, targets, unit = _prepared(points, points if queries is None else queries, metric)
    search = _Search(points, _bias(points, metric), metric)
    low_points = _padded(torch.cat([points, search.bias[:, None]], dim=1).float())
    n_candidates = min(k + _SPARE, len(points) - own)
    complete = n_candidates == len(points) - own
    largest = points.norm(dim=1).max()
    rounding = (points.shape[1] + 2) * torch.finfo(torch.float32).eps * largest
    distances, numbers = [], []
    for rows in torch.arange(len(targets)).split(max(1, _SCORES // len(low_points))):
        block = targets[rows]
        scores = F.pad(block.float(), (0, 1), value=1.0) @ low_points.T
        values, found = _largest(_without(scores, rows, own), n_candidates)
        near, index = _nearest(search, block, found, k)
        norms = block.norm(dim=1)
        margin = rounding * (norms + largest) + 8 * torch.finfo(block.dtype).eps * norms.square()
        uncertain = values[:, -1] + margin >= _score(near[:, -1], block, metric)
        if uncertain.any() and not complete:
            exact = _without(search.scores(block[uncertain]), rows[uncertain], own)
            best, found = exact.topk(n_candidates)
            tied = best[:, -1] >= best[:, k - 1]  # topk takes any of more ties than candidates
            order = exact[tied].sort(dim=1, descending=True, stable=True).indices
            found[tied] = order[:, :n_candidates]
            near[uncertain], index[uncertain] = _nearest(search, block[uncertain], found, k)
        distances.append(near)
        numbers.append(index)
    return torch.cat(distances) * unit, torch.cat(numbers)


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Cosines (n,) of the rows of two matrices (n, d), pair by pair; 0 for a zero row."""
    return (_unit(first) * _unit(second)).sum(1)


def neighbour_counts(numbers: Tensor, n: int) -> Tensor:
    """k-occurrence (n,): how often each of n points is among the neighbours (m, k)."""
    return torch.bincount(numbers.flatten(), minlength=n)


def _prepared(points: Tensor, queries: Tensor, metric: str) -> tuple[Tensor, Tensor, float]:
    """Unit vectors for cosines; else centred points and queries, and the power of two they lost."""
    if metric == "cosine":
        return _unit(points), _unit(queries), 1.0
    _, exponent = math.frexp(float(torch.maximum(points.abs().max(), queries.abs().max())))
    unit = 2.0 ** min(max(exponent, -1022), 1023)  # squares neither over- nor underflow then
    points, queries = points / unit, queries / unit
    mean = points.mean(0)
    return points - mean, queries - mean, unit


def _unit(points: Tensor) -> Tensor:
    """Rows divided by their norms; zero rows stay zero."""
    largest = points.abs().amax(1, keepdim=True)
    return F.normalize(points / largest.where(largest > 0, 1.0), dim=1)


def _padded(points: Tensor) -> Tensor:
    """Points with their bias, and rows that are never near, up to a multiple of `_GROUP`."""
    padded = F.pad(points, (0, 0, 0, -len(points) % _GROUP))
    padded[len(points) :, -1] = -torch.inf
    return padded


def _bias(points: Tensor, metric: str) -> Tensor:
    """What is added to the product with a query: nothing, or minus half the squared norm."""
    squares = points.square().sum(1)
    return squares / -2 if metric == "euclidean" else torch.zeros_like(squares)


def _without(scores: Tensor, rows: Tensor, own: bool) -> Tensor:
    """Exclude from the scores (m, n) of the points numbered `rows` these points themselves."""
    if own:
        scores[torch.arange(len(rows)), rows] = -torch.inf
    return scores


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (m, k) of the k largest scores (m, n).

    They lie in the k groups of columns with the largest maxima, which are found faster.
    """
    groups = scores.unflatten(1, (-1, _GROUP))
    if groups.shape[1] <= k:
        return scores.topk(k)
    chosen = groups.amax(2).topk(k, sorted=False).indices
    kept = groups.gather(1, chosen[..., None].expand(-1, -1, _GROUP)).flatten(1)
    values, places = kept.topk(k)
    columns = chosen.gather(1, places // _GROUP) * _GROUP + places % _GROUP
    return values, columns


def _nearest(search: _Search, queries: Tensor, found: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances and numbers (m, k) of the nearest candidates, by distance and then by number."""
    candidates = found.sort(dim=1).values
    order = search.distances(queries, candidates)
    distances, places = order.sort(dim=1, stable=True)
    return distances[:, :k], candidates.gather(1, places[:, :k])


def _score(distances: Tensor, queries: Tensor, metric: str) -> Tensor:
    """The scores (m,) that belong to distances (m,)."""
    if metric == "cosine":
        return 1 - distances
    return (queries.square().sum(1) - distances.square()) / 2

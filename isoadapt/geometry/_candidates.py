"""Candidates for the nearest neighbours: the largest scores of a matrix product in float32."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_SCORES = 2**24  # scores in memory at a time: 64 MiB
_GROUP = 64  # columns whose largest score is compared first
_ROWS = 16  # rows whose largest score is compared first


class Candidates(NamedTuple):
    """The points with the largest scores for some consecutive queries, largest first."""

    rows: slice  # the queries
    scores: Tensor  # (m, c)
    indices: Tensor  # (m, c)


class Scores(NamedTuple):
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
    def cosines(cls, points: Tensor, queries: Tensor) -> "Scores":
        """Scores of unit vectors or zeros in float64."""
        rounding = _eps(points) * torch.ones_like(queries[:, 0])
        return cls(queries.float(), _padded(points.float()), len(points), rounding)

    @classmethod
    def half_squares(cls, points: Tensor, queries: Tensor) -> "Scores":
        """Scores of other vectors in float64."""
        norms = torch.linalg.vector_norm(points, dim=1)
        asked = norms if queries is points else torch.linalg.vector_norm(queries, dim=1)
        left = torch.ones(len(queries), points.shape[1] + 2, device=points.device)
        left[:, :-2], left[:, -2] = queries, asked.square() / -2
        right = torch.ones(len(points), points.shape[1] + 2, device=points.device)
        right[:, :-2], right[:, -1] = points, norms.square() / -2
        largest = (asked + norms.max()).square() / 2
        return cls(left, _padded(right), len(points), _eps(right) * largest)

    def among(self, count: int) -> Iterator[Candidates]:
        """Yield the candidates of each point among the others, if the points are the queries.

        Only scores of a point and a later point are computed; they serve both.
        """
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
            yield Candidates(rows, best.values[rows], best.indices[rows])
            later = block[:, size : n - start]
            if rows.stop == n:
                return
            if start == 0:
                values, found = later.T.contiguous().topk(min(count, len(later)))
                best.update(slice(size, n), values, found)
            else:
                best.update_columns(rows, later)

    def between(self, count: int) -> Iterator[Candidates]:
        """Yield the candidates of each query among all points."""
        size, memory = self._blocks()
        for start in range(0, len(self.left), size):
            rows = slice(start, min(start + size, len(self.left)))
            yield Candidates(rows, *_largest(self._block(rows, 0, memory), count))

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
    """Values and columns (m, count) of the largest scores (m, n).

    They lie in the groups of columns with the largest maxima, which are found faster.
    """
    groups = block.unflatten(1, (-1, _GROUP))
    if groups.shape[1] <= count:
        return block.topk(min(count, block.shape[1]))
    chosen = groups.amax(2).topk(count, sorted=False).indices
    kept = groups.gather(1, chosen[..., None].expand(-1, -1, _GROUP)).flatten(1)
    values, places = kept.topk(count)
    columns = chosen.gather(1, places // _GROUP) * _GROUP + places % _GROUP
    return values, columns

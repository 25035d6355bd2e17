"""Rows on the training device, and shuffled mini-batches of them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Inputs of the network, targets and weights of rows, on the training device."""

    X: Tensor  # (n, d) or (K, n, d); row numbers (n,) when a flow is trained
    y: Tensor | None
    weights: Tensor | None = None  # (n,) or (K, n)

    @property
    def n_rows(self) -> int:
        """Number of rows of each member."""
        return self.X.shape[-2] if self.X.ndim > 1 else len(self.X)

    def take(self, index: Tensor) -> "Rows":
        """Select rows by an index (m,), or (K, m) with the rows of each member."""
        y, weights = (None if part is None else part[index] for part in self[1:])
        return Rows(self.X[index], y, weights)


def n_batches(n_rows: int, batch_size: int) -> int:
    """Return the number of batches of at most `batch_size` rows, which have nearly equal sizes."""
    return math.ceil(n_rows / batch_size)


class Batches:
    """Shuffled batches of nearly equal size, sliced on the device.

    `index`, of shape (n,) for all members or (K, n), holds the row numbers to train on. There is
    one generator, or one for each member; each pass is shuffled again.
    """

    def __init__(
        self,
        rows: Rows,
        index: Tensor,
        batch_size: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.rows, self.index, self.generators = rows, index, list(generators)
        self.n_batches = n_batches(index.shape[-1], batch_size)

    def __iter__(self) -> Iterator[Rows]:
        n = self.index.shape[-1]
        orders = [torch.randperm(n, generator=each) for each in self.generators]
        order = torch.stack(orders).to(self.index.device)
        shuffled = self.index[order[0]] if self.index.ndim == 1 else self.index.gather(1, order)
        for part in shuffled.tensor_split(self.n_batches, dim=-1):
            yield self.rows.take(part)

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members."""
        if self.index.ndim == 2:
            self.index = self.index[members]
            self.generators = [self.generators[member] for member in members]

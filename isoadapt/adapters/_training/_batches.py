"""Rows on the training device, and shuffled batches of them."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Embeddings, or numbers that stand for them, targets and weights on the training device."""

    X: Tensor
    y: Tensor | None
    weights: Tensor | None = None

    @property
    def n_rows(self) -> int:
        """How many rows a member has."""
        return self.X.shape[-2] if self.X.ndim > 1 else len(self.X)

    def take(self, index: Tensor) -> "Rows":
        """Select rows.

        Parameters
        ----------
        index : Tensor of shape (m,) or (K, m)
            Which; of each member, if it has two axes.

        Returns
        -------
        Rows
            Those rows.
        """
        y, weights = (None if part is None else part[index] for part in self[1:])
        return Rows(self.X[index], y, weights)


class Batches:
    """Shuffled batches of nearly equal size, sliced on the device.

    Parameters
    ----------
    rows : Rows
        All rows there are.
    index : Tensor of shape (n,) or (K, n)
        Those to train on: the same for all members, or each member's own.
    batch_size : int
        Largest size of a batch.
    generators : sequence of torch.Generator
        One, or one for each member: they shuffle, anew in each pass.
    """

    def __init__(
        self,
        rows: Rows,
        index: Tensor,
        batch_size: int,
        generators: Sequence[torch.Generator],
    ) -> None:
        self.rows, self.index, self.generators = rows, index, list(generators)
        self.n_batches = math.ceil(index.shape[-1] / batch_size)

    def __iter__(self) -> Iterator[Rows]:
        n = self.index.shape[-1]
        orders = [torch.randperm(n, generator=each) for each in self.generators]
        order = torch.stack(orders).to(self.index.device)
        shuffled = self.index[order[0]] if self.index.ndim == 1 else self.index.gather(1, order)
        for part in shuffled.tensor_split(self.n_batches, dim=-1):
            yield self.rows.take(part)

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the members.

        Parameters
        ----------
        members : sequence of int
            Which.
        """
        if self.index.ndim == 2:
            self.index = self.index[members]
            self.generators = [self.generators[member] for member in members]

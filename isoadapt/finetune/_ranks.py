"""Points of all processes of a distributed run."""

from typing import Any

import torch
from torch import Tensor, distributed as dist


def is_distributed() -> bool:
    """Say whether there are other processes.

    Returns
    -------
    bool
        True inside ``torchrun`` with more than one.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gathered(rows: Tensor) -> Tensor:
    """Join the rows of all processes, in the order of their ranks.

    Every process computes the same penalty of what is returned, and the gradients of a
    distributed run are averaged: the gradient to a process' own rows is therefore multiplied by
    the number of processes, which makes the average that of a single process with all rows.

    Parameters
    ----------
    rows : Tensor of shape (n, ...)
        Own rows; n may differ between processes.

    Returns
    -------
    Tensor of shape (n_all, ...)
        All rows.
    """
    return _Gather.apply(rows) if is_distributed() else rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        sizes = [torch.zeros((), dtype=torch.long, device=rows.device) for _ in range(_world())]
        dist.all_gather(sizes, torch.tensor(len(rows), device=rows.device))
        counts = [int(size) for size in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        start = sum(counts[: dist.get_rank()])
        ctx.own = slice(start, start + len(rows))
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[ctx.own] * _world()


def _world() -> int:
    return dist.get_world_size()

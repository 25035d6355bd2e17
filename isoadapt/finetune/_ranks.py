"""Gathering of tensors from all processes of a distributed run."""

from typing import Any

import torch
from torch import Tensor, distributed as dist


def is_distributed() -> bool:
    """Return whether the process group has more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gathered(rows: Tensor) -> Tensor:
    """Concatenate the rows (n, ...) of all processes by rank; n may differ between processes.

    Every process computes the same penalty from these rows, and a distributed run averages the
    gradients. The gradient of a process' own rows is therefore multiplied by the number of
    processes, so that the average equals the gradient of a single process with all rows.
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

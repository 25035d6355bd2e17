"""Rows of all processes of a distributed run: their moments, and the vectors of an anchor."""

from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Subset

from isoadapt.geometry import Moments


def is_distributed() -> bool:
    """Return whether the process group has more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gathered(rows: Tensor) -> Tensor:
    """Concatenate the rows (n, ...) of all processes by rank; n may differ between processes."""
    return _Gather.apply(rows) if is_distributed() else rows


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        size = torch.tensor(len(rows), device=rows.device)
        sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
        dist.all_gather(sizes, size)
        counts = [int(each) for each in sizes]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        start = sum(counts[: dist.get_rank()])
        ctx.own = slice(start, start + len(rows))
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # All processes have this penalty of all rows, and their gradients will be averaged.
        return grad[ctx.own] * dist.get_world_size()


def sample_moments(trainer: Any, seed: int) -> Moments:
    """Compute the moments of the points of random training rows of all processes."""
    limit = -(-trainer.shrinkage_tokens // trainer.args.world_size)
    moments = Moments()
    with closing(_passes(trainer, _random_batches(trainer, seed), seed)) as passes:
        for points, _ in passes:
            moments.update(points[: limit - int(moments.count)])
            if moments.count >= limit:
                break
    if not is_distributed():
        return moments
    from accelerate.utils import gather_object

    total = Moments()
    for part in gather_object([moments]):
        total.merge(part)
    return total


def text_vectors(trainer: Any) -> tuple[Tensor, Tensor]:
    """Return keys (n,) of all distinct training texts in ascending order, and vectors (n, d)."""
    keys, batches = trainer._watch().text_keys, trainer.get_test_dataloader(trainer.train_dataset)
    passes = _passes(trainer, batches, trainer.args.seed)
    parts = zip(*((keys(inputs), points.float()) for points, inputs in passes), strict=True)
    texts, vectors = (gathered(torch.cat(part)) for part in parts)
    first = np.unique(texts.cpu(), return_index=True)[1]
    return texts[first], vectors[first]


@torch.no_grad()
def _passes(trainer: Any, batches: Any, seed: int) -> Generator[tuple[Tensor, Any], None, None]:
    """Yield the points of each batch in evaluation mode, and its inputs on the device."""
    model, device = trainer.accelerator.unwrap_model(trainer.model), trainer.args.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.eval()
        try:
            for batch in batches:
                inputs = trainer._prepare_inputs(batch)
                with trainer.compute_loss_context_manager(), trainer._watch() as watch:
                    outputs = model(**inputs, **watch.options)
                yield watch.points(outputs, inputs).values, inputs
        finally:
            model.train()


def _random_batches(trainer: Any, seed: int) -> Iterator[Any]:
    """Iterate over this process' share of the rows, in random order; a stream keeps its order."""
    dataset, args = trainer.train_dataset, trainer.args
    generator = torch.Generator().manual_seed(seed)
    if sized := hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset):
        order = torch.randperm(len(dataset), generator=generator).tolist()
        dataset = Subset(dataset, order[args.process_index :: args.world_size])
    loader = DataLoader(
        dataset,
        batch_size=args.eval_batch_size,
        collate_fn=trainer._get_collator_with_removed_columns(trainer.data_collator, "shrinkage"),
        generator=generator,
    )
    return iter(loader) if sized else islice(loader, args.process_index, None, args.world_size)

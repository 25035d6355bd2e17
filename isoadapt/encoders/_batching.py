"""Tokens to vectors: batches with a token budget, and the forward pass."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt._utils.threads import workers
from isoadapt.encoders._aligned import built
from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._pooling import ALIGNED, HEAD_INPUT, MODES, Pooling
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import Tokens

_HELD = 64  # batches of vectors left on the device before they are copied to the host
_CPU_TOKENS_PER_THREAD = 512
_AHEAD = 4  # batches that threads are given in advance
_LEAST_TEXTS = 16  # that two threads share
# In a batch of both, the first text is padded, also with a tokenizer of characters.
PAIR = Texts(["It was far.", "It was far, and then the road ran on under the trees by a river."])

Embed = Callable[[dict[str, Tensor]], Any]
Batch = tuple[NDArray[np.int64], Any]  # the numbers of its inputs (B,), and what Embed returned


def embed_batches(
    blocks: Iterable[Tokens], embed: Embed, batch_tokens: int, equal_lengths: bool
) -> Iterator[Batch]:
    """Yield batches of at most `batch_tokens`, padding included, halved when memory runs out."""
    for tokens in blocks:
        start = 0
        while start < len(tokens.order):
            stop = tokens.stop(start, batch_tokens, equal_lengths)
            try:
                embedded = embed(tokens.batch(start, stop))
            except torch.OutOfMemoryError:
                embedded = None  # the traceback keeps memory alive until the handler ends
            if embedded is None:
                batch_tokens = _halved(tokens, start, stop)
                continue
            yield tokens.order[start:stop], embedded
            start = stop


def embed_in_threads(
    blocks: Iterable[Tokens], embeds: Sequence[Embed], batch_tokens: int, equal_lengths: bool
) -> Generator[Batch, None, None]:
    """Yield batches, which functions with a common budget compute by turns, each in a thread."""
    if len(embeds) == 1:
        yield from embed_batches(blocks, embeds[0], batch_tokens, equal_lengths)
        return
    with workers(len(embeds)) as threads:
        turns, waiting = cycle(zip(threads, embeds, strict=True)), deque[Any]()

        def submit(batch: dict[str, Tensor]) -> Any:
            thread, embed = next(turns)
            return thread.submit(embed, batch)

        for tokens in blocks:
            n_tokens = int(tokens.lengths.sum())
            share = -(-n_tokens // (len(embeds) * -(-n_tokens // batch_tokens)))
            for batch in embed_batches([tokens], submit, share, equal_lengths):
                waiting.append(batch)
                if len(waiting) > _AHEAD:
                    rows, future = waiting.popleft()
                    yield rows, future.result()
        for rows, future in waiting:
            yield rows, future.result()


def write_vectors(
    batches: Iterable[Batch], out: NDArray[np.float32], progress: Callable[[int], Any]
) -> None:
    """Write the vectors of batches to `out` (n, d), and give `progress` the number of rows done."""
    held: list[Batch] = []  # so that an asynchronous device does not wait after each batch

    def fetch() -> None:
        """Copy the vectors that are still on the device to `out`."""
        for rows, vectors in held:
            out[rows] = vectors.cpu().numpy()
        held.clear()

    for rows, vectors in batches:
        # A copy, because a view would keep all hidden states in memory.
        held.append((rows, vectors.to(torch.float32, copy=True)))
        progress(len(rows))
        if len(held) >= _HELD:
            fetch()
    fetch()


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy a batch to a device, without waiting for work that a GPU still has to do."""
    if pinned := device.type == "cuda":
        batch = {name: values.pin_memory() for name, values in batch.items()}
    return {name: values.to(device, non_blocking=pinned) for name, values in batch.items()}


def _halved(tokens: Tokens, start: int, stop: int) -> int:
    """Return half the tokens of a batch that did not fit into memory; raise for a single row."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    longest = int(tokens.lengths[start])
    if stop - start == 1:
        raise torch.OutOfMemoryError(
            f"one text of {longest} tokens does not fit into the device's memory; lower "
            "max_length, or choose device='cpu' or dtype='bfloat16'"
        )
    return longest * (stop - start) // 2


def embed_batch(backbone: Backbone, pooling: Pooling, batch: dict[str, Tensor]) -> Tensor:
    """Compute the vectors (B, d) of a batch on the model's device in one pass."""
    inputs, mask = backbone.accepted(batch), batch["attention_mask"]
    if any(layer != -1 for _, layer in pooling.parts):
        inputs["output_hidden_states"] = True
    output = (backbone.headless if pooling.begins_with_head_input else backbone.base)(**inputs)

    def pooled(mode: str, layer: int) -> Tensor:
        """Compute the vectors (B, d) of one pooling."""
        if mode == HEAD_INPUT:
            return output.logits.float()
        if layer == -1:
            return MODES[mode](output.last_hidden_state.float(), mask)
        # A classifier that has a decoder too returns the states of both.
        states = getattr(output, "encoder_hidden_states", None) or output.hidden_states
        if mode == ALIGNED:
            return built(pooling.aligned, mask.device)(states, batch)
        # BigBird appends tokens to fill its blocks of sparse attention.
        return MODES[mode](states[layer][:, : mask.shape[1]].float(), mask)

    vectors = torch.cat([pooled(*part) for part in pooling.parts], dim=1)
    for step in pooling.steps:
        vectors = step(vectors)
    return vectors


@contextmanager
def explained_failure(backbone: Backbone, batch: dict[str, Tensor]) -> Iterator[None]:
    """Turn an error of a model's own code into a ValueError that describes the batch."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the code of a model may raise any exception
        rows, width = batch["input_ids"].shape
        raise ValueError(
            f"{type(backbone.model).__name__} fails on {rows} text(s) of {width} tokens "
            f"({type(error).__name__}: {error}); unless this says what to do, choose another one: "
            "architectures that only accept certain lengths or other inputs are not supported"
        ) from error


def token_budget(batch_tokens: int, device: torch.device) -> int:
    """Return the number of tokens in a batch, limited on a CPU to what suits its caches."""
    if device.type != "cpu":
        return batch_tokens
    return min(batch_tokens, _CPU_TOKENS_PER_THREAD * torch.get_num_threads())


def fills_two_threads(texts: Texts, device: torch.device, batch_tokens: int) -> bool:
    """Whether texts on a CPU give each of two threads, with half of torch's each, enough to do."""
    shared = device.type == "cpu" and torch.get_num_threads() % 2 == 0
    enough = len(texts) >= _LEAST_TEXTS and texts.lengths().sum() > 4 * batch_tokens
    return shared and bool(enough)

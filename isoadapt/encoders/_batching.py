"""Tokenisation, and batches with a token budget: rows sorted by length, with little padding."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._locks import FORWARD_LOCK
from isoadapt.encoders._texts import Texts
from isoadapt.encoders._tokenization import encoded_parts

_TOKEN_INPUTS = ("input_ids", "token_type_ids")
_BLOCK = 2048  # texts in a block of tokens
_HELD = 4096  # vectors left on the device before they are copied to the host


@dataclass(frozen=True)
class Tokens:
    """Tokenised inputs as n rows, longest first, concatenated without padding."""

    order: NDArray[np.int64]  # (n,): number of the input of each row
    lengths: NDArray[np.int64]  # (n,): tokens of each row, in falling order
    flat: Mapping[str, NDArray[np.int64]]  # for each model input, the values of all rows
    padding: Mapping[str, int]  # for each model input, the value that fills short rows
    left: bool  # whether padding is on the left

    def batch(self, start: int, stop: int) -> dict[str, Tensor]:
        """Return rows `start` to `stop` and their mask as padded int64 tensors (rows, longest)."""
        lengths = self.lengths[start:stop, None]
        width = lengths.max()
        positions = np.arange(width)
        mask = positions >= width - lengths if self.left else positions < lengths
        first = self.lengths[:start].sum()
        span = slice(first, first + lengths.sum())
        padded = {}
        for name, values in self.flat.items():
            rows = np.full(mask.shape, self.padding[name], dtype=np.int64)
            rows[mask] = values[span]
            padded[name] = torch.from_numpy(rows)
        return padded | {"attention_mask": torch.from_numpy(mask.astype(np.int64))}

    def stop(self, start: int, budget: int, equal_lengths: bool) -> int:
        """Return the end of the batch that begins at `start`, with at most `budget` padded tokens.

        A single row may exceed the budget. With `equal_lengths`, the batch also ends where the
        length changes.
        """
        stop = min(start + max(1, budget // int(self.lengths[start])), len(self.lengths))
        if equal_lengths:
            same = np.searchsorted(-self.lengths, -self.lengths[start], side="right")
            stop = min(stop, int(same))
        return stop


def tokenize(
    tokenizer: Any,
    texts: Texts,
    *,
    max_length: int | None,
    names: frozenset[str],
    counts_positions: bool,
) -> Tokens:
    """Tokenise all texts at once into rows of at least one token.

    A text without tokens becomes the tokenizer's first special token. `names` are the inputs that
    the model accepts. `counts_positions` says whether the model has learned positions counted from
    the left: padding on the left would shift them, so it is put on the right whatever the
    tokenizer's side.
    """
    wanted = [name for name in _TOKEN_INPUTS if name in names]
    filler = {"input_ids": _first_special(tokenizer), "token_type_ids": 0}
    lengths: list[int] = []
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in wanted}
    types = "token_type_ids" in wanted
    for columns in encoded_parts(
        tokenizer, texts, max_length, return_attention_mask=False, return_token_type_ids=types
    ):
        lengths += (max(1, len(row)) for row in columns["input_ids"])
        for name, values in parts.items():
            flat = chain.from_iterable(row or [filler[name]] for row in columns[name])
            values.append(np.fromiter(flat, np.int64))
    counts = np.array(lengths)
    order = np.argsort(-counts, kind="stable")
    places = _places(counts, order)
    padding = {"input_ids": _pad_id(tokenizer), "token_type_ids": tokenizer.pad_token_type_id}
    left = tokenizer.padding_side == "left" and not counts_positions
    joined = {name: np.concatenate(values)[places] for name, values in parts.items()}
    return Tokens(order, counts[order], joined, padding, left)


def model_inputs(backbone: Backbone, texts: Texts, max_length: int | None) -> Tokens:
    """Tokenise texts into all inputs that a model accepts."""
    return tokenize(
        backbone.tokenizer,
        texts,
        max_length=max_length,
        names=backbone.inputs,
        counts_positions=backbone.limit is not None,
    )


def _places(counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that put concatenated rows of `counts` values into another order."""
    shifts = (np.cumsum(counts) - counts)[order]
    counts = counts[order]
    return np.repeat(shifts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _first_special(tokenizer: Any) -> int:
    """Return the id of the tokenizer's first special token, or 0 if it has none."""
    return next(iter(tokenizer.all_special_ids), 0)


def _pad_id(tokenizer: Any) -> int:
    """Return the id used for padding: the padding token, else the end token, else 0."""
    if tokenizer.pad_token_id is not None:
        return tokenizer.pad_token_id
    return 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def tokenize_blocks(texts: Texts, read: Callable[[Texts], Tokens]) -> Generator[Tokens, None, None]:
    """Yield the tokens of blocks of 2,048 texts, long texts first, numbered as in `texts`.

    A thread tokenises the next block while the current one is processed.
    """
    longest_first = np.argsort(-texts.lengths(), kind="stable")

    def read_rows(rows: NDArray[np.int64]) -> Tokens:
        tokens = read(texts.take(rows))
        return replace(tokens, order=rows[tokens.order])

    first, *others = np.split(longest_first, range(_BLOCK, len(texts), _BLOCK))
    thread = ThreadPoolExecutor(max_workers=1)
    try:
        current = read_rows(first)
        for rows in others:
            following = thread.submit(read_rows, rows)
            yield current
            current = following.result()
        yield current
    finally:
        thread.shutdown(cancel_futures=True)


def embed_batches(
    blocks: Iterable[Tokens],
    embed: Callable[[dict[str, Tensor]], Tensor],
    *,
    batch_tokens: int,
    equal_lengths: bool,
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield for each batch the numbers of its inputs (B,) and what `embed` returns for it.

    `batch_tokens` includes padding and is halved whenever the device runs out of memory. If a
    single row does not fit, torch.OutOfMemoryError is raised.
    """
    for tokens in blocks:
        start = 0
        while start < len(tokens.order):
            stop = tokens.stop(start, batch_tokens, equal_lengths)
            embedded = _try(embed, tokens.batch(start, stop))
            if embedded is None:
                batch_tokens = _halved(tokens, start, stop)
                continue
            yield tokens.order[start:stop], embedded
            start = stop


def run_batches(
    blocks: Generator[Tokens, None, None],
    embed: Callable[[dict[str, Tensor]], Tensor],
    out: NDArray[np.float32],
    *,
    batch_tokens: int,
    equal_lengths: bool,
    progress: Callable[[int], Any],
) -> None:
    """Embed every row and write the vectors (n, d) to `out` in the order of the inputs.

    Results are copied from the device in groups, so that an asynchronous device does not wait after
    each batch. `blocks` is closed at the end, also after an error. `progress` is called with the
    number of rows done.
    """
    held: list[tuple[NDArray[np.int64], Tensor]] = []

    def fetch() -> None:
        """Copy the vectors that are still on the device to `out`."""
        for rows, vectors in held:
            out[rows] = vectors.cpu().numpy()
        held.clear()

    n_held = 0
    with closing(blocks):  # ends the thread of the generator
        for rows, vectors in embed_batches(
            blocks, embed, batch_tokens=batch_tokens, equal_lengths=equal_lengths
        ):
            # A copy, because a view would keep all hidden states in memory.
            held.append((rows, vectors.to(torch.float32, copy=True)))
            progress(len(rows))
            n_held += len(rows)
            if n_held >= _HELD:
                fetch()
                n_held = 0
        fetch()


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy a batch to a device, without waiting for work that a GPU still has to do."""
    if device.type != "cuda":
        return {name: values.to(device) for name, values in batch.items()}
    pinned = {name: values.pin_memory() for name, values in batch.items()}
    return {name: values.to(device, non_blocking=True) for name, values in pinned.items()}


def _try(embed: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor | None:
    """Embed a batch; return None if the device runs out of memory."""
    try:
        with FORWARD_LOCK.hold():
            return embed(batch)
    except torch.OutOfMemoryError:
        pass  # the traceback keeps memory alive until the handler ends
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None


def _halved(tokens: Tokens, start: int, stop: int) -> int:
    """Return half the tokens of a batch that did not fit into memory; raise for a single row."""
    longest = int(tokens.lengths[start])
    if stop - start == 1:
        raise torch.OutOfMemoryError(
            f"one text of {longest} tokens does not fit into the device's memory; lower "
            "max_length, or choose device='cpu' or dtype='bfloat16'"
        )
    return longest * (stop - start) // 2

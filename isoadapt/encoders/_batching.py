"""Batches with a budget of tokens: sorted by length, hardly any padding, no waiting in between."""

import threading
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

from isoadapt.encoders._texts import Texts

# A fast tokenizer keeps the truncation of its last call, so calls from two threads must not cross.
_TOKENIZER_LOCK = threading.Lock()
_TOKEN_INPUTS = ("input_ids", "token_type_ids")
_BLOCK = 2048  # texts tokenised at a time
_HELD = 4096  # vectors left on the device before it is waited for


@dataclass(frozen=True)
class Tokens:
    """Tokenised inputs, longest first, end to end.

    Parameters
    ----------
    order : ndarray of shape (n,)
        Which input each row is.
    lengths : ndarray of shape (n,)
        Tokens of each row, falling.
    flat : mapping of str to ndarray
        For each model input the values of all rows, one after the other.
    padding : mapping of str to int
        The value that fills up short rows.
    left : bool
        Whether padding goes to the left.
    """

    order: NDArray[np.int64]
    lengths: NDArray[np.int64]
    flat: Mapping[str, NDArray[np.int64]]
    padding: Mapping[str, int]
    left: bool

    def batch(self, start: int, stop: int) -> dict[str, Tensor]:
        """Give rows `start` to `stop` as padded tensors, with their attention mask.

        Parameters
        ----------
        start, stop : int
            First row, and the row after the last.

        Returns
        -------
        dict of str to Tensor
            Of shape (rows, longest), int64.
        """
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
        """Give the end of the batch that begins at `start`.

        Parameters
        ----------
        start : int
            First row.
        budget : int
            Tokens in a batch, padding included; a single row may exceed it.
        equal_lengths : bool
            Whether to stop where the length changes.

        Returns
        -------
        int
            The row after the last.
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
    """Tokenise all texts at once.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The tokenizer.
    texts : Texts
        Texts or pairs.
    max_length : int or None
        Longer inputs are truncated to so many tokens.
    names : frozenset of str
        The inputs that the model takes.
    counts_positions : bool
        Whether the model gives each position a vector of its own, beginning at the left. Padding
        on the left would shift them, so it goes to the right whatever the tokenizer's side.

    Returns
    -------
    Tokens
        Rows of one token or more: a text without tokens becomes the tokenizer's first special
        token.
    """
    wanted = [name for name in _TOKEN_INPUTS if name in names]
    with _TOKENIZER_LOCK:
        encoded = tokenizer(
            texts.first,
            texts.second,
            truncation=max_length is not None,
            max_length=max_length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids="token_type_ids" in wanted,
            verbose=False,
        )
    columns = {name: encoded[name] for name in wanted}
    lengths = np.fromiter(map(len, columns["input_ids"]), np.int64, len(texts))
    for i in np.flatnonzero(lengths == 0):
        lengths[i] = 1
        for name, rows in columns.items():
            rows[i] = [_first_special(tokenizer) if name == "input_ids" else 0]
    order = np.argsort(-lengths, kind="stable")
    total = int(lengths.sum())
    flat = {
        name: np.fromiter(chain.from_iterable(rows[i] for i in order.tolist()), np.int64, total)
        for name, rows in columns.items()
    }
    padding = {"input_ids": _pad_id(tokenizer), "token_type_ids": tokenizer.pad_token_type_id}
    left = tokenizer.padding_side == "left" and not counts_positions
    return Tokens(order, lengths[order], flat, padding, left)


def _first_special(tokenizer: Any) -> int:
    return next(iter(tokenizer.all_special_ids), 0)


def _pad_id(tokenizer: Any) -> int:
    if tokenizer.pad_token_id is not None:
        return tokenizer.pad_token_id
    return 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def tokenize_blocks(texts: Texts, read: Callable[[Texts], Tokens]) -> Generator[Tokens, None, None]:
    """Tokenise block by block, long texts first, each block while the one before is worked on.

    Parameters
    ----------
    texts : Texts
        Texts or pairs.
    read : callable
        From some of the texts to their tokens.

    Yields
    ------
    Tokens
        Of some 2,000 texts, numbered as in `texts`.
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
    """Run a model batch by batch.

    Parameters
    ----------
    blocks : iterable of Tokens
        The rows.
    embed : callable
        From a padded batch to a tensor.
    batch_tokens : int
        Tokens in a batch, padding included; halved whenever the device runs out of memory.
    equal_lengths : bool
        Whether a batch must hold rows of one length only.

    Yields
    ------
    rows : ndarray of shape (B,)
        Which inputs the batch holds.
    embedded : Tensor
        What `embed` gave.

    Raises
    ------
    torch.OutOfMemoryError
        If a single row does not fit.
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
    """Embed every row and put it where it belongs.

    A device that works asynchronously is not waited for after each batch.

    Parameters
    ----------
    blocks : generator of Tokens
        The rows; closed at the end, also after an error.
    embed : callable
        From a padded batch to vectors (B, d).
    out : ndarray of shape (n, d)
        Filled with the vectors, in the order of the inputs.
    batch_tokens : int
        As for :func:`embed_batches`.
    equal_lengths : bool
        As for :func:`embed_batches`.
    progress : callable
        Told the number of rows done.
    """
    held: list[tuple[NDArray[np.int64], Tensor]] = []

    def fetch() -> None:
        for rows, vectors in held:
            out[rows] = vectors.cpu().numpy()
        held.clear()

    n_held = 0
    with closing(blocks):  # ends its thread
        for rows, vectors in embed_batches(
            blocks, embed, batch_tokens=batch_tokens, equal_lengths=equal_lengths
        ):
            held.append((rows, vectors.to(torch.float32, copy=True)))  # not a view of all states
            progress(len(rows))
            n_held += len(rows)
            if n_held >= _HELD:
                fetch()
                n_held = 0
        fetch()


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Send a batch to where the model is, without waiting for what a GPU still has to do.

    Parameters
    ----------
    batch : mapping of str to Tensor
        On the CPU.
    device : torch.device
        Where to.

    Returns
    -------
    dict of str to Tensor
        On the device.
    """
    if device.type != "cuda":
        return {name: values.to(device) for name, values in batch.items()}
    pinned = {name: values.pin_memory() for name, values in batch.items()}
    return {name: values.to(device, non_blocking=True) for name, values in pinned.items()}


def _try(embed: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor | None:
    try:
        return embed(batch)
    except torch.OutOfMemoryError:
        pass  # outside the handler, so that the frames which hold the memory are gone
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None


def _halved(tokens: Tokens, start: int, stop: int) -> int:
    """Give half the tokens of a batch for which the memory did not suffice."""
    longest = int(tokens.lengths[start])
    if stop - start == 1:
        raise torch.OutOfMemoryError(
            f"one text of {longest} tokens does not fit into the device's memory; lower "
            "max_length, or choose device='cpu' or dtype='bfloat16'"
        )
    return longest * (stop - start) // 2

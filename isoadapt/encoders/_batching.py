"""Batches with a budget of tokens: sorted by length, hardly any padding."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


def run_batches(
    tokens: Tokens,
    embed: Callable[[dict[str, Tensor]], Tensor],
    out: NDArray[np.float32],
    *,
    batch_tokens: int,
    equal_lengths: bool,
    progress: Callable[[int], Any],
) -> None:
    """Embed every row and put it where it belongs.

    Parameters
    ----------
    tokens : Tokens
        The rows.
    embed : callable
        From a padded batch to vectors (B, d).
    out : ndarray of shape (n, d)
        Filled with the vectors, in the order of the inputs.
    batch_tokens : int
        Tokens in a batch, padding included; halved whenever the device runs out of memory.
    equal_lengths : bool
        Whether a batch must hold rows of one length only.
    progress : callable
        Told the number of rows done.

    Raises
    ------
    torch.OutOfMemoryError
        If a single row does not fit.
    """
    start = 0
    while start < len(tokens.order):
        stop = tokens.stop(start, batch_tokens, equal_lengths)
        vectors = _try(embed, tokens.batch(start, stop))
        if vectors is None:
            longest = int(tokens.lengths[start])
            if stop - start == 1:
                raise torch.OutOfMemoryError(
                    f"one text of {longest} tokens does not fit into the device's memory; lower "
                    "max_length, or choose device='cpu' or dtype='bfloat16'"
                )
            batch_tokens = longest * (stop - start) // 2
            continue
        out[tokens.order[start:stop]] = vectors.float().cpu().numpy()
        progress(stop - start)
        start = stop


def _try(embed: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor | None:
    try:
        return embed(batch)
    except torch.OutOfMemoryError:
        pass  # outside the handler, so that the frames which hold the memory are gone
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return None

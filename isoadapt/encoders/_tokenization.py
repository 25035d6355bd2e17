"""Texts to tokens: calls of tokenizers in bounded memory, and rows of tokens sorted by length."""

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt._utils.threads import Worker
from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._texts import Texts

_LOCK = threading.Lock()  # a fast tokenizer stores the truncation of its last call
_BLOCK = 2048  # texts in a block of tokens
_PART = 32  # texts that a tokenizer gets in one call

Columns = dict[str, list[list[int]]]  # token ids and other inputs of each row, by name


@dataclass(frozen=True)
class Tokens:
    """Tokenised inputs as n rows, longest first in each group, concatenated without padding."""

    order: NDArray[np.int64]  # (n,): number of the input of each row
    lengths: NDArray[np.int64]  # (n,): tokens of each row, falling in each group
    groups: NDArray[np.int64]  # (n,): number of end tokens, which must be equal in a batch
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
        """Return the end of the batch from `start`: `budget` padded tokens at most, or one row."""
        rows = slice(start, start + max(1, budget // int(self.lengths[start])))
        alike = self.groups[rows] == self.groups[start]
        if equal_lengths:
            alike &= self.lengths[rows] == self.lengths[start]
        return start + int(alike.sum())


def model_inputs(backbone: Backbone, texts: Texts, max_length: int | None) -> Tokens:
    """Tokenise all texts at once into all inputs that a model accepts, at least one token each."""
    tokenizer = backbone.tokenizer
    filler = {"input_ids": _filler(tokenizer), "token_type_ids": 0}
    columns: Columns = {name: [] for name in filler if name in backbone.inputs}
    types = "token_type_ids" in columns
    for part in encoded_parts(
        tokenizer, texts, max_length, return_attention_mask=False, return_token_type_ids=types
    ):
        for name, rows in columns.items():
            rows += (row or [filler[name]] for row in part[name])
    counts = np.array([len(row) for row in columns["input_ids"]])
    end = backbone.end_token
    ends = np.array([0 if end is None else row.count(end) for row in columns["input_ids"]])
    order = np.lexsort((-counts, ends))
    flat = {
        name: np.fromiter(chain.from_iterable(rows[i] for i in order), np.int64)
        for name, rows in columns.items()
    }
    fillers = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    padding = {"input_ids": next(i for i in fillers if i is not None)}
    padding["token_type_ids"] = tokenizer.pad_token_type_id
    # Padding on the left would shift learned positions, which are counted from the left.
    left = tokenizer.padding_side == "left" and backbone.limit is None
    return Tokens(order, counts[order], ends[order], flat, padding, left)


def _filler(tokenizer: Any) -> int:
    """Return the token that a text without tokens becomes."""
    return next(iter(tokenizer.all_special_ids), 0)


def stand_in(tokenizer: Any, text: str = "") -> str:
    """Return the text of the token that a text without tokens becomes, or "" if it has tokens."""
    with _LOCK:
        return "" if tokenizer(text)["input_ids"] else tokenizer.decode([_filler(tokenizer)])


def tokenize_blocks(texts: Texts, read: Callable[[Texts], Tokens]) -> Generator[Tokens, None, None]:
    """Yield tokens of blocks, long texts first, numbered as in `texts`; a thread is one ahead."""
    longest_first = np.argsort(-texts.lengths(), kind="stable")

    def read_rows(rows: NDArray[np.int64]) -> Tokens:
        tokens = read(texts.take(rows))
        return replace(tokens, order=rows[tokens.order])

    first, *others = np.split(longest_first, range(_BLOCK, len(texts), _BLOCK))
    with closing(Worker()) as thread:
        current = read_rows(first)
        for rows in others:
            following = thread.submit(read_rows, rows)
            yield current
            current = following.result()
        yield current


def encoded_parts(
    tokenizer: Any, texts: Texts, max_length: int | None, **options: Any
) -> Iterator[Columns]:
    """Tokenise a few texts at a time, as one call would, and yield lists of inputs, by name."""
    # Of a much longer text only the beginning is read, if it surely has all tokens that are kept.
    cut = texts.second is None and tokenizer.is_fast and tokenizer.truncation_side == "right"
    size = 512 + 32 * max_length if cut and max_length is not None else sys.maxsize
    for start in range(0, len(texts), _PART):
        part = texts.take(range(start, min(start + _PART, len(texts))))
        short = [_beginning(text, size) for text in part.first]
        columns, counts = _encode(tokenizer, Texts(short, part.second), max_length, **options)
        for i, text in enumerate(part.first):
            if len(short[i]) < len(text) and counts[i] < 2 * (max_length or 0):
                whole, _ = _encode(tokenizer, part.take([i]), max_length, **options)
                for name, values in columns.items():
                    values[i] = whole[name][0]
        yield columns


def _beginning(text: str, size: int) -> str:
    """Return a text of more than `size` characters only up to the last white space in these."""
    words = text[:size].rsplit(None, 1) if len(text) > size else ()
    return words[0] if len(words) == 2 else text


def _encode(
    tokenizer: Any, texts: Texts, max_length: int | None, **options: Any
) -> tuple[Columns, list[int]]:
    """Return the tokens of texts, and how many each has before it is truncated."""
    # Truncation by a fast tokenizer computes every combination of the parts that it removes from a
    # pair, which takes gigabytes for two texts of 36,000 words.
    with _LOCK:
        encoded = tokenizer(
            texts.first,
            texts.second,
            truncation=max_length is not None and not tokenizer.is_fast,
            max_length=max_length,
            padding=False,
            verbose=False,
            **options,
        )
    counts = [*map(len, encoded["input_ids"])]
    left = tokenizer.truncation_side == "left"
    for i, count in enumerate(counts):
        if max_length is not None and count > max_length:
            kept = _kept(encoded.sequence_ids(i), max_length, left)
            for values in encoded.values():
                values[i] = [values[i][place] for place in kept]
    return dict(encoded), counts


def _kept(origin: list[int | None], max_length: int, left: bool) -> list[int]:
    """Places of the tokens kept if the longer text, 0 or 1, is truncated first; None is special."""
    kept, *sides = ([i for i, each in enumerate(origin) if each == of] for of in (None, 0, 1))
    first, second = map(len, sides)
    room = max(0, max_length - len(kept))
    fewer = min(first, second, room // 2)
    numbers = (room - fewer, fewer) if first > second else (fewer, room - fewer)
    for places, number in zip(sides, numbers, strict=True):
        kept += places[len(places) - number :] if left else places[:number]
    return sorted(kept)

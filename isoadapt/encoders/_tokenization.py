"""Texts to tokens: calls of tokenizers in bounded memory, and rows of tokens sorted by length."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._texts import Texts

_TOKEN_INPUTS = ("input_ids", "token_type_ids")
_LOCK = threading.Lock()  # a fast tokenizer stores the truncation of its last call
_BLOCK = 2048  # texts in a block of tokens
_CHARACTERS = 2**19  # characters that a tokenizer gets in one call

Columns = dict[str, list[list[int]]]  # token ids and other inputs of each row, by name


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
    filler = {"input_ids": next(iter(tokenizer.all_special_ids), 0), "token_type_ids": 0}
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


def cased(texts: Texts, tokenizer: Any, lowercase: bool) -> Texts:
    """Return the texts, in lower case except for special tokens if `lowercase`."""
    return texts.lower(tokenizer.all_special_tokens) if lowercase else texts


def model_inputs(backbone: Backbone, texts: Texts, max_length: int | None) -> Tokens:
    """Tokenise texts into all inputs that a model accepts."""
    return tokenize(
        backbone.tokenizer,
        texts,
        max_length=max_length,
        names=backbone.inputs,
        counts_positions=backbone.limit is not None,
    )


def truncation(
    backbone: Backbone, max_length: int | None, default: int | None, pairs: bool
) -> int | None:
    """Return the number of tokens that inputs are truncated to; None if there is no limit.

    `default` is the length that the pooling states, which goes before that of the tokenizer.
    """
    if max_length is None and default is not None:
        return min(default, backbone.limit or default)
    if max_length is None:
        return backbone.default_length
    if backbone.limit is not None and max_length > backbone.limit:
        raise ValueError(
            f"max_length={max_length}, but the model has positions for {backbone.limit} "
            f"tokens; choose at most {backbone.limit}, or None"
        )
    special = backbone.tokenizer.num_special_tokens_to_add(pair=pairs)
    if max_length <= special:
        raise ValueError(
            f"max_length={max_length} leaves no room for text besides {special} special tokens; "
            f"choose {special + 1} or more"
        )
    return max_length


def _places(counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that put concatenated rows of `counts` values into another order."""
    shifts = (np.cumsum(counts) - counts)[order]
    counts = counts[order]
    return np.repeat(shifts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


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


def encoded_parts(
    tokenizer: Any, texts: Texts, max_length: int | None, **options: Any
) -> Iterator[Columns]:
    """Tokenise a few texts at a time, and yield lists of token ids and other inputs, by name.

    The tokens are those of one call for all texts. The memory that is used at a time does not grow
    with the number of texts. Of a text that is much longer than `max_length`, only the beginning
    is tokenised, provided that the rest cannot affect the tokens that are kept.
    """
    if max_length is None or texts.second is None or not tokenizer.is_fast:
        yield from _beginnings(tokenizer, texts, max_length, **options)
        return
    for rows in _parts(texts.lengths()):
        yield _truncated_pairs(tokenizer, texts.take(rows), max_length, **options)


def _truncated_pairs(tokenizer: Any, pairs: Texts, max_length: int, **options: Any) -> Columns:
    """Tokenise whole pairs, and then remove tokens of the longer text first.

    A fast tokenizer removes the same tokens, but it also computes every combination of the parts
    that it removes from both texts, which takes gigabytes for two texts of 36,000 words.
    """
    encoded = _call(tokenizer, pairs, None, **options)
    for i in (i for i, row in enumerate(encoded["input_ids"]) if len(row) > max_length):
        origin = np.array(encoded.sequence_ids(i), dtype=float)  # NaN for special tokens
        sides = [np.flatnonzero(origin == side) for side in (0, 1)]
        first, second = map(len, sides)
        room = max_length - (len(origin) - first - second)
        fewer = min(first, second, room // 2)
        numbers = (room - fewer, fewer) if first > second else (fewer, room - fewer)
        kept = np.isnan(origin)
        for places, number in zip(sides, numbers, strict=True):
            left = tokenizer.truncation_side == "left"
            kept[places[len(places) - number :] if left else places[:number]] = True
        for values in encoded.values():
            values[i] = [value for value, keep in zip(values[i], kept, strict=True) if keep]
    return dict(encoded)


def _beginnings(
    tokenizer: Any, texts: Texts, max_length: int | None, **options: Any
) -> Iterator[Columns]:
    """Tokenise a few texts at a time, as far as they are kept if this can be determined."""
    lengths = _lengths(tokenizer, texts, max_length)
    for rows in _parts(lengths):
        part = texts.take(rows)
        cut = [i for i, row in enumerate(rows) if lengths[row] < len(texts.first[row])]
        for i in cut:
            part.first[i] = part.first[i][: lengths[rows[i]]]
        columns = dict(
            _call(tokenizer, part, max_length, return_offsets_mapping=bool(cut), **options)
        )
        offsets = columns.pop("offset_mapping", [])
        for i in cut:
            if not _is_enough(part.first[i], offsets[i], max_length):
                whole = _call(tokenizer, texts.take([rows[i]]), max_length, **options)
                for name, values in columns.items():
                    values[i] = whole[name][0]
        yield columns


def _call(tokenizer: Any, texts: Texts, max_length: int | None, **options: Any) -> Any:
    """Call a tokenizer with or without truncation."""
    with _LOCK:
        return tokenizer(
            texts.first,
            texts.second,
            truncation=max_length is not None,
            max_length=max_length,
            padding=False,
            verbose=False,
            **options,
        )


def _lengths(tokenizer: Any, texts: Texts, max_length: int | None) -> NDArray[np.int64]:
    """Return for each input how many characters are tokenised: all, or those up to a space."""
    lengths = texts.lengths()
    if max_length is None or texts.second is not None:
        return lengths
    if not tokenizer.is_fast or tokenizer.truncation_side != "right":
        return lengths
    size = 512 + 32 * max_length
    for i in np.flatnonzero(lengths > size):
        words = texts.first[i][:size].rsplit(None, 1)
        if len(words) == 2:
            lengths[i] = len(words[0])
    return lengths


def _is_enough(text: str, offsets: list[tuple[int, int]], max_length: int | None) -> bool:
    """Return whether the kept tokens end so early that the text after `text` does not affect them.

    Tokenizers split at white space. The tokens must end in the first half of `text`, before the
    last white space.
    """
    end = max((stop for _, stop in offsets), default=0)
    return len(offsets) == max_length and end <= len(text) // 2 and len(text[end:].split()) > 1


def _parts(lengths: NDArray[np.int64]) -> Iterator[range]:
    """Split inputs of given lengths into parts of at most `_CHARACTERS` characters or one input."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _CHARACTERS, side="right")))
        yield range(start, stop)
        start = stop

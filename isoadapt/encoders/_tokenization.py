"""Texts to tokens: calls of tokenizers in bounded memory, and rows of tokens sorted by length."""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

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
_ALONE = {
    "add_special_tokens": False,
    "return_attention_mask": False,
    "return_token_type_ids": False,
}

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
    is tokenised, provided that the rest cannot affect the tokens that are kept. The two texts of a
    pair are tokenised separately if they may have to be truncated. Otherwise a fast tokenizer would
    also compute every combination of the remaining parts of both texts.
    """
    lengths = texts.lengths()
    frame = None
    if max_length is not None and texts.second is not None and lengths.max() > max_length:
        frame = _frame(tokenizer, max_length, options)
    if max_length is None or frame is None:
        yield from _beginnings(tokenizer, texts, max_length, **options)
        return
    for rows in _parts(lengths):
        part, long = texts.take(rows), lengths[rows.start : rows.stop] > max_length
        columns = _joined(tokenizer, part.take(np.flatnonzero(long)), frame)
        if not long.all():
            found = _call(tokenizer, part.take(np.flatnonzero(~long)), max_length, **options)
            sources = {name: (iter(values), iter(found[name])) for name, values in columns.items()}
            columns = {
                name: [next(joined if of_long else short) for of_long in long]
                for name, (joined, short) in sources.items()
            }
        yield columns


class _Frame(NamedTuple):
    """The special tokens that a tokenizer adds to a pair, and the side on which it truncates."""

    pieces: dict[str, list[list[int]]]  # by name: before, between and after the two texts
    values: dict[str, tuple[int, int]]  # of the tokens of both texts, by name; not the token ids
    room: int  # tokens of both texts that are kept
    left: bool  # whether the end of a text is kept

    def join(self, name: str, first: list[int], second: list[int]) -> list[int]:
        """Return an input of the model for a pair with the given token ids."""
        before, between, after = self.pieces[name]
        if name != "input_ids":
            values = self.values[name]
            first, second = len(first) * [values[0]], len(second) * [values[1]]
        return [*before, *first, *between, *second, *after]

    def cut(self, ids: list[int], length: int) -> list[int]:
        """Truncate the token ids of a text."""
        return ids[len(ids) - length :] if self.left else ids[:length]


def _frame(tokenizer: Any, max_length: int, options: dict[str, Any]) -> _Frame | None:
    """Read the special tokens from a short pair; return None for a tokenizer of unusual form."""
    if not tokenizer.is_fast:
        return None
    with _LOCK:
        encoded = tokenizer(["a"], ["a"], truncation=False, padding=False, **options)
        origin = encoded.sequence_ids(0)
    n_special, sizes = origin.count(None), (origin.count(0), origin.count(1))
    room = max_length - n_special
    if n_special != tokenizer.num_special_tokens_to_add(pair=True) or room < 1 or not all(sizes):
        return None
    starts = origin.index(0), origin.index(1)
    stops = starts[0] + sizes[0], starts[1] + sizes[1]
    if stops[0] > starts[1] or None in origin[slice(starts[0], stops[0])]:
        return None
    pieces = {
        name: [row[: starts[0]], row[stops[0] : starts[1]], row[stops[1] :]]
        for name, (row,) in encoded.items()
    }
    values = {name: (row[starts[0]], row[starts[1]]) for name, (row,) in encoded.items()}
    return _Frame(pieces, values, room, tokenizer.truncation_side == "left")


def _joined(tokenizer: Any, pairs: Texts, frame: _Frame) -> Columns:
    """Tokenise the texts of pairs separately, truncate the longer ones first, and join them."""
    columns: Columns = {name: [] for name in frame.pieces}
    if not len(pairs):
        return columns
    sides = [Texts(side) for side in (pairs.first, pairs.second or [])]
    ids = [_ids(tokenizer, side, frame.room) for side in sides]
    counts = np.array([[len(row) for row in side] for side in ids])
    if frame.room % 2:  # the text with more tokens keeps one more than the other
        unknown = np.flatnonzero((counts == frame.room).all(axis=0))
        for side, texts in enumerate(sides):
            whole = _ids(tokenizer, texts.take(unknown), None)
            counts[side, unknown] = [len(row) for row in whole]
    for i, (first, second) in enumerate(zip(*ids, strict=True)):
        kept = _kept(int(counts[0, i]), int(counts[1, i]), frame.room)
        row = frame.cut(first, kept[0]), frame.cut(second, kept[1])
        for name, values in columns.items():
            values.append(frame.join(name, *row))
    return columns


def _ids(tokenizer: Any, texts: Texts, max_length: int | None) -> list[list[int]]:
    """Return the token ids of texts without special tokens."""
    parts = _beginnings(tokenizer, texts, max_length, **_ALONE)
    return [row for columns in parts for row in columns["input_ids"]]


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept if the longer one is truncated first."""
    if first + second <= room:
        return first, second
    fewer = min(first, second, room // 2)
    return (room - fewer, fewer) if first > second else (fewer, room - fewer)


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
        columns = _call(tokenizer, part, max_length, return_offsets_mapping=bool(cut), **options)
        offsets = columns.pop("offset_mapping", [])
        unsure = [i for i in cut if not _is_enough(part.first[i], offsets[i], max_length)]
        whole = texts.take(rows[i] for i in unsure)
        for places in _parts(whole.lengths()):
            found = _call(tokenizer, whole.take(places), max_length, **options)
            for name, values in columns.items():
                for place, value in zip(places, found[name], strict=True):
                    values[unsure[place]] = value
        yield columns


def _call(
    tokenizer: Any, texts: Texts, max_length: int | None, **options: Any
) -> dict[str, list[Any]]:
    """Call a tokenizer with or without truncation."""
    with _LOCK:
        encoded = tokenizer(
            texts.first,
            texts.second,
            truncation=max_length is not None,
            max_length=max_length,
            padding=False,
            verbose=False,
            **options,
        )
    return dict(encoded)


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

"""Conversion of texts, or pairs of texts, from any supported container to lists."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.containers import is_missing, is_table, table_columns
from isoadapt._utils.messages import shown

_ACCEPTED = (
    "pass a list, array or Series of str, or pairs: a list of 2-tuples of str, an array of shape "
    "(n, 2) or a two-column DataFrame"
)


@dataclass(frozen=True)
class Texts:
    """Texts to encode: `first` alone, or pairs of `first` and `second`."""

    first: list[str]
    second: list[str] | None = None

    def __len__(self) -> int:
        return len(self.first)

    def unique(self) -> tuple["Texts", NDArray[np.int64]]:
        """Return the distinct inputs in order of appearance, and the index of each input (n,)."""
        index: dict[Any, int] = {}
        items: Iterable[Any] = self.first
        if self.second is not None:
            items = zip(self.first, self.second, strict=True)
        inverse = np.fromiter(
            (index.setdefault(item, len(index)) for item in items), np.int64, len(self)
        )
        if self.second is None:
            return Texts(list(index)), inverse
        return Texts([pair[0] for pair in index], [pair[1] for pair in index]), inverse

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of characters of each input (n,), over both texts of a pair."""
        lengths = np.fromiter(map(len, self.first), np.int64, len(self))
        if self.second is None:
            return lengths
        return lengths + np.fromiter(map(len, self.second), np.int64, len(self))

    def take(self, places: Iterable[int]) -> "Texts":
        """Return the inputs at the given positions."""
        places = list(places)
        second = None if self.second is None else [self.second[i] for i in places]
        return Texts([self.first[i] for i in places], second)

    def lower(self, special: Iterable[str]) -> "Texts":
        """Return the texts in lower case, except for special tokens."""
        kept = re.compile("|".join([f"({re.escape(token)})" for token in special] or ["(?!)"]))

        def lowered(text: str) -> str:
            """Return a text in lower case, each character alone, as tokenizers do."""
            ends = [(0, 0), *(found.span() for found in kept.finditer(text)), (len(text),) * 2]
            return "".join(
                text[start:stop] + text[stop:following].replace("Σ", "σ").lower()
                for (start, stop), (following, _) in pairwise(ends)
            )

        first, second = self.first, self.second
        return Texts([*map(lowered, first)], None if second is None else [*map(lowered, second)])


def as_texts(X: Any) -> Texts:
    """Read texts or pairs of texts from a container.

    Texts are a list, tuple, array of shape (n,) or (n, 1), Series or pyarrow column of str. Pairs
    are a list of 2-tuples or an array of shape (n, 2). A DataFrame or pyarrow table has one or two
    columns. Anything else raises TypeError, and no texts or invalid Unicode raise ValueError.
    """
    rows = _rows(X)
    if not rows:
        raise ValueError("X has no texts; pass at least one")
    if isinstance(rows[0], str):
        if set(map(type, rows)) != {str}:
            context = ", while X[0] is a text"
            rows = [_text(row, f"X[{i}]", context) for i, row in enumerate(rows)]
        _check_unicode(rows)
        return Texts(rows)
    if not _is_pair(rows[0]):
        raise TypeError(_type_message(rows[0], "X[0]"))
    return _pairs(rows)


def _rows(X: Any) -> list[Any]:
    """Return the elements of a container as a list."""
    if isinstance(X, str | bytes):
        raise TypeError(
            f"X is a single {type(X).__name__} ({shown(X)}); pass a list of texts: [text]"
        )
    if is_table(X):
        return _table_rows(X)
    if hasattr(X, "column_name") and hasattr(X, "__len__"):  # a column of a datasets.Dataset
        return _rows(X[:])
    shape = getattr(X, "shape", None)
    if shape is not None and not (len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, 2))):
        raise TypeError(f"X is a {type(X).__name__} of shape {tuple(shape)}; {_ACCEPTED}")
    if shape is not None and len(shape) == 2 and shape[1] == 1:
        X = X.reshape(-1)
    if hasattr(X, "dask") or not hasattr(X, "__len__"):  # streams and lazy containers
        way_out = "pass list(X)" if isinstance(X, Iterator) else _ACCEPTED
        if hasattr(X, "dask"):
            way_out = "pass X.compute(), or a list of the texts of each partition"
        raise TypeError(f"X is a {type(X).__name__}; {way_out}")
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(X, method):
            return getattr(X, method)()
    if isinstance(X, Sequence):
        return list(X)
    raise TypeError(f"X is a {type(X).__name__}; {_ACCEPTED}")


def _table_rows(X: Any) -> list[Any]:
    """Return the rows of a table: texts, or pairs if it has two columns."""
    names, columns = table_columns(X, "X")
    rows = [_rows(column) for column in columns[:2]]
    kinds = {isinstance(each[0], str) or is_missing(each[0]) for each in rows if each}
    if len(names) not in (1, 2) or len(kinds) > 1:
        raise TypeError(
            f"X is a {type(X).__name__} with {len(names)} columns ({', '.join(names)}); choose one "
            "column of texts, or two for pairs"
        )
    return rows[0] if len(names) == 1 else list(zip(*rows, strict=True))


def _pairs(rows: list[Any]) -> Texts:
    """Check that all rows are pairs of texts."""
    first, second = [], []
    for i, row in enumerate(rows):
        if not _is_pair(row):
            raise TypeError(_type_message(row, f"X[{i}]", ", while X[0] is a pair"))
        if len(row) != 2:
            raise TypeError(f"X[{i}] has {len(row)} elements; a pair of texts has 2")
        first.append(_text(row[0], f"X[{i}][0]"))
        second.append(_text(row[1], f"X[{i}][1]"))
    _check_unicode(first, "[0]")
    _check_unicode(second, "[1]")
    return Texts(first, second)


def _check_unicode(texts: list[str], place: str = "") -> None:
    """Raise ValueError for a lone surrogate, which no tokenizer accepts."""
    for i, text in enumerate(texts):
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"X[{i}]{place} holds {text[error.start]!r} at position {error.start}, which is "
                "half of a surrogate pair; texts must be valid Unicode; join the halves, and "
                "replace lone ones by U+FFFD, with "
                "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
            ) from error


def _is_pair(row: Any) -> bool:
    """Return whether a row is a sequence, as a pair is, whatever its length."""
    return isinstance(row, tuple | list) or (isinstance(row, np.ndarray) and row.ndim == 1)


def _text(value: Any, where: str, context: str = "") -> str:
    """Return a text as str; raise TypeError for another type."""
    if not isinstance(value, str):
        raise TypeError(_type_message(value, where, context))
    return str(value)


def _type_message(value: Any, where: str, context: str = "") -> str:
    """Return the message for a value that is not a text."""
    if _is_pair(value):
        return f"{where} is a {type(value).__name__} of {len(value)}{context}; {_ACCEPTED}"
    if is_missing(value):
        return f"{where} is {value}, a missing text; drop it or replace it by ''"
    return f"{where} is a {type(value).__name__} ({shown(value)}){context}; {_ACCEPTED}"

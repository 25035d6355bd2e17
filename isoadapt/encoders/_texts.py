"""Conversion of texts, or pairs of texts, from any supported container to lists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoadapt._utils.containers import table_columns
from isoadapt._utils.messages import listed, shown

_ACCEPTED = (
    "pass a list, array, Series or column of str, or pairs: a list of 2-tuples of str, an array of "
    "shape (n, 2) or a DataFrame of two columns of texts; collect a lazy one first"
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
        numbers = [index.setdefault(item, len(index)) for item in self.items()]
        inverse = np.array(numbers, np.int64)
        return self.take(np.unique(inverse, return_index=True)[1]), inverse

    def items(self) -> list[Any]:
        """Return the texts, or the pairs as tuples."""
        return self.first if self.second is None else [*zip(self.first, self.second, strict=True)]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of characters of each input (n,), over both texts of a pair."""
        sides = [self.first] if self.second is None else [self.first, self.second]
        return np.sum([[*map(len, side)] for side in sides], axis=0)

    def take(self, places: Iterable[int]) -> "Texts":
        """Return the inputs at the given positions."""
        places = list(places)
        second = None if self.second is None else [self.second[i] for i in places]
        return Texts([self.first[i] for i in places], second)


def as_texts(X: Any) -> Texts:
    """Read texts or pairs; raise TypeError for others, ValueError for none or invalid Unicode."""
    rows = _rows(X)
    if not rows:
        raise ValueError("X has no texts; pass at least one")
    if not _is_pair(rows[0]):
        return Texts([_text(row, i) for i, row in enumerate(rows)])
    if wrong := [i for i, row in enumerate(rows) if not _is_pair(row) or len(row) != 2]:
        raise TypeError(_type_message(rows[wrong[0]], f"X[{wrong[0]}]"))
    first, second = ([_text(row[k], i, f"[{k}]") for i, row in enumerate(rows)] for k in (0, 1))
    return Texts(first, second)


def _rows(X: Any) -> list[Any]:
    """Return the rows of a container as a list: texts, or pairs of a table with two columns."""
    if (table := table_columns(X, "X")) is not None:
        names, columns = table
        if len(names) not in (1, 2):
            raise TypeError(f"X is a table with the columns {listed(names)}; {_ACCEPTED}")
        rows = [_rows(column) for column in columns]
        return rows[0] if len(rows) == 1 else list(zip(*rows, strict=True))
    if hasattr(X, "column_name") and hasattr(X, "__len__"):  # a column of a datasets.Dataset
        X = X[:]
    shape, kind = getattr(X, "shape", (0,)), f"X is a {type(X).__name__}"
    if len(shape) != 1 and shape[1:] not in ((1,), (2,)):
        raise TypeError(f"{kind} of shape {tuple(shape)}; {_ACCEPTED}")
    if hasattr(X, "__len__") and not hasattr(X, "dask"):  # no streams and lazy containers
        X = X.reshape(-1) if shape[1:] == (1,) else X
        for method in ("tolist", "to_list", "to_pylist"):
            if hasattr(X, method):
                return getattr(X, method)()
        if isinstance(X, Sequence) and not isinstance(X, str | bytes):
            return list(X)
    raise TypeError(f"{kind}; {_ACCEPTED}")


def _is_pair(row: Any) -> bool:
    """Return whether a row is a sequence, as a pair is, whatever its length."""
    return isinstance(row, tuple | list) or (isinstance(row, np.ndarray) and row.ndim == 1)


def _text(value: Any, row: int, side: str = "") -> str:
    """Return a text as str; raise for another type, and for half of a surrogate pair."""
    if not isinstance(value, str):
        raise TypeError(_type_message(value, f"X[{row}]{side}"))
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"X[{row}]{side} holds {value[error.start]!r} at position {error.start}, which is half "
            "of a surrogate pair and no valid Unicode; replace it with "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')"
        ) from error
    return str(value)


def _type_message(value: Any, where: str) -> str:
    """Return the message for a value that is not a text or a pair."""
    if pd.isna(value) is True:
        return f"{where} is {value}, a missing text; drop it or replace it by ''"
    what = f" of {len(value)}" if _is_pair(value) else f" ({shown(value)})"
    return f"{where} is a {type(value).__name__}{what}; {_ACCEPTED}"

"""Texts and labels from tab- or comma-separated files and from Parquet."""

import codecs
import csv
import io
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt.datasets._parquet import (
    listed,
    parquet_rows,
    read_parquet,
    refuse_twins,
    shortened,
)

_PAIR = ("sentence1", "sentence2")
_SINGLE = "sentence"
_LABEL = "label"

Row = tuple[int, list[str]]  # number of the line it ends on, and its fields
Texts = list[str] | list[tuple[str, str]]


def load_table(
    path: str | os.PathLike[str],
    *,
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = _LABEL,
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from a TSV or CSV file with a header line, or from Parquet.

    Text files are UTF-8. In a ``.tsv`` file, as those of GLUE, a quotation mark is an ordinary
    character; in a ``.csv`` file it quotes fields that hold commas or line breaks.

    Parameters
    ----------
    path : str or path-like
        The file, named ``*.tsv``, ``*.csv`` or ``*.parquet``.
    text : str or pair of str, default=None
        Column of the texts, or the two columns of pairs. None: "sentence1" and "sentence2" if
        the file has both, else "sentence", else the only column besides the labels.
    label : str or None, default="label"
        Column of the labels. A file without a column "label" is read as one without labels; any
        other name must be there. None: no labels are read.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        One for each row.
    labels : ndarray of shape (n,), or None
        Of int64 if all labels are integers, float64 if all are numbers, else str.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ImportError
        If the file is a Parquet file, and pandas or pyarrow is not installed.
    ValueError
        If the file is of another kind or damaged, not UTF-8, empty or without rows, if a row has
        too few or too many fields or no label or one that is a number but not finite, or if a
        column is missing, holds neither strings nor numbers, or cannot be told.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from isoadapt.datasets import load_table
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "train.tsv"
    ...     _ = file.write_text("sentence\\tlabel\\nHe sings.\\t1\\nHim sings.\\t0\\n")
    ...     load_table(file)
    (['He sings.', 'Him sings.'], array([1, 0]))
    """
    path = Path(path).expanduser()
    header, read = _open(path)
    text_at, label_at = _columns(path, header, text, label)
    table = read(text_at if label_at is None else [*text_at, label_at])
    if not table:
        raise ValueError(f"{path} holds a header line only; at least one row is needed")
    columns = [[fields[i] for _, fields in table] for i in range(len(text_at))]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return texts, None if label_at is None else _labels(path, table)


def _open(path: Path) -> tuple[list[str], Callable[[list[int]], list[Row]]]:
    """Give the names of the columns, and a function that reads some of them."""
    suffix = path.suffix.lower()
    if suffix not in (".tsv", ".csv", ".parquet"):
        raise ValueError(
            f"path={str(path)!r} ends in {suffix!r}; tables are read from .tsv and .csv files, "
            "UTF-8, and from .parquet files: convert it"
        )
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r} is no file; check the name")
    if suffix == ".parquet":
        content = read_parquet(path)
        return list(content.column_names), partial(parquet_rows, path, content)
    rows = list(_rows(path))
    if not rows:
        raise ValueError(f"{path} is empty; a header line and at least one row are needed")
    (_, header), *table = rows
    refuse_twins(path, header)
    return header, partial(_picked, path, header, table)


def _rows(path: Path) -> Iterator[Row]:
    """Read the rows of a text file that are not blank."""
    lines = _decoded(path)
    if path.suffix.lower() == ".tsv":
        for number, line in enumerate(lines, start=1):
            if line != "\n":
                yield number, line.removesuffix("\n").split("\t")
        return
    reader = csv.reader(lines, strict=True)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: {error}; check the quotation marks, or save it as "
            ".tsv, which has no quoting"
        ) from error


def _decoded(path: Path) -> io.StringIO:
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    nul = data.find(b"\0")
    if nul >= 0:
        raise ValueError(
            f"{path}, line {_line(data, nul)}: byte 0x00 is not text; save the file as UTF-8 "
            "(UTF-16 has such bytes)"
        )
    try:
        return io.StringIO(data.decode("utf-8"), newline=None)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {_line(data, error.start)}: byte 0x{data[error.start]:02x} is not "
            "UTF-8; save the file as UTF-8"
        ) from error


def _line(data: bytes, at: int) -> int:
    """Number of the line that a byte is on."""
    return data.count(b"\n", 0, at) + 1


def _columns(
    path: Path, header: list[str], text: Any, label: str | None
) -> tuple[list[int], int | None]:
    """Find the columns of the texts and of the labels."""
    if label is not None and label not in header and label != _LABEL:
        raise ValueError(f"label={label!r} is no column of {path}; it has {listed(header)}")
    label_at = header.index(label) if label in header else None
    if text is None:
        return _guess(path, header, label), label_at
    names = [text] if isinstance(text, str) else list(text)
    if len(names) not in (1, 2):
        raise ValueError(f"text={text!r} names {len(names)} columns; one, or two for pairs")
    for name in names:
        if name not in header:
            raise ValueError(
                f"text={text!r}: {name!r} is no column of {path}; it has {listed(header)}"
            )
    return [header.index(name) for name in names], label_at


def _guess(path: Path, header: list[str], label: str | None) -> list[int]:
    if set(_PAIR) <= set(header):
        return [header.index(name) for name in _PAIR]
    if _SINGLE in header:
        return [header.index(_SINGLE)]
    others = [i for i, name in enumerate(header) if name not in (label, _LABEL)]
    if len(others) == 1:
        return others
    raise ValueError(
        f"{path} has the columns {listed(header)}; which hold the texts? Pass text= (--text on the "
        "command line), one name or two for pairs"
    )


def _picked(path: Path, header: list[str], table: list[Row], columns: list[int]) -> list[Row]:
    """Keep some columns of a table whose rows are all as wide as its header."""
    for number, fields in table:
        if len(fields) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)} "
                f"({listed(header)}); mend that line"
            )
    return [(number, [fields[i] for i in columns]) for number, fields in table]


def _labels(path: Path, table: list[Row]) -> NDArray[Any]:
    """Read the last column as integers if all are, else as numbers if all are, else as strings."""
    for number, fields in table:
        if not fields[-1].strip():
            raise ValueError(
                f"{path}, line {number}: the label is empty; fill it in or drop the row"
            )
    values = [fields[-1] for _, fields in table]
    for dtype in (np.int64, np.float64):
        try:
            numbers = np.array([dtype(value) for value in values])
        except (ValueError, OverflowError):
            continue
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ValueError(
                f"{path}, line {table[row][0]}: the label {shortened(values[row])!r} is not a "
                "finite number, as the others are; fill it in or drop the row"
            )
        return numbers
    return np.array(values)

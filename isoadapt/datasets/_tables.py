"""Reading of texts and labels from tables, and from files of texts."""

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import listed, reason, shown, warn

PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")  # suffixes of compressed files
_SUFFIXES = (".parquet", ".tsv", ".csv", ".jsonl", ".ndjson", ".txt")
_PAIR, _SINGLE = ("sentence1", "sentence2"), ("sentence", "text")
_NUMBER = re.compile(r"(?ai)[+-]?(inf(inity)?|nan|(?!0\d)(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)")

Texts = list[str] | list[tuple[str, str]]


def load_table(
    path: str | os.PathLike[str],
    *,
    text: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
) -> tuple[Texts, Any]:
    """Read texts and labels from a TSV or CSV file with a header line, or a JSONL or Parquet file.

    Text files are in UTF-8, or in UTF-16 with a byte order mark. In a ``.tsv`` file, as in those of
    GLUE, a quotation mark is an ordinary character, unless the file is what pandas writes with
    quoting, of which a warning tells.

    Parameters
    ----------
    path : str or path-like
        A file ``.tsv``, ``.csv``, ``.jsonl``, ``.ndjson`` (a JSON object a line) or ``.txt`` (a
        text a line), also compressed, with a second suffix ``.gz``, ``.bz2``, ``.xz``, ``.zip`` or
        ``.zst`` (which needs zstandard); or a file or folder ``.parquet`` (which needs pyarrow).
    text : str or pair of str, default=None
        Column of the texts, or two for pairs. None: "sentence1" and "sentence2" if there are both,
        or "sentence", or "text", or the only column besides the labels. If no column has exactly
        that name, the case of letters is ignored.
    label : str, sequence of str or None, default="label"
        Column of the labels, or several columns. None: no labels are read. If the default column
        "label" does not exist, no labels are read either. Any other name must exist.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        The text or pair of each row.
    labels : ndarray of shape (n,), DataFrame of several columns, or None
        The labels: int64 if all are integers, float64 if all are numbers, otherwise str, which
        they also stay if two of them are the same number, such as 1e3 and 1000.

    Raises
    ------
    ValueError
        If the file is not what its suffix says or has no rows; if a column does not exist, or it is
        unclear which holds the texts; if a text or label is missing, or no string or finite number.

    Examples
    --------
    >>> from isoadapt.datasets import load_table
    >>> texts, labels = load_table("train.tsv")  # doctest: +SKIP
    """
    path = Path(path).expanduser()
    if (table := read_table(path)).empty:
        raise ValueError(f"{path} holds no rows; add at least one")
    labels = label_columns(path, table, label)
    pair = [name for each in _PAIR if (name := _find(table, each)) is not None]
    single = [name for each in _SINGLE if (name := _find(table, each)) is not None][:1]
    others = [name for name in table if name not in (*labels, _find(table, "label"))]
    default = pair if len(pair) == 2 else single or others * (len(others) == 1)
    return texts_and_labels(path, table, text_columns(path, table, text, default), labels)


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def read_table(path: Path) -> pd.DataFrame:
    """Read strings, or the values of JSON or Parquet, indexed by the numbers of rows from 1."""
    suffix = table_suffix(path)
    if suffix not in _SUFFIXES:
        raise ValueError(
            f"path={str(path)!r} ends in none of {', '.join(_SUFFIXES)}, all but the first also "
            f"followed by {', '.join(PACKED)}"
        )
    try:
        if suffix == ".parquet":
            import_optional("pyarrow", feature="Reading Parquet", extra="data")
            table = pd.read_parquet(path).reset_index(drop=True).rename(columns=str)
        else:
            table = _parsed(path, suffix)
    except (ImportError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # each format and compression has errors of its own
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    table.index += 1
    if suffix in (".tsv", ".csv"):
        table = table.set_axis([*table.iloc[0].fillna("").str.strip()], axis=1)[1:]
        if table.shape[1] == 1 and (other := re.search(r"[;\t,|]", table.columns[0])):
            raise ValueError(
                f"{path} has the separator {other[0]!r}: use commas in .csv, and tabs in .tsv"
            )
    return table if suffix == ".parquet" else table.dropna(how="all")


def _parsed(path: Path, suffix: str) -> pd.DataFrame:
    """Decompress and parse a text file by pandas; a header is a row, a blank line a missing row."""
    with path.open("rb") as file:
        marked = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    column = _fields(path, "\x1f", encoding="utf-16" if marked else "utf-8-sig")
    if column.shape[1] > 1:
        raise ValueError("a line holds the control character U+001F: remove it")
    text = "\n".join(column[0].fillna(""))
    text = text if "\n" in text else text.replace("\r", "\n")
    if suffix == ".csv":
        return _quoted(text, ",")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if suffix == ".tsv":
        return _tabs(path, text, lines)
    rows = [{"text": line} if line.strip() else {} for line in lines]
    return pd.DataFrame(rows if suffix == ".txt" else _objects(rows), dtype=object)


def _fields(source: Any, separator: str, quoted: bool = False, **options: Any) -> pd.DataFrame:
    """Read fields as strings, empty ones as missing."""
    options |= {"keep_default_na": False, "na_values": [""], "encoding_errors": "surrogateescape"}
    options |= {} if quoted else {"quoting": csv.QUOTE_NONE, "lineterminator": "\n"}
    return pd.read_csv(
        source, sep=separator, header=None, dtype=object, skip_blank_lines=False, **options
    )


def _quoted(text: str, separator: str) -> pd.DataFrame:
    """Read quoted fields; a CR that ends no line is a part of them, and U+001F meanwhile."""
    kept = io.StringIO(re.sub(r"\r(?!\n|\Z)", "\x1f", text))
    return _fields(kept, separator, quoted=True).replace("\x1f", "\r", regex=True)


def _tabs(path: Path, text: str, lines: list[str]) -> pd.DataFrame:
    """Read TSV, with quoting if it is what pandas then writes."""
    plain = "\n".join(lines)
    with suppress(ValueError):
        table = _quoted(text, "\t")
        written = table.to_csv(sep="\t", header=False, index=False, lineterminator="\n")
        if '"' in text and written[:-1].replace("\r\n", "\n") == plain:
            # Marks that pair over regular lines, as in '"One.\t1' and 'Two."\t0', belong to texts.
            regular = len({line.count("\t") for line in lines if line}) == 1
            if not regular or len(table) == len(lines):
                warn(f"{path}: quotation marks are read as quoting, as pandas writes it")
                return table
            warn(f"{path}: quotation marks are read as text; if they quote fields, save as .csv")
    return _fields(io.StringIO(plain), "\t")


def _objects(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Parse lines of JSON."""
    for number, row in enumerate(rows, 1):
        try:
            yield {**json.loads(row["text"])} if row else {}
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"row {number} is not a JSON object ({reason(error)})") from error


def _find(names: Iterable[str], name: str) -> str | None:
    """Return the one column with a name, or else the only one that differs from it in case."""
    alike = [each for each in names if each.lower() == name.lower()]
    return name if alike.count(name) == 1 else alike[0] if len(alike) == 1 else None


def label_columns(where: object, names: Iterable[str], label: Any) -> list[str]:
    """Return the columns of labels that a user named; none if "label" need not be there."""
    chosen = [label] if isinstance(label, str) else list(label or ())
    found = [each for name in chosen if (each := _find(names, name)) is not None]
    if len(found) < len(chosen) and (label != "label" or label in names):  # in it twice
        label = ", ".join(each for each in chosen if _find(names, each) is None)
        raise ValueError(f"label={label!r} is not one column of {where}; it has {listed([*names])}")
    return found


def text_columns(where: object, names: Iterable[str], text: Any, default: list[str]) -> list[str]:
    """Return the one or two columns of texts that a user named, or else the default."""
    chosen = [text] if isinstance(text, str) else list(text or default)
    found = [each for name in chosen if (each := _find(names, name)) is not None]
    if len(found) != len(chosen) or len(chosen) not in (1, 2):
        raise ValueError(
            f"text={', '.join(chosen) or None} is not one column of texts of {where}, or two for "
            f"pairs; it has {listed([*names])}: pass text= (on the command line --text or, for "
            "--pairs, --pairs-text)"
        )
    return found


def texts_and_labels(
    where: object, table: pd.DataFrame, names: list[str], labels: list[str]
) -> tuple[Texts, Any]:
    """Return one or two columns as texts, and others, if any, as labels."""
    columns = [[*map(str, _cells(where, table[name]).values())] for name in names]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    found = {name: labels_of(where, table[name]) for name in labels}
    return texts, pd.DataFrame(found) if len(labels) > 1 else next(iter(found.values()), None)


def _cells(where: object, column: pd.Series, blank: bool = True) -> dict[str, Any]:
    """Return strings, which may be `blank`, and numbers by their places."""
    cells = {}
    for row, cell in column.items():
        place = f"{where}, row {row}: column {column.name!r}"
        cell = cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell
        if pd.isna(cell) is True or not (blank or str(cell).strip()):
            raise ValueError(f"{place} is empty: fill it in, or drop the row")
        if not isinstance(cell, str | Number):
            raise ValueError(
                f"{place} holds {shown(cell)}, neither a text nor a number: convert it; several "
                "labels a row need a column of 0 and 1 for each, as MultiLabelBinarizer makes them"
            )
        if re.search("[\ud800-\udfff]", str(cell)):
            raise ValueError(f"{place} is not in UTF-8, but perhaps in Latin-1: convert the file")
        cells[place] = cell
    return cells


def labels_of(where: object, column: pd.Series) -> NDArray[Any]:
    """Return labels as numbers if they are and no two become equal, else as strings."""
    cells = _cells(where, column, blank=False)
    values = [cell.strip() if isinstance(cell, str) else cell for cell in cells.values()]
    if len({isinstance(value, str) for value in values}) == 2:
        raise ValueError(f"{where}: column {column.name!r} holds strings and numbers: convert it")
    different = {(value, isinstance(value, bool)) for value in values}  # True equals 1
    written = [value if isinstance(value, str) else str(+value) for value in values]  # +True is 1
    for kind in (np.int64, np.float64) if all(map(_NUMBER.fullmatch, written)) else ():
        try:
            numbers = np.array([kind(each) for each in written])
        except (ValueError, OverflowError):
            continue
        finite = np.isfinite(numbers)
        if finite.any() and not finite.all():
            raise ValueError(f"{[*cells][finite.argmin()]} is not finite: drop the row")
        if finite.all() and len(np.unique(numbers)) == len(different):
            return numbers
    return np.array([*map(str, values)])

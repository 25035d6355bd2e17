"""Reading of texts and labels from tables, and from files of texts."""

import codecs
import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import listed, reason, shown, warn

STDIN = Path("-")  # means the standard input
PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
_SEPARATORS = {".tsv": "\t", ".csv": ","}
SUFFIXES = (".parquet", ".xlsx", *_SEPARATORS, ".jsonl", ".ndjson", ".txt")
_PAIR, _SINGLE = ("sentence1", "sentence2"), ("sentence", "text")
_NUMBER = re.compile(r"(?ai)[+-]?(inf(inity)?|nan|(?!0\d)(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)")

Texts = list[str] | list[tuple[str, str]]
Choice = Callable[[Iterable[str]], tuple[list[str], list[str]]]  # of columns: texts, labels


def load_table(
    path: str | os.PathLike[str],
    *,
    text: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
    encoding: str | None = None,
) -> tuple[Texts, Any]:
    """Read texts and labels from a table with a header, or from lines of texts or of JSON.

    In a ``.tsv`` file, as in those of GLUE, a quotation mark is an ordinary character, unless
    pandas wrote the file with quoting, which a warning says. If the columns are not found with the
    separator of the suffix, comma, semicolon, tab and ``|`` are tried. The first that finds the
    columns and splits all rows alike is used, with a warning.

    Parameters
    ----------
    path : str or path-like
        A file ``.tsv``, ``.csv``, ``.jsonl``, ``.ndjson`` (a JSON object a line) or ``.txt`` (a
        text a line), also compressed, with a second suffix ``.gz``, ``.bz2``, ``.xz``, ``.zip`` or
        ``.zst`` (which needs zstandard); a file ``.xlsx`` (its first sheet; which needs openpyxl);
        or a file or folder ``.parquet`` (which needs pyarrow). ``"-"`` is the standard input: lines
        of JSON, or a table if a header has the columns, or otherwise a text a line.
    text : str or pair of str, default=None
        Column of the texts, or two for pairs. None: "sentence1" and "sentence2" if there are both,
        or "sentence", or "text", or the only column besides the labels and "id". If no column has
        exactly that name, the case of letters is ignored.
    label : str, sequence of str or None, default="label"
        Column of the labels, or several columns. None: no labels are read. If the default column
        "label" does not exist, no labels are read either. Any other name must exist.
    encoding : str, default=None
        Encoding of a text file, such as "cp1252". None: UTF-8, or UTF-16 with a byte order
        mark in a file that is not compressed.

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
    choose = partial(chosen_columns, path, text, label)
    table = read_table(path, choose, encoding)
    return texts_and_labels(path, table, *choose(table))


def chosen_columns(
    path: Path, text: Any, label: Any, names: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the columns of texts and those of labels of a table with columns of these names."""
    labels = label_columns(path, names, label)
    pair = [name for each in _PAIR if (name := _find(names, each)) is not None]
    single = [name for each in _SINGLE if (name := _find(names, each)) is not None][:1]
    known = *labels, _find(names, "label"), _find(names, "id")
    others = [name for name in names if name not in known]
    # The first line of a standard input may be a text, and one with separators is no name.
    only = others * (len(others) == 1 and path != STDIN and not re.search(r"[;\t,|]", others[0]))
    return text_columns(path, names, text, pair if len(pair) == 2 else single or only), labels


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def read_table(path: Path, choose: Choice, encoding: str | None = None) -> pd.DataFrame:
    """Read strings, or the values of JSON, Excel or Parquet, indexed by row numbers from 1."""
    suffix = table_suffix(path)
    if suffix not in SUFFIXES and path != STDIN:
        raise ValueError(
            f"path={str(path)!r} ends in none of {', '.join(SUFFIXES)}, all but the first two "
            f"also followed by {', '.join(PACKED)}"
        )
    try:
        if suffix == ".parquet":
            import_optional("pyarrow", feature="Reading Parquet", extra="data")
            table = pd.read_parquet(path).reset_index(drop=True).rename(columns=str)
        elif suffix == ".xlsx":
            import_optional("openpyxl", feature="Excel, unless saved as CSV,", extra="excel")
            rows = pd.read_excel(path, header=None, dtype=object, na_filter=False)
            table = _headed(rows.replace("", None))
        else:
            table = _parsed(path, suffix, choose, encoding)
    except (ImportError, FileNotFoundError, PermissionError):
        raise
    except pd.errors.EmptyDataError:
        table = pd.DataFrame()
    except Exception as error:  # each format and compression has errors of its own
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    table.index += 1
    table = table if suffix == ".parquet" else table.dropna(how="all")
    if table.empty:
        raise ValueError(f"{path} holds no rows; add at least one")
    return table


def _headed(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the first row as the names of the columns."""
    names = [str(name).strip() for name in rows.iloc[0].fillna("")]
    _check_characters("the header", " ".join(names))
    return rows.set_axis(names, axis=1)[1:]


def _parsed(path: Path, suffix: str, choose: Choice, encoding: str | None) -> pd.DataFrame:
    """Decompress, decode and parse a text file by pandas; a blank line is a missing row."""
    data = sys.stdin.buffer.read() if path == STDIN else path.read_bytes()
    marked = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = encoding or ("utf-16" if marked else "utf-8")
    packed = PACKED.get(path.suffix.lower())
    column = _fields(io.BytesIO(data), "\x1f", encoding=encoding, compression=packed)
    if column.shape[1] > 1:
        raise ValueError("a line holds the control character U+001F: remove it")
    text = "\n".join(column[0].fillna("")).removeprefix("\ufeff")
    text = text if "\n" in text else text.replace("\r", "\n")
    if path == STDIN:
        suffix = ".jsonl" if text.startswith("{") else ".tsv"
    if suffix in _SEPARATORS:
        return _split(path, suffix, text, choose)
    rows = [{"text": line} if line.strip() else {} for line in _lines(text)]
    return pd.DataFrame(rows if suffix == ".txt" else _objects(rows), dtype=object)


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


def _split(path: Path, suffix: str, text: str, choose: Choice) -> pd.DataFrame:
    """Split rows by the separator of the suffix, or else by one that gives the chosen columns."""
    own, problem, table = _SEPARATORS[suffix], None, pd.DataFrame()
    try:
        table = _headed(_tabs(path, text) if own == "\t" else _quoted(text, own))
    except ValueError as error:  # a row is longer than the header
        problem = ValueError(f"{reason(error)}; quote fields that hold the separator {own!r}")
    with suppress(ValueError):
        choose(table)
        return table
    for other in ",;\t|".replace(own, ""):
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=other)
        with suppress(ValueError, csv.Error):
            choose(names := [name.strip() for name in next(rows)])
            if all(len(row) == len(names) for row in rows if row):
                warn(f"{path}: fields are separated by {other!r}, not by {own!r}")
                return _headed(_quoted(text, other))
            problem = ValueError(f"its separator {other!r} does not split all rows alike")
    if path == STDIN:
        warn("the standard input has no header with the columns: each line is read as a text")
        return pd.DataFrame({"text": [line if line.strip() else None for line in _lines(text)]})
    if problem is not None:
        raise problem
    return table


def _fields(source: Any, separator: str, quoted: bool = False, **options: Any) -> pd.DataFrame:
    """Read fields as strings, empty ones as missing."""
    options |= {"keep_default_na": False, "na_values": [""], "encoding_errors": "surrogateescape"}
    options |= {"header": None, "dtype": object, "skip_blank_lines": False}
    options |= {} if quoted else {"quoting": csv.QUOTE_NONE, "lineterminator": "\n"}
    return pd.read_csv(source, sep=separator, **options)


def _quoted(text: str, separator: str) -> pd.DataFrame:
    """Read quoted fields; a CR that ends no line is a part of them, and U+001F meanwhile."""
    kept = io.StringIO(re.sub(r"\r(?!\n|\Z)", "\x1f", text))
    return _fields(kept, separator, quoted=True).replace("\x1f", "\r", regex=True)


def _tabs(path: Path, text: str) -> pd.DataFrame:
    """Read TSV, with quoting if it is what pandas then writes."""
    plain = "\n".join(lines := _lines(text))
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
        problem = f"{listed(chosen)} is not" if text else "it is unclear what is"
        raise ValueError(
            f"{problem} one column of texts, or two for pairs, of {where}, which has "
            f"{listed([*names])}: name them by --text (text= in Python, --pairs-text for --pairs)"
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
        _check_characters(place, str(cell))
        cells[place] = cell
    return cells


def _check_characters(place: str, text: str) -> None:
    """Raise ValueError for a byte that is not decoded, or half of a pair of surrogates."""
    if found := re.search("[\ud800-\udfff]", text):
        code = ord(found[0])
        what = f"byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"half U+{code:04X}"
        raise ValueError(
            f"{place} holds the {what}, which is not UTF-8: name the encoding of a text file, as "
            "by --encoding cp1252 (encoding='cp1252' in Python) for one of Windows"
        )


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

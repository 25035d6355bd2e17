"""Reading of texts and labels from tables, and from files of texts."""

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import listed, reason, shown, warn

PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")  # suffixes of compressed files
_LINES = "\x1f"  # separates nothing
_SEPARATORS = {".tsv": "\t", ".csv": ",", ".jsonl": _LINES, ".ndjson": _LINES, ".txt": _LINES}
_STRINGS: dict[str, Any] = {"header": None, "dtype": object, "skip_blank_lines": False}
_STRINGS |= {"keep_default_na": False, "na_values": [""], "encoding_errors": "surrogateescape"}
_NUMBER = re.compile(r"(?ai)[+-]?(inf(inity)?|nan|(?!0\d)(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)")

Texts = list[str] | list[tuple[str, str]]


def load_table(
    path: str | os.PathLike[str],
    *,
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = "label",
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from a TSV or CSV file with a header line, or a JSONL or Parquet file.

    Text files are in UTF-8, or in UTF-16 with a byte order mark. In a ``.tsv`` file, as in those of
    GLUE, a quotation mark is an ordinary character, unless the file is what pandas writes with
    quoting, of which a warning tells. Each line of a ``.jsonl`` or ``.ndjson`` file is a JSON
    object, and each line of a ``.txt`` file is a text.

    Parameters
    ----------
    path : str or path-like
        A file ``.tsv``, ``.csv``, ``.jsonl``, ``.ndjson`` or ``.txt``, also compressed, with a
        second suffix ``.gz``, ``.bz2``, ``.xz``, ``.zip`` or ``.zst``; or a file or folder
        ``.parquet``.
    text : str or pair of str, default=None
        Column of the texts, or two columns for pairs of texts. None: "sentence1" and "sentence2"
        if there are both, otherwise "sentence" or "text", otherwise the only column besides the
        labels. If no column has exactly that name, the case of letters is ignored.
    label : str or None, default="label"
        Column of the labels. None: no labels are read. If the default column "label" does not
        exist, no labels are read either. Any other name must exist.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        The text or pair of each row.
    labels : ndarray of shape (n,), or None
        The labels: int64 if all are integers, float64 if all are numbers, otherwise str, which
        they also stay if two of them are the same number, such as 1e3 and 1000.

    Raises
    ------
    OSError
        If the file cannot be opened.
    ImportError
        If pyarrow is not installed, which Parquet and ``.zst`` files need.
    ValueError
        If the file is not what its suffix says or has no rows; if a column does not exist, or it is
        unclear which holds the texts; if a text or label is missing, as is an empty field of a TSV
        or CSV file, or is neither a string nor a finite number.

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
    table = read_parquet(path) if path.suffix.lower() == ".parquet" else _read_table(path)
    if table.empty:
        raise ValueError(f"{path} holds no rows; add at least one")
    label = label_column(path, table, label)
    pair, single = (
        [name for each in known if (name := _find(table, each)) is not None]
        for known in (("sentence1", "sentence2"), ("sentence", "text"))
    )
    others = [name for name in table if name not in (label, _find(table, "label"))]
    default = pair if len(pair) == 2 else single[:1] or others * (len(others) == 1)
    return texts_and_labels(path, table, text_columns(path, table, text, default), label)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file, or a folder of such files, indexed by the numbers of rows from 1."""
    import_optional("pyarrow", feature="Reading Parquet", extra="data")
    try:
        table = pd.read_parquet(path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
    rows = pd.RangeIndex(1, len(table) + 1, name="row")
    return table.set_axis(rows).set_axis([*map(str, table)], axis=1)


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def _read_table(path: Path) -> pd.DataFrame:
    """Read strings, or the values of JSON, indexed by the numbers of lines or rows from 1."""
    suffix = table_suffix(path)
    if suffix not in _SEPARATORS:
        raise ValueError(
            f"path={str(path)!r} has the suffix {path.suffix.lower()!r}; tables are read from "
            f".parquet and from {', '.join(_SEPARATORS)}, also followed by {', '.join(PACKED)}"
        )
    with path.open("rb") as file:
        marked = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    read = partial(_fields, encoding="utf-16" if marked else "utf-8-sig")
    try:
        quoted = _quoted(path, read) if suffix == ".tsv" else None
        separator = _SEPARATORS[suffix]
        table = read(path, separator, suffix == ".csv") if quoted is None else quoted
    except ImportError:
        raise
    except Exception as error:  # each compression has errors of its own
        raise ValueError(
            f"{path} cannot be read ({reason(error)}): check the quotation marks and separators of "
            "this row, or the compression"
        ) from error
    if quoted is not None:
        warn(f"{path}: quotation marks are read as quoting, as pandas writes it")
    if separator == _LINES:
        if table.shape[1] > 1:
            raise ValueError(f"{path}: a line holds the control character U+001F: remove it")
        lines = table[0][table[0].str.strip().fillna("") != ""]
        return lines.to_frame("text") if suffix == ".txt" else _parsed(path, lines)
    names = ["" if pd.isna(name) else name.strip() for name in table.iloc[0]]
    if len(names) == 1 and (other := re.search(r"[;\t,|]", names[0])):
        raise ValueError(
            f"{path}: the header {shown(names[0])} has the separator {other[0]!r}: save the "
            "table with commas as .csv, or with tabs as .tsv"
        )
    return table.set_axis(names, axis=1)[1:].dropna(how="all")


def _fields(source: Any, separator: str, quoted: bool, encoding: str) -> pd.DataFrame:
    """Read fields as strings, empty ones as missing; the header is the first row."""
    if isinstance(source, Path) and source.suffix.lower() == ".zst":  # pandas needs a package more
        pyarrow = import_optional("pyarrow", feature="Reading .zst files", extra="data")
        source = pyarrow.input_stream(str(source), compression="zstd")
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    table = pd.read_csv(source, sep=separator, quoting=quoting, encoding=encoding, **_STRINGS)
    return table.set_axis(pd.RangeIndex(1, len(table) + 1, name="row" if quoted else "line"))


def _quoted(path: Path, read: Callable[..., pd.DataFrame]) -> pd.DataFrame | None:
    """Read a TSV file with quoting, if it is what pandas then writes."""
    lines = read(path, _LINES, False)[0]
    if not lines.str.contains('"', na=False).any():
        return None
    try:
        table = read(path, "\t", True)
    except ValueError:
        return None
    # Marks that pair over regular lines, as in '"One.\t1' and 'Two."\t0', belong to the texts.
    over = len(table) < len(lines) and lines.str.count("\t").nunique() == 1
    written = io.StringIO(table.to_csv(sep="\t", header=False, index=False))
    same = not over and read(written, _LINES, False)[0].equals(lines)
    return table if same else None


def _parsed(path: Path, lines: pd.Series) -> pd.DataFrame:
    """Parse the lines of a JSONL file."""
    objects = []
    for number, line in lines.items():
        try:
            objects.append({**json.loads(line)})
        except (ValueError, TypeError, RecursionError) as error:
            why = f"not a JSON object ({reason(error)})"
            raise ValueError(f"{path}, line {number}: {why}, as each line must be") from error
    return pd.DataFrame(objects, index=lines.index, dtype=object)


def _find(names: Iterable[str], name: str) -> str | None:
    """Return the one column with a name, or else the only one that differs from it in case."""
    alike = [each for each in names if each.lower() == name.lower()]
    return name if alike.count(name) == 1 else alike[0] if len(alike) == 1 else None


def label_column(where: object, names: Iterable[str], label: str | None) -> str | None:
    """Return the name of the column of labels; None if there is none and it need not be there."""
    if label is None:
        return None
    found = _find(names, label)
    if found is None and (label != "label" or label in names):  # in it twice
        raise ValueError(f"label={label!r} is not one column of {where}; it has {listed([*names])}")
    return found


def text_columns(where: object, names: Iterable[str], text: Any, default: list[str]) -> list[str]:
    """Return the one or two columns of texts that a user named, or else the default."""
    chosen = [text] if isinstance(text, str) else list(text or default)
    found = [each for name in chosen if (each := _find(names, name)) is not None]
    if len(found) != len(chosen) or len(chosen) not in (1, 2):
        raise ValueError(
            f"text={text!r} does not name one column of texts of {where}, or two for pairs; it has "
            f"{listed([*names])}: pass text= (--text on the command line)"
        )
    return found


def texts_and_labels(
    where: object, table: pd.DataFrame, names: list[str], label: str | None
) -> tuple[Texts, NDArray[Any] | None]:
    """Return one or two columns as texts, and one, if any, as labels."""
    columns = [[str(cell) for _, cell in _cells(where, table[name])] for name in names]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return texts, None if label is None else labels_of(where, table[label])


def _cells(where: object, column: pd.Series, blank: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of strings, which may be `blank`, and numbers."""
    for row, cell in column.items():
        place = f"{where}, {column.index.name} {row}: column {column.name!r}"
        cell = cell.decode(errors="surrogateescape") if isinstance(cell, bytes) else cell
        if pd.isna(cell) is True or not (blank or str(cell).strip()):
            raise ValueError(f"{place} is empty: fill it in, or drop the row")
        if not isinstance(cell, str | Number):
            raise ValueError(f"{place} holds {shown(cell)}, neither a text nor a number")
        if re.search("[\ud800-\udfff]", str(cell)):
            raise ValueError(f"{place} is not in UTF-8, but perhaps in Latin-1: convert the file")
        yield place, cell


def labels_of(where: object, column: pd.Series) -> NDArray[Any]:
    """Return labels as numbers if they are and no two become equal, else as strings."""
    places, cells = [], []
    for place, cell in _cells(where, column, blank=False):
        places.append(place)
        cells.append(cell.strip() if isinstance(cell, str) else cell)
    strings = {isinstance(cell, str) for cell in cells}
    if len(strings) == 2:
        raise ValueError(f"{where}: column {column.name!r} holds strings and numbers: convert it")
    different = {(cell, isinstance(cell, bool)) for cell in cells}  # True equals 1
    written = [cell if isinstance(cell, str) else str(+cell) for cell in cells]  # +True is 1
    for kind in (np.int64, np.float64) if all(map(_NUMBER.fullmatch, written)) else ():
        try:
            numbers = np.array([kind(each) for each in written])
        except (ValueError, OverflowError):
            continue
        if not np.isfinite(numbers).all():
            place = places[np.argmin(np.isfinite(numbers))]
            raise ValueError(f"{place} is not finite, but all labels are numbers: drop the row")
        if len(np.unique(numbers)) == len(different):
            return numbers
    return np.array([*map(str, cells)])

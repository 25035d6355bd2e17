"""Reading of texts and labels from TSV, CSV, JSONL and Parquet files."""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.imports import import_optional
from isoadapt._utils.messages import listed, reason, shortened

_SEPARATORS = {";": "semicolon", "\t": "tab", ",": "comma", "|": "vertical bar"}
_BESIDE = re.compile(r"^__MACOSX/|(^|/)\.[^/]*$|/$")  # what macOS adds to an archive, and folders
_BETWEEN = re.compile(r"\blabel\W+\w|\w\W+label\b", re.I)  # any separator between two names
_PAIR = ("sentence1", "sentence2")
_SINGLE = ("sentence", "text")
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")  # suffixes of compressed files
_LABEL = "label"
_NUMBER = re.compile(
    r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?|inf(inity)?|nan)",
    re.I,
)

Row = tuple[int, list[str]]  # number of the last line of the row, and its fields
Texts = list[str] | list[tuple[str, str]]


def load_table(
    path: str | os.PathLike[str],
    *,
    text: str | tuple[str, str] | list[str] | None = None,
    label: str | None = _LABEL,
) -> tuple[Texts, NDArray[Any] | None]:
    """Read texts and labels from a TSV or CSV file with a header line, or a JSONL or Parquet file.

    Text files and binary columns of Parquet files must be UTF-8. In a ``.tsv`` file, as in those of
    GLUE, a quotation mark is an ordinary character. In a ``.csv`` file, it quotes fields that hold
    commas or line breaks. Each line of a ``.jsonl`` or ``.ndjson`` file is a JSON object, and each
    line of a ``.txt`` file is a text; it has no header and no labels. All but Parquet may be
    compressed, with a second suffix ``.gz``, ``.bz2``, ``.xz``, ``.zip`` or ``.zst``.

    Parameters
    ----------
    path : str or path-like
        The file, with the suffix ``.tsv``, ``.csv``, ``.jsonl``, ``.ndjson``, ``.parquet`` or
        ``.txt``, or one of a compression after it.
    text : str or pair of str, default=None
        Column of the texts, or two columns for pairs of texts. None: "sentence1" and "sentence2"
        if the file has both, otherwise "sentence" or "text", otherwise the only column besides the
        labels.
    label : str or None, default="label"
        Column of the labels. None: no labels are read. If the default column "label" does not
        exist, no labels are read either. Any other name must exist.

    Returns
    -------
    texts : list of str, or of 2-tuples of str
        The text or pair of each row.
    labels : ndarray of shape (n,), or None
        The labels: int64 if all are integers, float64 if all are numbers, otherwise str. A number
        has no leading zero, so that 01 and 1 remain different names.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ImportError
        If the file is a Parquet file and pandas or pyarrow is not installed, or a ``.zst`` file
        and pyarrow is not installed.
    ValueError
        If the suffix is not supported, or if the file is damaged, not UTF-8, empty or without
        rows. If a row has too few or too many fields, or if its label is empty, NaN or infinite.
        If a column does not exist or holds neither strings nor numbers, or if the columns of the
        texts are ambiguous. If a column of a Parquet file holds bytes that are not UTF-8. If a
        text is missing: an empty field of a TSV or CSV file, or null or NaN in a JSONL or Parquet
        file, where the empty string is a text.

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
    label = label_column(path, header, label)
    chosen = _default_text_columns(header, label) if text is None else text
    names = text_columns(path, header, chosen)
    table = read(names, [] if label is None else [label])
    if not table:
        what = "no text" if table_suffix(path) == ".txt" else "a header line only"
        raise ValueError(f"{path} holds {what}; add at least one row")
    columns = [[fields[i] for _, fields in table] for i in range(len(names))]
    texts: Texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return texts, None if label is None else _labels(path, table)


def _open(path: Path) -> tuple[list[str], Callable[[list[str], list[str]], list[Row]]]:
    """Return the names of the columns, and a function that reads columns of texts and labels."""
    suffix = table_suffix(path)
    packed_parquet = suffix == ".parquet" != path.suffix.lower()
    if suffix not in (".tsv", ".csv", ".jsonl", ".ndjson", ".parquet", ".txt") or packed_parquet:
        raise ValueError(
            f"path={str(path)!r} has the suffix {path.suffix.lower()!r}; tables are read from .tsv "
            "and .csv files in UTF-8, from .jsonl and .ndjson, and texts from .txt files, all also "
            "compressed (.gz, .bz2, .xz, .zip, .zst), and from .parquet files: convert it"
        )
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r} is not a file; check the name")
    if suffix == ".parquet":
        content = read_parquet(path)
        columns = dict(zip(content.column_names, content.columns, strict=True))
        return list(columns), partial(_typed_rows, path, columns, range(1, content.num_rows + 1))
    if suffix in (".jsonl", ".ndjson"):
        return _open_json(path)
    rows = list(_rows(path))
    if not rows:
        raise ValueError(f"{path} is empty; it must have a header line and at least one row")
    header, table = [name.strip() for name in rows[0][1]], rows[1:]
    _check_unique(path, header)
    return header, partial(_select_columns, path, header, table)


def _rows(path: Path) -> Iterator[Row]:
    """Read the rows of a text file, without blank lines."""
    lines = _decoded(path)
    suffix = table_suffix(path)
    if suffix == ".txt":
        yield 0, [_SINGLE[0]]
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, [line.removesuffix("\n")]
        return
    header = lines.getvalue().partition("\n")[0]
    _check_separator(path, suffix, header)
    if suffix == ".tsv":
        for number, line in enumerate(lines, start=1):
            if line != "\n":
                yield number, line.removesuffix("\n").split("\t")
        return
    reader = csv.reader(lines, strict=True, skipinitialspace=", " in header)
    try:
        for fields in reader:
            if fields:
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: {error}; check the quotation marks, or save the file "
            "as .tsv, where they have no meaning"
        ) from error


def table_suffix(path: Path) -> str:
    """Return the suffix of a table in lower case, without that of a compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in PACKED else suffix


def _unpacked(path: Path) -> bytes:
    """Read a file, and decompress it as its suffix says."""
    data, suffix = path.read_bytes(), path.suffix.lower()
    if suffix not in PACKED:
        return data
    if suffix == ".zst":
        pyarrow = import_optional("pyarrow", feature="Reading .zst files", extra="data")
    try:
        if suffix == ".zst":
            return pyarrow.input_stream(pyarrow.py_buffer(data), compression="zstd").read()
        if suffix != ".zip":
            return {".gz": gzip, ".bz2": bz2, ".xz": lzma}[suffix].decompress(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            (name,) = [each for each in archive.namelist() if not _BESIDE.search(each)]
            return archive.read(name)
    except Exception as error:  # each format has errors of its own
        raise ValueError(
            f"{path} cannot be decompressed ({reason(error)}); it must hold one table, compressed "
            f"as the suffix {suffix} says"
        ) from error


def _check_separator(path: Path, suffix: str, header: str) -> None:
    """Raise ValueError if the columns of a header are separated by another character."""
    own = "\t" if suffix == ".tsv" else ","
    other = next((each for each in _SEPARATORS if each in header), None)
    if own not in header and (other or _BETWEEN.search(header)):
        what = "another character" if other is None else f"a {_SEPARATORS[other]}"
        raise ValueError(
            f"{path}: the header {shortened(header)!r} seems to be separated by {what}: "
            "save the table with commas as .csv, or with tabs as .tsv"
        )


def _decoded(path: Path) -> io.StringIO:
    """Decode a UTF-8 file, with or without a byte order mark."""
    data = _unpacked(path).removeprefix(codecs.BOM_UTF8)
    if (nul := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x00 is not text (UTF-16 files have such "
            "bytes); save the file as UTF-8"
        )
    try:
        return io.StringIO(data.decode("utf-8"), newline=None)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not "
            "UTF-8 (the file may be in Latin-1 or Windows-1252); save the file as UTF-8"
        ) from error


def label_column(where: object, names: Sequence[str], label: str | None) -> str | None:
    """Return the name of the column of labels; None if there is none and it need not be there."""
    if label is None or label in names:
        return label
    if label != _LABEL:
        raise ValueError(f"label={label!r} is not a column of {where}; it has {listed(names)}")
    return None


def text_columns(where: object, names: Sequence[str], text: Any) -> list[str]:
    """Return the one or two columns of texts that a user named, if any."""
    if text is None:
        raise ValueError(
            f"{where} has the columns {listed(names)}, and it is unclear which hold the texts; "
            "pass text= (--text on the command line), one name, or two names for pairs"
        )
    chosen = [text] if isinstance(text, str) else list(text)
    if len(chosen) not in (1, 2):
        raise ValueError(
            f"text={text!r} names {len(chosen)} columns; pass one name, or two names for pairs"
        )
    for name in chosen:
        if name not in names:
            raise ValueError(
                f"text={text!r}: {name!r} is not a column of {where}; it has {listed(names)}"
            )
    return chosen


def _default_text_columns(header: list[str], label: str | None) -> list[str] | None:
    """Return the text columns of a file for which the user did not name them, if they are clear."""
    if set(_PAIR) <= set(header):
        return list(_PAIR)
    others = [name for name in header if name not in (label, _LABEL)]
    known = [name for name in _SINGLE if name in header][:1]
    return known or (others if len(others) == 1 else None)


def _select_columns(
    path: Path, header: list[str], table: list[Row], texts: list[str], labels: list[str]
) -> list[Row]:
    """Select some columns of a table; all rows must have as many fields as the header."""
    places = [header.index(name) for name in (*texts, *labels)]
    for number, fields in table:
        if len(fields) != len(header):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)} "
                f"({listed(header)}); correct this line"
            )
        if empty := [header[place] for place in places[: len(texts)] if not fields[place]]:
            raise ValueError(
                f"{path}, line {number}: column {empty[0]!r} is empty, a missing text: drop the "
                "row, or save the table as .jsonl or .parquet, where '' is a text"
            )
    return [(number, [fields[i] for i in places]) for number, fields in table]


def _labels(path: Path, table: list[Row]) -> NDArray[Any]:
    """Convert the last column to int64 or float64 if all its values are numbers, else to str."""
    for number, fields in table:
        if not fields[-1].strip():
            raise ValueError(
                f"{path}, line {number}: the label is empty; add a label or drop the row"
            )
    values = [fields[-1].strip() for _, fields in table]
    for dtype in (np.int64, np.float64) if all(map(_NUMBER.fullmatch, values)) else ():
        try:
            numbers = np.array([dtype(value) for value in values])
        except (ValueError, OverflowError):
            continue
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ValueError(
                f"{path}, line {table[row][0]}: the label {shortened(values[row])!r} is not "
                "finite, but all labels are numbers; correct it or drop the row"
            )
        return numbers
    return np.array(values)


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a pyarrow.Table whose column names are unique."""
    for module in ("pyarrow", "pandas"):
        import_optional(module, feature="Reading Parquet", extra="data")
    import pyarrow
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a valid Parquet file ({reason(error)}); write it again"
        ) from error
    _check_unique(path, table.column_names)
    return table


def _typed_rows(
    path: Path, columns: dict[str, Any], numbers: Sequence[int], texts: list[str], labels: list[str]
) -> list[Row]:
    """Return the rows, with their `numbers`, of some columns of a typed file, as strings."""
    rows: list[Row] = [(number, []) for number in numbers]
    for name in (*texts, *labels):
        values = columns[name]
        values = values.to_pylist() if hasattr(values, "to_pylist") else values
        for (number, fields), value in zip(rows, values, strict=True):
            try:
                fields.append(_cell(value, name in texts))
            except ValueError as error:
                raise ValueError(f"{path}, row {number}: column {name!r} {error}") from error
    return rows


def _open_json(path: Path) -> tuple[list[str], Callable[[list[str], list[str]], list[Row]]]:
    """Return the names in the objects of a JSONL file, and a function that reads columns."""
    lines = {number: line for number, line in enumerate(_decoded(path), 1) if line.strip()}
    rows = [_json_object(path, number, line) for number, line in lines.items()]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(chain(*rows))}
    if not columns:
        raise ValueError(f"{path} is empty; it must have a JSON object on at least one line")
    return list(columns), partial(_typed_rows, path, columns, list(lines))


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    """Parse a line of a JSONL file."""
    try:
        if isinstance(row := json.loads(line), dict):
            return row
        why = f"it holds a {type(row).__name__}"
    except (ValueError, RecursionError) as error:
        why = reason(error)
    raise ValueError(
        f"{path}, line {number}: not a JSON object ({why}); each line must be one, such as "
        '{"sentence": "He sings.", "label": 1}'
    )


def _cell(value: Any, is_text: bool) -> str:
    """Return a value as a string; an empty label is ""."""
    if is_text and (value is None or value != value):
        raise ValueError(
            "is empty; drop rows without a text, or replace the cells by empty strings"
        )
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"holds bytes that are not UTF-8 (0x{value[error.start]:02x} at position "
                f"{error.start}); convert the column to strings"
            ) from error
    if not isinstance(value, str | int | float | Decimal | None):
        raise ValueError(
            f"holds a {type(value).__name__}, but texts and labels must be strings or numbers: "
            "convert the column"
        )
    return "" if value is None else str(int(value) if isinstance(value, bool) else value)


def _check_unique(path: Path, names: Sequence[str]) -> None:
    """Check that no two columns of a file have the same name."""
    if len(set(names)) < len(names):
        name = max(names, key=Counter(names).__getitem__)
        raise ValueError(f"{path} has two columns named {name!r}; rename one of them")

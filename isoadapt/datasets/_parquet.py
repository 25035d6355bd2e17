"""Parquet files as tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isoadapt._utils.errors import reason
from isoadapt._utils.optional import import_optional


def read_parquet(path: Path) -> Any:
    """Read a Parquet file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    pyarrow.Table
        Its columns, whose names differ.

    Raises
    ------
    ImportError
        If pyarrow or pandas is not installed.
    ValueError
        If the file is not a Parquet file or is damaged, or two columns have the same name.
    """
    for module in ("pyarrow", "pandas"):
        import_optional(module, feature="Reading Parquet", extra="data")
    import pyarrow
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no Parquet file ({reason(error)}); write it again") from error
    refuse_twins(path, table.column_names)
    return table


def parquet_rows(path: Path, table: Any, columns: Sequence[int]) -> list[tuple[int, list[str]]]:
    """Give rows of a Parquet file as those of a text file are read.

    Parameters
    ----------
    path : Path
        The file, for messages.
    table : pyarrow.Table
        What it holds.
    columns : sequence of int
        Which columns are wanted.

    Returns
    -------
    list of tuple of int and list of str
        Number of the row, from 1, and its fields; empty where a cell is.

    Raises
    ------
    ValueError
        If a column holds neither strings nor numbers.
    """
    for i in columns:
        check_plain(path, table.schema.field(i))
    cells = [table.column(i).to_pylist() for i in columns]
    rows = enumerate(zip(*cells, strict=True), start=1)
    return [(number, [_field(value) for value in values]) for number, values in rows]


def check_plain(path: Path, field: Any) -> None:
    """Check that a column holds strings, numbers or booleans.

    Parameters
    ----------
    path : Path
        The file, for messages.
    field : pyarrow.Field
        Name and type of the column.

    Raises
    ------
    ValueError
        If it holds lists, records, dates, bytes or anything else.
    """
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    plain = [types.is_string, types.is_large_string, types.is_string_view, types.is_integer]
    plain += [types.is_floating, types.is_boolean, types.is_decimal, types.is_null]
    if not any(matches(kind) for matches in plain):
        raise ValueError(
            f"{path}: column {field.name!r} holds {shortened(str(field.type))}; texts and labels "
            "are strings or numbers: convert the column"
        )


def refuse_twins(path: Path, names: Sequence[str]) -> None:
    """Check that the names of columns differ.

    Parameters
    ----------
    path : Path
        The file, for messages.
    names : sequence of str
        The names.

    Raises
    ------
    ValueError
        If two are equal.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path} has two columns named {name!r}; rename one")
        seen.add(name)


def listed(names: Sequence[str], most: int = 16) -> str:
    """Join names for a message.

    Parameters
    ----------
    names : sequence of str
        The names.
    most : int, default=16
        How many are shown.

    Returns
    -------
    str
        The first of them, and how many there are if there are more.
    """
    shown = ", ".join(shortened(repr(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def shortened(text: str, most: int = 80) -> str:
    """Cut a text for a message.

    Parameters
    ----------
    text : str
        The text.
    most : int, default=80
        Characters that are kept.

    Returns
    -------
    str
        The text, or its beginning.
    """
    return text if len(text) <= most else f"{text[:most]}…"


def _field(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value) if isinstance(value, bool) else value)

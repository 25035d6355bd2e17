"""Reading of Parquet files, and helpers for messages about columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isoadapt._utils.errors import reason
from isoadapt._utils.optional import import_optional


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
    check_unique(path, table.column_names)
    return table


def parquet_rows(path: Path, table: Any, columns: Sequence[int]) -> list[tuple[int, list[str]]]:
    """Return the row numbers, from 1, and the fields of some columns of a pyarrow.Table.

    Fields are strings, as in a text file; empty cells become empty strings.
    """
    for i in columns:
        check_plain(path, table.schema.field(i))
    cells = [table.column(i).to_pylist() for i in columns]
    rows = enumerate(zip(*cells, strict=True), start=1)
    return [(number, [_field(value) for value in values]) for number, values in rows]


def check_plain(path: Path, field: Any) -> None:
    """Check that a column, given as a pyarrow.Field, holds strings, numbers or booleans."""
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    plain = [types.is_string, types.is_large_string, types.is_string_view, types.is_integer]
    plain += [types.is_floating, types.is_boolean, types.is_decimal, types.is_null]
    if not any(matches(kind) for matches in plain):
        raise ValueError(
            f"{path}: column {field.name!r} holds {shortened(str(field.type))}, but texts and "
            "labels must be strings or numbers: convert the column"
        )


def check_unique(path: Path, names: Sequence[str]) -> None:
    """Check that no two columns of a file have the same name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{path} has two columns named {name!r}; rename one of them")
        seen.add(name)


def listed(names: Sequence[str], most: int = 16) -> str:
    """Join names for a message; if there are more than `most`, give their number instead."""
    shown = ", ".join(shortened(repr(name)) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, … ({len(names)} in all)"


def shortened(text: str, most: int = 80) -> str:
    """Truncate a text to `most` characters for a message."""
    return text if len(text) <= most else f"{text[:most]}…"


def _field(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value) if isinstance(value, bool) else value)

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


def parquet_rows(
    path: Path, table: Any, texts: Sequence[int], labels: Sequence[int]
) -> list[tuple[int, list[str]]]:
    """Return the row numbers, from 1, and the fields of some columns of a pyarrow.Table.

    Fields are strings, as in a text file. Binary columns are decoded. Empty cells become empty
    strings in columns of labels and raise ValueError in columns of texts.
    """
    cells = []
    for i in (*texts, *labels):
        field, values = table.schema.field(i), table.column(i).to_pylist()
        if _is_binary(field.type):
            values = _decoded(path, field.name, values)
        else:
            check_plain(path, field)
        if i in texts:
            _check_present(path, field.name, values)
        cells.append(values)
    rows = enumerate(zip(*cells, strict=True), start=1)
    return [(number, [_field(value) for value in values]) for number, values in rows]


def check_plain(path: Path, field: Any) -> None:
    """Check that a column, given as a pyarrow.Field, holds strings, numbers or booleans."""
    from pyarrow import types

    kind = _value_type(field.type)
    plain = [types.is_string, types.is_large_string, types.is_string_view, types.is_integer]
    plain += [types.is_floating, types.is_boolean, types.is_decimal, types.is_null]
    if not any(matches(kind) for matches in plain):
        raise ValueError(
            f"{path}: column {field.name!r} holds {shortened(str(field.type))}, but texts and "
            "labels must be strings or numbers: convert the column"
        )


def _value_type(kind: Any) -> Any:
    """Return the type of the values of a column, which may be dictionary-encoded."""
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def _is_binary(kind: Any) -> bool:
    from pyarrow import types

    kind = _value_type(kind)
    tests = types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
    return any(matches(kind) for matches in tests)


def _decoded(path: Path, name: str, values: list[bytes | None]) -> list[str | None]:
    """Decode the values of a binary column as UTF-8."""
    texts = []
    for row, value in enumerate(values, start=1):
        try:
            texts.append(None if value is None else value.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, row {row}: column {name!r} holds bytes that are not UTF-8 "
                f"(0x{error.object[error.start]:02x} at position {error.start}); convert the "
                "column to strings"
            ) from error
    return texts


def _check_present(path: Path, name: str, values: list[Any]) -> None:
    """Raise ValueError if a column of texts has empty cells or NaN."""
    missing = [i for i, value in enumerate(values, start=1) if value is None or value != value]
    if missing:
        rows = ", ".join(map(str, missing[:3])) + (", …" if len(missing) > 3 else "")
        raise ValueError(
            f"{path}: the column of texts {name!r} has {len(missing)} empty cells (row {rows}); "
            "drop these rows, or replace the cells by empty strings"
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

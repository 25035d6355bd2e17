"""Parquet files as tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isoadapt._optional import import_optional


def read_parquet(path: Path) -> Any:
    """Read a Parquet file.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    pyarrow.Table
        Its columns.

    Raises
    ------
    ImportError
        If pyarrow or pandas is not installed.
    ValueError
        If it is no Parquet file.
    """
    for module in ("pyarrow", "pandas"):
        import_optional(module, feature="Reading Parquet", extra="data")
    import pyarrow
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            return parquet.ParquetFile(file).read()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is no Parquet file ({error}); write it again") from error


def parquet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read the rows of a Parquet file as those of a text file are read.

    Parameters
    ----------
    path : Path
        The file.

    Yields
    ------
    tuple of int and list of str
        Number of the row, 0 for the names of the columns, and its fields; empty where a cell is.
    """
    table = read_parquet(path)
    yield 0, list(table.column_names)
    columns = [column.to_pylist() for column in table.columns]
    for number, values in enumerate(zip(*columns, strict=True), start=1):
        yield number, [_field(value) for value in values]


def _field(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value) if isinstance(value, bool) else value)

"""Reading of embeddings and labels from .npy and Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.containers import as_matrix, check_finite
from isoadapt._utils.messages import listed, reason, shortened
from isoadapt.datasets._tables import label_column, read_parquet

_LABEL = "label"


def load_matrix(
    path: str | os.PathLike[str],
    *,
    label: str | None = _LABEL,
    labels: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
    with_labels: bool = True,
    mapped: bool = False,
) -> tuple[Any, NDArray[Any] | None]:
    """Read embeddings (n, d) and labels (n,) or None from a .npy or Parquet file.

    A .npy file keeps its dtype, and its labels come from the .npy file `labels`. A Parquet file
    gives a DataFrame of float32 or float64 with the columns `features`, by default all numeric
    columns except the label; a column of vectors, by default the only one, gives an array instead.
    The column "label" may be missing, any other name must exist. Without
    `with_labels`, that column is left out and not read. A `mapped` .npy file is a memory map, whose
    numbers are not checked.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} is not a file; check the name")
    X: Any
    if path.suffix.lower() == ".npy":
        X, y = _load_array(path, mapped), None
        if X.ndim != 2 or X.dtype.kind not in "fiu":
            raise ValueError(
                f"{str(path)!r} holds {X.dtype} of shape {X.shape}; it must hold a matrix of "
                "numbers, one row per text"
            )
    elif path.suffix.lower() == ".parquet":
        X, y = _split(path, label, features, with_labels)
    else:
        raise ValueError(
            f"{str(path)!r} is not a .npy or .parquet file, from which embeddings are read; for a "
            "table of texts, pass the model that embeds them"
        )
    if not isinstance(X, np.memmap):
        check_finite(X, repr(str(path)))
    y = y if labels is None else _load_labels(Path(labels).expanduser(), len(X))
    return X, y


def _load_array(path: Path, mapped: bool = False) -> NDArray[Any]:
    try:
        if mapped:
            return np.lib.format.open_memmap(path, mode="r")
        with path.open("rb") as file:
            return np.lib.format.read_array(file)
    except Exception as error:  # a damaged header makes NumPy raise errors of many classes
        raise ValueError(
            f"{str(path)!r} is not an array of numbers or strings ({reason(error)}); write it with "
            "numpy.save"
        ) from error


def _load_labels(path: Path, n_rows: int) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"labels={str(path)!r} is not a file; check the name")
    values = _load_array(path)
    if values.shape[:1] != (n_rows,):
        raise ValueError(
            f"labels={str(path)!r} has the shape {values.shape}, but there are {n_rows} rows; it "
            "must hold one label per row"
        )
    values = values[:, 0] if values.shape == (n_rows, 1) else values
    return checked_labels(values, f"labels={str(path)!r}")


def checked_labels(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Check that labels are finite numbers, booleans or strings."""
    if values.dtype.kind not in "biufU":
        raise ValueError(
            f"{where} holds {values.dtype}, but labels must be numbers, booleans or strings: "
            "convert them"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(
            f"{where} has the label {values[row]} in row {row}, which is not finite; correct it or "
            "drop the row"
        )
    return values


def _split(
    path: Path, label: str | None, features: Sequence[str] | None, with_labels: bool
) -> tuple[Any, NDArray[Any] | None]:
    """Return the features and the labels, or None, of a Parquet file."""
    content = read_parquet(path)
    columns = content.column_names
    label = label_column(path, columns, label)
    table = _as_frame(path, content, label if with_labels else None)
    vectors = [name for name in _vectors(content.schema) if name in (features or columns)]
    if len(vectors) > 1:
        raise ValueError(
            f"{path} has several columns of vectors ({listed(vectors)}): choose one (--text "
            f"{vectors[0]} on the command line)"
        )
    if vectors:
        X: Any = as_matrix(content.column(vectors[0]), f"{path}: column {vectors[0]!r}")
        X = X if X.dtype == np.float32 else X.astype(np.float64)
    else:
        numeric = [name for name in table.columns if table[name].dtype.kind in "fiu"]
        names = [name for name in numeric if name != label] if features is None else list(features)
        odd = sorted(set(names) - set(numeric))
        if odd or not names:
            raise ValueError(
                f"{path} has no numeric column{f's [{listed(odd, 5)}]' if odd else ''}; its "
                f"columns are {listed(columns)}: store each feature as a column of numbers, or "
                "pass the model that embeds its texts"
            )
        single = all(table[name].dtype == np.float32 for name in names)
        X = table[names].astype(np.float32 if single else np.float64)
    if not with_labels or label is None:
        return X, None
    if table[label].isna().any():
        raise ValueError(f"{path}: column {label!r} has empty cells; fill them in or drop the rows")
    return X, checked_labels(np.asarray(table[label].tolist()), f"{path}: column {label!r}")


def _vectors(schema: Any) -> list[str]:
    """Return the columns of lists of floats or, if no column has floats, of integers."""
    from pyarrow import types

    lists = {
        each.name: each.type.value_type for each in schema if hasattr(each.type, "value_field")
    }
    floats = [name for name, kind in lists.items() if types.is_floating(kind)]
    if floats or any(types.is_floating(each.type) for each in schema):
        return floats
    return [name for name, kind in lists.items() if types.is_integer(kind)]


def _as_frame(path: Path, content: Any, label: str | None) -> Any:
    """Convert the numeric columns and the column of labels to a DataFrame."""
    from pyarrow import types

    kind = None if label is None else content.schema.field(label).type
    if kind is not None and (types.is_nested(kind) or types.is_temporal(kind)):
        raise ValueError(
            f"{path}: column {label!r} holds {shortened(str(kind))}, but labels must be numbers, "
            "booleans or strings: convert them"
        )
    wanted = [
        field.name
        for field in content.schema
        if types.is_integer(field.type) or types.is_floating(field.type) or field.name == label
    ]
    try:
        return content.select(wanted).to_pandas()
    except Exception as error:  # damaged metadata of pandas raises errors of many classes
        raise ValueError(
            f"{path} cannot be converted to a DataFrame ({reason(error)}); write the file again"
        ) from error

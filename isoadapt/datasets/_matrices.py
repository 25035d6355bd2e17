"""Matrices of embeddings with labels, from .npy and Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.errors import reason
from isoadapt.datasets._parquet import check_plain, listed, read_parquet

_LABEL = "label"
_MAGIC = b"\x93NUMPY"


def load_matrix(
    path: str | os.PathLike[str],
    *,
    label: str | None = _LABEL,
    labels: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
) -> tuple[Any, NDArray[Any] | None]:
    """Read embeddings and labels from a .npy or Parquet file.

    Parameters
    ----------
    path : str or path-like
        The file, named ``*.npy`` (a matrix of numbers) or ``*.parquet`` (its numeric columns are
        the features).
    label : str or None, default="label"
        Column of the labels in a Parquet file. A file without a column "label" is read as one
        without labels; any other name must be there. None: no labels are read.
    labels : str or path-like, default=None
        A .npy file with a label for each row, instead of a column.
    features : sequence of str, default=None
        Columns of a Parquet file to take as features; None: all numeric ones but the label.

    Returns
    -------
    X : ndarray or DataFrame of shape (n_samples, n_features)
        Of float32 if the file is, else float64; a DataFrame, with names, from Parquet.
    y : ndarray of shape (n_samples,), or None
        The labels.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ImportError
        If a Parquet file is to be read, and pandas or pyarrow is not installed.
    ValueError
        If the file is of another kind or damaged, holds no finite numbers, or a column is
        missing, or labels and rows differ in number or labels are neither numbers nor strings.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} is no file; check the name")
    X: Any
    if path.suffix.lower() == ".npy":
        X, y = _load_array(path), None
        if X.ndim != 2 or X.dtype.kind not in "fiu":
            raise ValueError(
                f"{str(path)!r} holds {X.dtype} of shape {X.shape}; a matrix of numbers is needed"
            )
    elif path.suffix.lower() == ".parquet":
        X, y = _split(path, label, features)
    else:
        raise ValueError(
            f"{str(path)!r} is no matrix: .npy and .parquet files are; a table of texts needs the "
            "model that embeds them"
        )
    if not np.isfinite(np.asarray(X)).all():
        raise ValueError(f"{str(path)!r} holds NaN or infinite numbers; drop or mend those rows")
    y = y if labels is None else _load_labels(Path(labels).expanduser(), len(X))
    return X, y


def _load_array(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:  # NumPy would take it for a pickle or an archive
                raise ValueError("it does not begin as a .npy file does")
        return np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header makes NumPy raise errors of many classes
        raise ValueError(
            f"{str(path)!r} is no array of numbers or strings ({reason(error)}); write it with "
            "numpy.save"
        ) from error


def _load_labels(path: Path, n_rows: int) -> NDArray[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"labels={str(path)!r} is no file; check the name")
    values = _load_array(path)
    if values.shape[:1] != (n_rows,):
        raise ValueError(
            f"labels={str(path)!r} has the shape {values.shape}, but there are {n_rows} rows; one "
            "label a row is needed"
        )
    values = values[:, 0] if values.shape == (n_rows, 1) else values
    return _checked_labels(values, f"labels={str(path)!r}")


def _checked_labels(values: NDArray[Any], where: str) -> NDArray[Any]:
    """Check that labels are finite numbers, booleans or strings."""
    if values.dtype.kind not in "biufU":
        raise ValueError(
            f"{where} holds {values.dtype}; labels are numbers, booleans or strings: convert them"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(
            f"{where} has the label {values[row]} in row {row}, which is not finite; fill it in or "
            "drop the row"
        )
    return values


def _split(
    path: Path, label: str | None, features: Sequence[str] | None
) -> tuple[Any, NDArray[Any] | None]:
    """Features and label of a Parquet file."""
    content = read_parquet(path)
    columns = content.column_names
    if label is not None and label not in columns and label != _LABEL:
        raise ValueError(f"label={label!r} is no column of {path}; it has {listed(columns)}")
    table = _as_frame(path, content, label)
    numeric = [name for name in table.columns if table[name].dtype.kind in "fiu"]
    names = [name for name in numeric if name != label] if features is None else list(features)
    odd = sorted(set(names) - set(numeric))
    if odd or not names:
        raise ValueError(
            f"{path} has no numeric column{f's [{listed(odd, 5)}]' if odd else ''}; its columns "
            f"are {listed(columns)}: write each feature as a column of numbers, or pass the model "
            "that embeds its texts"
        )
    single = all(table[name].dtype == np.float32 for name in names)
    X = table[names].astype(np.float32 if single else np.float64)
    if label not in table.columns:
        return X, None
    if table[label].isna().any():
        raise ValueError(f"{path}: column {label!r} has empty cells; fill them in or drop the rows")
    return X, _checked_labels(np.asarray(table[label].tolist()), f"{path}: column {label!r}")


def _as_frame(path: Path, content: Any, label: str | None) -> Any:
    """Turn the columns of numbers and of labels into a DataFrame."""
    from pyarrow import types

    if label in content.column_names:
        check_plain(path, content.schema.field(label))
    wanted = [
        field.name
        for field in content.schema
        if types.is_integer(field.type) or types.is_floating(field.type) or field.name == label
    ]
    try:
        return content.select(wanted).to_pandas()
    except Exception as error:  # the metadata of pandas in a file may hold anything
        raise ValueError(f"{path} makes no table ({reason(error)}); write it again") from error

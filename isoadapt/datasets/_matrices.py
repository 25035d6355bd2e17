"""Matrices of embeddings with labels, from .npy and Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt.datasets._parquet import read_parquet

_LABEL = "label"


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
        missing, or labels and rows differ in number.
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
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} is no array of numbers or strings ({error}); write it with numpy.save"
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
    return values[:, 0] if values.shape == (n_rows, 1) else values


def _split(
    path: Path, label: str | None, features: Sequence[str] | None
) -> tuple[Any, NDArray[Any] | None]:
    """Features and label of a Parquet file."""
    table = read_parquet(path).to_pandas()
    if label is not None and label not in table.columns and label != _LABEL:
        raise ValueError(f"label={label!r} is no column of {path}; it has {list(table.columns)}")
    numeric = [name for name in table.columns if table[name].dtype.kind in "fiu"]
    names = [name for name in numeric if name != label] if features is None else list(features)
    odd = [name for name in names if name not in numeric]
    if odd or not names:
        raise ValueError(
            f"{path} has no numeric column{f's {odd[:5]}' if odd else ''}; its columns are "
            f"{list(table.columns)[:9]}: write each feature as a column of numbers, or pass the "
            "model that embeds its texts"
        )
    single = all(table[name].dtype == np.float32 for name in names)
    X = table[names].astype(np.float32 if single else np.float64)
    if label not in table.columns:
        return X, None
    if table[label].isna().any():
        raise ValueError(f"{path}: column {label!r} has empty cells; fill them in or drop the rows")
    values = np.asarray(table[label].tolist())
    return X, values

"""Reading of embeddings and labels from .npy and Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.containers import as_matrix, check_finite
from isoadapt._utils.messages import listed, reason
from isoadapt.datasets._tables import label_column, labels_of, read_parquet


def load_matrix(
    path: str | os.PathLike[str],
    *,
    label: str | None = "label",
    labels: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
    with_labels: bool = True,
    mapped: bool = False,
) -> tuple[Any, NDArray[Any] | None]:
    """Read embeddings (n, d), an array or a DataFrame, and labels (n,) or None."""
    path = Path(path).expanduser()
    X: Any
    if path.suffix.lower() == ".npy":
        X, y = _load_array(path, mapped), None
    elif path.suffix.lower() == ".parquet":
        X, y = _split(path, label, features, with_labels)
    else:
        raise ValueError(
            f"{str(path)!r} is not a .npy or .parquet file, from which embeddings are read; for a "
            "table of texts, pass the model that embeds them"
        )
    if X.ndim != 2 or (isinstance(X, np.ndarray) and X.dtype.kind not in "fiu"):
        raise ValueError(
            f"{str(path)!r} holds {X.dtype} of shape {X.shape}; it must hold a matrix of numbers, "
            "one row per text"
        )
    if not isinstance(X, np.memmap):
        check_finite(X, repr(str(path)))
    return X, y if labels is None else _load_labels(Path(labels).expanduser(), len(X))


def _load_array(path: Path, mapped: bool = False) -> NDArray[Any]:
    with path.open("rb") as file:
        try:
            if mapped:
                return np.lib.format.open_memmap(path, mode="r")
            return np.lib.format.read_array(file)
        except Exception as error:  # a damaged header makes NumPy raise errors of many classes
            raise ValueError(
                f"{str(path)!r} is not an array of numbers or strings ({reason(error)}); write it "
                "with numpy.save"
            ) from error


def _load_labels(path: Path, n_rows: int) -> NDArray[Any]:
    values = _load_array(path)
    values = values[:, 0] if values.shape == (n_rows, 1) else values
    if values.shape != (n_rows,) or values.dtype.kind not in "biufU":
        raise ValueError(
            f"labels={str(path)!r} holds {values.dtype} of shape {values.shape}, but there are "
            f"{n_rows} rows: it must hold one number, boolean or string for each"
        )
    return values if values.dtype.kind == "U" else check_finite(values, f"labels={str(path)!r}")


def _split(
    path: Path, label: str | None, features: Sequence[str] | None, with_labels: bool
) -> tuple[Any, NDArray[Any] | None]:
    """Return the features and the labels, or None, of a Parquet file."""
    table = read_parquet(path)
    label = label_column(path, table, label)
    y = labels_of(path, table[label]) if with_labels and label is not None else None
    cells = {name: next(iter(table[name].dropna()), None) for name in table}
    kinds = {name: getattr(cell, "dtype", table[name].dtype).kind for name, cell in cells.items()}
    kind = "f" if "f" in kinds.values() else "iu"  # token numbers beside floats are no vectors
    asked = [*table] if features is None else list(features)
    vectors = [name for name in asked if isinstance(cells.get(name), np.ndarray)]
    vectors = [name for name in vectors if kinds[name] in kind]
    if len(vectors) > 1:
        raise ValueError(
            f"{path} has several columns of vectors ({listed(vectors)}): choose one (--text "
            f"{vectors[0]} on the command line)"
        )
    if vectors:
        X = as_matrix(table[vectors[0]], f"{path}: column {vectors[0]!r}")
        return X if X.dtype == np.float32 else X.astype(np.float64), y
    numeric = [name for name in table if table[name].dtype.kind in "fiu"]
    names = [name for name in numeric if name != label] if features is None else asked
    odd = sorted(set(names) - set(numeric))
    if odd or not names:
        raise ValueError(
            f"{path} has no numeric column{f's [{listed(odd, 5)}]' if odd else ''}; it has "
            f"{listed([*table])}: store each feature as a column of numbers, or pass the model "
            "that embeds its texts"
        )
    single = all(table[name].dtype == np.float32 for name in names)
    return table[names].astype(np.float32 if single else np.float64), y

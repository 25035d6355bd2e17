"""Reading of embeddings and labels from .npy and Parquet files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.containers import as_matrix, check_finite
from isoadapt._utils.messages import listed, reason
from isoadapt.datasets._tables import label_columns, labels_of, read_table


def load_matrix(
    path: Path,
    *,
    label: str | None = "label",
    labels: str | os.PathLike[str] | None = None,
    features: Sequence[str] | None = None,
    with_labels: bool = True,
    mapped: bool = False,
) -> tuple[Any, NDArray[Any] | None]:
    """Read embeddings (n, d), an array or a DataFrame, and labels (n,) or None."""
    if path.suffix.lower() == ".npy":
        X, y = _load_array(path, mapped), None
    else:
        X, y = _split(path, label, features, with_labels)
    if X.ndim != 2 or (isinstance(X, np.ndarray) and X.dtype.kind not in "fiu"):
        raise ValueError(
            f"{path} holds {X.dtype} of shape {X.shape}, not numbers of shape (n_texts, n_features)"
        )
    if not isinstance(X, np.memmap):
        check_finite(X, repr(str(path)))
    return X, y if labels is None else _load_labels(Path(labels).expanduser(), len(X))


def _load_array(path: Path, mapped: bool = False) -> Any:
    try:
        return np.load(path, mmap_mode="r" if mapped else None)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{str(path)!r} holds no numbers or strings: {reason(error)}") from error


def _load_labels(path: Path, n_rows: int) -> NDArray[Any]:
    values = _load_array(path)
    if values.shape not in ((n_rows,), (n_rows, 1)) or values.dtype.kind not in "biufU":
        raise ValueError(
            f"labels={str(path)!r} holds {values.dtype} of shape {values.shape}, not one number, "
            f"boolean or string for each of {n_rows} rows"
        )
    values = values.ravel()
    return values if values.dtype.kind == "U" else check_finite(values, f"labels={str(path)!r}")


def _split(
    path: Path, label: str | None, features: Sequence[str] | None, with_labels: bool
) -> tuple[Any, NDArray[Any] | None]:
    """Return the features and the labels, or None, of a Parquet file."""
    table = read_table(path, lambda _: ([], []))  # Parquet has no separators
    own = label_columns(path, table, label)
    y = labels_of(path, table[own[0]]) if with_labels and own else None
    asked = [name for name in table if name not in own] if features is None else [*features]
    first: dict[str, Any] = {name: table[name].dropna().head(1).tolist() for name in table}
    kinds = {name: np.asarray(cell).dtype.kind for name, cell in first.items()}
    kind = "f" if "f" in kinds.values() else "iu"  # token numbers beside floats are not vectors
    vectors = [name for name in asked if np.ndim(first.get(name, 0)) == 2 and kinds[name] in kind]
    if len(vectors) > 1:
        raise ValueError(
            f"{path} has several columns of vectors ({listed(vectors)}): choose one (--text "
            f"{vectors[0]} on the command line)"
        )
    if vectors:
        X = as_matrix(table[vectors[0]], f"{path}: column {vectors[0]!r}")
        return X if X.dtype == np.float32 else X.astype(np.float64), y
    numeric = [name for name in table if table[name].dtype.kind in "fiu"]
    names = [name for name in asked if features is not None or name in numeric]
    if not names or {*names} - {*numeric}:
        raise ValueError(
            f"{path} has no columns of numbers [{listed([*{*names} - {*numeric}])}], but "
            f"{listed([*table])}: convert them, or pass the model that embeds its texts"
        )
    single = (table[names].dtypes == np.float32).all()
    return table[names].astype(np.float32 if single else np.float64), y

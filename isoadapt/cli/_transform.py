"""Implementation of ``isoadapt transform``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from isoadapt._utils.files import atomic_path
from isoadapt._utils.imports import import_optional
from isoadapt.cli._options import Console, recorded_model
from isoadapt.cli._sources import Columns, is_matrix, read_matrix, read_texts
from isoadapt.interop._exact import Exact
from isoadapt.interop._folder import read_folder
from isoadapt.interop._pipeline import take_apart


def transform(
    folder: Path,
    source: Path,
    columns: Columns,
    model: str | None,
    max_length: int | None,
    out: Path,
    console: Console,
) -> None:
    """Transform texts or a matrix of embeddings with a saved adapter, and write the result."""
    saved, base_model = read_folder(folder)
    parts = take_apart(saved)
    adapter = Pipeline(parts.adapters)
    if is_matrix(source, model):
        names = columns.texts() or getattr(adapter, "feature_names_in_", None)
        X = read_matrix(source, columns, features=names, with_labels=False).rows
    else:
        checkpoint = recorded_model(model, base_model)
        texts = read_texts([source], columns)
        encoder = parts.encoder_of(checkpoint)
        length = {} if max_length is None else {"max_length": max_length}
        encoder.set_params(device="auto", verbose=console.verbose, **length)
        if parts.recorded is not None:
            Exact.of(encoder).check(parts.recorded, "its record")
        X = texts.vectors(encoder)
    adapted = adapter.transform(X)
    with atomic_path(out.expanduser()) as path:
        _write(path, adapted, adapter.get_feature_names_out().tolist())
    n, d = adapted.shape
    console.show(
        f"Wrote {n} × {d} ({adapted.dtype}): {out}",
        {"file": str(out), "n_samples": n, "n_features": d, "dtype": str(adapted.dtype)},
    )


def _write(path: Path, adapted: NDArray[Any], names: list[str]) -> None:
    """Write a matrix in the format of the suffix."""
    table = pd.DataFrame(adapted, columns=names)
    if path.suffix.lower() == ".npy":
        with path.open("wb") as file:
            np.save(file, adapted)
    elif path.suffix.lower() == ".csv":  # with all digits of the dtype
        table.to_csv(path, index=False)
    else:
        import_optional("pyarrow", feature="Writing Parquet", extra="data")
        table.to_parquet(path, index=False)

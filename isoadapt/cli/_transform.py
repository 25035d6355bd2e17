"""Implementation of ``isoadapt transform``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path
from isoadapt._utils.imports import import_optional
from isoadapt.cli._options import (
    Console,
    Source,
    WrongUsage,
    read_rows,
    recorded_length,
    recorded_model,
)
from isoadapt.encoders._identity import recorded_pooling, vector_source
from isoadapt.interop import load_adapter
from isoadapt.interop._folder import provenance, read_config
from isoadapt.interop._merge import check_vectors
from isoadapt.interop._pipeline import SOURCE, take_apart

_MATRICES = (".npy", ".csv", ".parquet")


def transform(folder: Path, rows: Source, out: Path, overwrite: bool, console: Console) -> None:
    """Transform texts or a matrix of embeddings with a saved adapter, and write the result."""
    _check_out(out, rows.path, overwrite)
    with console.notes():
        adapter = take_apart(load_adapter(folder)).without_encoder()
        rows = _with_recorded_model(rows, adapter, provenance(read_config(folder)))
        _check_recorded_source(adapter, rows)
        names = getattr(adapter, "feature_names_in_", None)
        X, _ = read_rows(rows, features=names, with_labels=False, verbose=console.verbose)
        adapted = adapter.transform(X)
    with atomic_path(out.expanduser()) as path:
        _write(path, adapted, adapter.get_feature_names_out().tolist())
    n, d = adapted.shape
    console.show(
        f"Wrote {n} × {d} ({adapted.dtype}): {out}",
        {"file": str(out), "n_samples": n, "n_features": d, "dtype": str(adapted.dtype)},
    )


def _check_out(out: Path, source: Path, overwrite: bool) -> None:
    """Check that ``out`` can be written before anything is read."""
    if out.suffix.lower() not in _MATRICES:
        raise WrongUsage(
            f"{str(out)!r} must end in .npy, .csv or .parquet, which determines the format"
        )
    if not out.expanduser().parent.is_dir():
        raise FileNotFoundError(f"{str(out.parent)!r} is not a folder; create it first")
    if out.expanduser().resolve() == source.expanduser().resolve():
        raise WrongUsage(f"{str(out)!r} is the input file; give another name for the result")
    if out.expanduser().exists() and not overwrite:
        raise FileExistsError(
            f"{str(out)!r} exists; choose another name, or allow it to be replaced (--overwrite)"
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


def _with_recorded_model(source: Source, adapter: Any, origin: dict[str, Any]) -> Source:
    """Fill in what the adapter folder records: layers, and model and length if not given."""
    recorded = getattr(take_apart(adapter).first(), SOURCE, None)
    if recorded is not None:
        source = source._replace(pooling=recorded_pooling(recorded.kind))
    if source.max_length is None:
        source = source._replace(max_length=recorded_length(origin["data"]))
    if source.is_matrix() or source.model is not None:
        return source
    return source._replace(model=str(recorded_model(None, origin["base_model"])))


def _check_recorded_source(adapter: Any, source: Source) -> None:
    """Raise ValueError if the texts are embedded by another encoder than the recorded one."""
    recorded = getattr(take_apart(adapter).first(), SOURCE, None)
    if recorded is not None and not source.is_matrix():
        encoder = TransformerEncoder(source.model, pooling=source.pooling)
        kind = str(vector_source(encoder).kind)
        check_vectors(recorded, "its record", encoder._backbone(), kind)

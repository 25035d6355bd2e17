"""Implementation of ``isoadapt transform``."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt import TransformerEncoder
from isoadapt._utils.files import atomic_path
from isoadapt._utils.imports import import_optional
from isoadapt.cli._options import Console, Source, WrongUsage, read_rows
from isoadapt.encoders._identity import recorded_pooling, vector_source
from isoadapt.interop import load_adapter
from isoadapt.interop._folder import provenance, read_config
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
    if out.expanduser().is_dir():
        raise IsADirectoryError(f"{str(out)!r} is a folder; give the name of a file")
    if out.expanduser().resolve() == source.expanduser().resolve():
        raise WrongUsage(f"{str(out)!r} is the input file; give another name for the result")
    if out.expanduser().exists() and not overwrite:
        raise FileExistsError(
            f"{str(out)!r} exists; choose another name, or allow it to be replaced (--overwrite)"
        )


def _write(path: Path, adapted: NDArray[Any], names: list[str]) -> None:
    """Write a matrix in the format of the suffix."""
    if path.suffix.lower() == ".npy":
        with path.open("wb") as file:
            np.save(file, adapted)
        return
    if path.suffix.lower() == ".csv":  # with all digits of the dtype
        digits = "%.9g" if adapted.dtype == np.float32 else "%.17g"
        np.savetxt(path, adapted, digits, ",", header=",".join(names), comments="")
        return
    pyarrow = import_optional("pyarrow", feature="Writing Parquet", extra="data")
    parquet = import_optional("pyarrow.parquet", feature="Writing Parquet", extra="data")
    arrays = [np.ascontiguousarray(column) for column in adapted.T]
    parquet.write_table(pyarrow.table(arrays, names=names), path)


def _with_recorded_model(source: Source, adapter: Any, origin: dict[str, Any]) -> Source:
    """Fill in what the adapter folder records: layers, and model and length if not given."""
    recorded = getattr(take_apart(adapter).first(), SOURCE, None)
    if recorded is not None:
        source = source._replace(pooling=recorded_pooling(recorded.kind))
    data = origin["data"] if isinstance(origin["data"], dict) else {}
    if source.max_length is None and isinstance(data.get("max_length"), int):
        source = source._replace(max_length=data["max_length"])
    base = origin["base_model"]
    if source.is_matrix() or source.model is not None:
        return source
    if base is None or not Path(base).is_dir():
        raise WrongUsage(
            f"{str(source.path)!r} is read as a table of texts, and the model that the adapter "
            f"records ({base!r}) is not a folder here: pass --model"
        )
    return source._replace(model=base)


def _check_recorded_source(adapter: Any, source: Source) -> None:
    """Raise ValueError if the texts are embedded by another encoder than the recorded one."""
    recorded = getattr(take_apart(adapter).first(), SOURCE, None)
    if recorded is None or source.is_matrix():
        return
    encoder = TransformerEncoder(source.model, pooling=source.pooling)
    kind = vector_source(encoder).kind
    if recorded.kind not in (kind, None):
        raise ValueError(
            f"the adapter was fitted to vectors with {recorded.kind}, but model={source.model!r} "
            f"gives vectors with {kind}: embed the texts in Python with a TransformerEncoder with "
            f"{recorded.kind}, and pass the matrix as a .npy file"
        )
    if not recorded.is_of(encoder._backbone()):
        raise ValueError(
            f"model={source.model!r} is another checkpoint (other weights or another tokenizer) "
            "than the one that the adapter was fitted with: pass that checkpoint or a copy of it "
            "with --model, or fit the adapter again"
        )

"""Implementation of ``isoadapt audit``."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from isoadapt import TransformerEncoder
from isoadapt.cli._options import say
from isoadapt.cli._rows import check_several_rows
from isoadapt.datasets import load_matrix, load_table
from isoadapt.encoders import layer_report, measure_truncation
from isoadapt.metrics import isotropy_report


def audit(
    source: str,
    texts: Path | None,
    text: list[str] | None,
    label: str | None,
    max_length: int | None,
    layers: bool,
    as_json: bool,
) -> None:
    """Print the isotropy of the embeddings of texts, or of a matrix of embeddings."""
    truncation = None
    if layers:
        _check_layers(source, label)
    if _is_matrix(source):
        X, groups = _read_matrix(source, texts, label)
        check_several_rows(X, source)
    else:
        encoder, rows, groups = _read_texts(source, texts, text, label, max_length)
        truncation = measure_truncation(encoder, rows)
        if layers:
            _print_report(lambda: layer_report(encoder, rows), as_json, truncation)
            return
        check_several_rows(rows, str(texts))
        X = encoder.transform(rows)
    _print_report(lambda: isotropy_report(X, groups=groups), as_json, truncation)


def _check_layers(source: str, label: str | None) -> None:
    if _is_matrix(source):
        raise ValueError(
            f"--layers needs a checkpoint and texts, but {source!r} is a matrix, which has no "
            "layers. Omit --layers, or name the checkpoint"
        )
    if label is not None:
        raise ValueError(
            f"--label {label} cannot be combined with --layers, because tokens have no class. "
            "Omit one of them"
        )


def _is_matrix(source: str) -> bool:
    """Return whether the source is a file of embeddings rather than a checkpoint."""
    return source.lower().endswith((".npy", ".parquet"))


def _read_matrix(source: str, texts: Path | None, label: str | None) -> tuple[Any, Any]:
    if texts is not None:
        raise ValueError(f"texts={str(texts)!r} needs a checkpoint, but {source!r} is a matrix")
    if label is not None and source.lower().endswith(".npy"):
        raise ValueError(f"--label {label}: a .npy matrix has no columns. Use Parquet")
    X, labels = load_matrix(source, label=label or "label")
    return X, labels if label else None


def _read_texts(
    source: str,
    texts: Path | None,
    text: list[str] | None,
    label: str | None,
    max_length: int | None,
) -> tuple[Any, Any, Any]:
    """Return the encoder of a checkpoint, the texts of a table, and their labels if named."""
    if texts is None:
        raise ValueError(
            f"{source!r} is read as a checkpoint, which needs texts: isoadapt audit {source} "
            "texts.tsv (the name of a matrix must end in .npy or .parquet)"
        )
    rows, labels = load_table(texts, text=text, label=label)
    encoder = TransformerEncoder(source, max_length=max_length, verbose=1)
    return encoder, rows, labels if label else None


def _print_report(measure: Callable[[], Any], as_json: bool, truncation: Any) -> None:
    """Measure and print the report and the truncation of the texts. Warnings become notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        report = measure()
    for warning in caught:
        say(f"Note: {warning.message}")
    if as_json:
        figures = report.to_dict() | ({"truncation": truncation.to_dict()} if truncation else {})
        typer.echo(json.dumps(_plain(figures), indent=2))
        return
    typer.echo(str(report))
    if truncation is not None:
        typer.echo(str(truncation))


def _plain(value: Any) -> Any:
    """Replace NaN by None in nested figures, because JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if value != value else value

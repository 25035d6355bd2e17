"""Implementation of ``isoadapt export``."""

from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from isoadapt import TransformerEncoder
from isoadapt.cli._options import Console, WrongUsage
from isoadapt.encoders import names_classifier
from isoadapt.interop import (
    load_adapter,
    provenance,
    read_config,
    take_apart,
    to_sentence_transformer,
)


def export(
    folder: Path, model: Path | None, out: Path, normalize: bool, overwrite: bool, console: Console
) -> None:
    """Write an adapter and its encoder as one folder, and print how to load it."""
    with console.notes():
        adapter, origin = load_adapter(folder), provenance(read_config(folder))
        source = _checkpoint(model, origin["base_model"])
        to_sentence_transformer(
            _with_length(adapter, source, origin["data"]),
            source,
            out,
            normalize=normalize,
            overwrite=overwrite,
        )
    lines = [
        f"Exported: {out}",
        f"Vectors: sentence_transformers.SentenceTransformer({str(out)!r})",
    ]
    classifies = names_classifier(out.expanduser())
    if classifies:
        lines.append(f"Labels: transformers.pipeline('text-classification', {str(out)!r})")
    console.show("\n".join(lines), {"model": str(out), "classifies": classifies})


def _checkpoint(model: Path | None, recorded: Any) -> Path:
    """Return the checkpoint that was given, or else the one that the adapter records."""
    if model is not None:
        return model
    if recorded is None or not Path(recorded).is_dir():
        raise WrongUsage(
            f"the model that the adapter records ({recorded!r}) is not a folder here: pass --model"
        )
    return Path(recorded)


def _with_length(adapter: Any, model: Path, data: Any) -> Any:
    """Put an encoder with the recorded maximum length before an adapter without an encoder."""
    length = data.get("max_length") if isinstance(data, dict) else None
    parts = take_apart(adapter)
    if parts.encoder is not None or not isinstance(length, int):
        return adapter
    encoder = TransformerEncoder(model, max_length=length)
    head = [] if parts.head is None else [parts.head]
    return Pipeline([("encoder", encoder), *parts.adapters, *head])

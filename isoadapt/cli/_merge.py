"""Implementation of ``isoadapt merge``."""

from pathlib import Path

import typer

from isoadapt.interop import load_adapter, merge_into_checkpoint, take_apart


def merge(folder: Path, model: Path, out: Path, overwrite: bool) -> None:
    """Merge an affine adapter into a checkpoint, and print how to load the result."""
    adapter = load_adapter(folder)
    merge_into_checkpoint(adapter, model, out, overwrite=overwrite)
    head = "the checkpoint's, because the adapter has none; predictions may change"
    if take_apart(adapter).last_head() is not None:
        head = "the adapter's"
    typer.echo(
        f"Merged: {out}\nIts head is {head}.\nLoad it with transformers: "
        f"AutoModelForSequenceClassification.from_pretrained({str(out)!r})"
    )

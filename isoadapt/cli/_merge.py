"""Implementation of ``isoadapt merge``."""

from pathlib import Path

from isoadapt.cli._options import Console
from isoadapt.interop import load_adapter, merge_into_checkpoint
from isoadapt.interop._pipeline import take_apart


def merge(folder: Path, model: Path, out: Path, overwrite: bool, console: Console) -> None:
    """Merge an affine adapter into a checkpoint, and print how to load the result."""
    with console.notes():
        adapter = load_adapter(folder)
        merge_into_checkpoint(adapter, model, out, overwrite=overwrite)
    own = take_apart(adapter).last_head() is not None
    head = "the checkpoint's, because the adapter has none; predictions may change"
    if own:
        head = "the adapter's, so that it predicts what the adapter predicts"
    console.show(
        f"Merged: {out}\nIts head is {head}.\nLoad it with transformers: "
        f"AutoModelForSequenceClassification.from_pretrained({str(out)!r})",
        {"checkpoint": str(out), "head": "adapter" if own else "checkpoint"},
    )

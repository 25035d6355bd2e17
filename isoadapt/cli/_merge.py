"""The command ``isoadapt merge``."""

from pathlib import Path
from typing import Annotated

import typer

from isoadapt.cli._options import OverwriteCheckpoint
from isoadapt.interop import load_adapter, merge_into_checkpoint


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved affine adapter.")],
    model: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for the merged checkpoint.")],
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Fold an affine adapter into a checkpoint, which then is served without isoadapt."""
    adapter = load_adapter(folder)
    merge_into_checkpoint(adapter, model, out, overwrite=overwrite)
    head = "the checkpoint's, for the adapter has none: predictions may change"
    if adapter.head_ is not None:
        head = "the adapter's"
    typer.echo(
        f"Merged: {out}\nIts head is {head}.\nLoad it with transformers alone: "
        f"AutoModelForSequenceClassification.from_pretrained({str(out)!r})"
    )

"""The commands with their options and help, imported without what they need to run."""

from pathlib import Path
from typing import Annotated

import typer

from isoadapt.adapters import METHODS
from isoadapt.cli._options import (
    TABLE,
    Label,
    MaxLength,
    OverwriteCheckpoint,
    Source,
    Table,
    Tables,
    Text,
    columns,
)
from isoadapt.finetune import PENALTIES, RECIPES


def demo(
    train: Table = None,
    dev: Table = None,
    text: Text = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Your fine-tuned checkpoint, in place of a MiniLM.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoint, picture and pipeline.")] = Path(
        "isoadapt-demo"
    ),
) -> None:
    """Fine-tune (or take) a checkpoint, fit every adapter, and compare them in one table."""
    from isoadapt.cli import _demo

    _demo.demo(train, dev, columns(text), checkpoint, out)


def audit(
    source: Annotated[
        str, typer.Argument(help="A checkpoint (folder or name), or a matrix: .npy, .parquet.")
    ],
    texts: Annotated[
        Path | None, typer.Argument(help="Texts for a checkpoint: .tsv, .csv, .parquet.")
    ] = None,
    text: Text = None,
    label: Annotated[
        str | None, typer.Option(help="Column of labels, to report each class too.")
    ] = None,
    max_length: MaxLength = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Report the tokens of each layer instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the isotropy of a model on texts, or of a matrix of embeddings."""
    from isoadapt.cli import _audit

    _audit.audit(source, texts, columns(text), label, max_length, layers, as_json)


def finetune(
    model: Annotated[str, typer.Option(help="Folder or name of the model to start from.")],
    train: Annotated[Path, typer.Option(help=TABLE)],
    dev: Annotated[Path | None, typer.Option(help="Such a table to judge the result on.")] = None,
    penalty: Annotated[
        str | None, typer.Option(help=f"What joins the task's loss: {', '.join(PENALTIES)}.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE...",
            help="Several after one --set or each its own. Of the penalty: lam, its weight (1 by "
            "default: for istar that is MORE isotropy, -1 is less), balance (ema, cumulative), "
            "and its parameters, such as zeta (istar) or bars (topological-entropy). Of the "
            "training: epochs, lr, batch_size, warmup, weight_decay, random_state, device.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Train with the optimiser, schedule, epochs and batches of a paper; this sets no "
            f"penalty: {', '.join(RECIPES)} (CosReg, spectrum control, flow)."
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            help="What is penalised: head_input, last, all, or layers like 1,6; else the "
            "penalty's own place."
        ),
    ] = None,
    text: Text = None,
    label: Label = None,
    max_length: Annotated[int, typer.Option(help="Tokens a text is cut to.")] = 128,
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint.")] = Path(
        "isoadapt-finetuned"
    ),
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Fine-tune a classifier, with or without an isotropy penalty, and judge it."""
    from isoadapt.cli import _finetune

    tables = Tables(train, dev, columns(text), label, max_length)
    given = [*(settings or []), *([f"where={where}"] if where else [])]
    typer.echo(_finetune.finetune(model, tables, penalty, given, recipe, out, overwrite))


def fit(
    name: Annotated[str, typer.Argument(help=f"The adapter: {', '.join(METHODS)}.")],
    on: Annotated[
        Path, typer.Option(help="Texts (.tsv, .csv, .parquet), or a .npy or .parquet matrix.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the adapter.")],
    model: Annotated[
        str | None,
        typer.Option(help="Checkpoint that embeds the texts; its head is the adapter's head."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE...",
            help="Parameters, several after one --set or each its own.",
        ),
    ] = None,
    text: Text = None,
    label: Label = None,
    labels: Annotated[Path | None, typer.Option(help="Labels beside a .npy matrix.")] = None,
    max_length: MaxLength = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an adapter.")] = False,
) -> None:
    """Fit an adapter to texts or to a matrix of embeddings, and save it as a folder."""
    from isoadapt.cli import _fit

    source = Source(on, model, label, labels, max_length, columns(text))
    typer.echo(_fit.fit(name, source, out, settings or [], overwrite))


def transform(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved adapter.")],
    source: Annotated[Path, typer.Argument(help="Texts, or a .npy or .parquet matrix.")],
    out: Annotated[Path, typer.Argument(help="File for the result, .npy or .parquet.")],
    model: Annotated[
        str | None, typer.Option(help="Checkpoint for texts; else the one it was fitted with.")
    ] = None,
    text: Text = None,
    label: Annotated[str | None, typer.Option(help="Column of labels, which is left out.")] = None,
    max_length: MaxLength = None,
) -> None:
    """Adapt texts, or a matrix of embeddings, by a saved adapter."""
    from isoadapt.cli import _transform

    rows = Source(source, model, label, max_length=max_length, text=columns(text))
    _transform.transform(folder, rows, out)


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder of a saved affine adapter.")],
    model: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    out: Annotated[Path, typer.Argument(help="Folder for the merged checkpoint.")],
    overwrite: OverwriteCheckpoint = False,
) -> None:
    """Fold an affine adapter into a checkpoint, which then is served without isoadapt."""
    from isoadapt.cli import _merge

    _merge.merge(folder, model, out, overwrite)

"""What the commands share: types of their options, and how they speak to the user."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

TABLE = "TSV, CSV or Parquet with a header: sentence (or sentence1, sentence2) and label."

Table = Annotated[Path | None, typer.Option(help=TABLE)]
Text = Annotated[
    str | None, typer.Option(help="Column of texts, or two of pairs as A,B; else found by name.")
]
Label = Annotated[str | None, typer.Option(help="Column of labels.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens a text is cut to.")]
OverwriteCheckpoint = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint.")]


def columns(text: str | None) -> list[str] | None:
    """Split the value of ``--text`` into the names of columns."""
    return None if text is None else text.split(",")


def say(message: str) -> None:
    """Print a message to standard error, apart from the result of the command."""
    typer.echo(message, err=True)


@contextmanager
def notes() -> Iterator[None]:
    """Print the warnings of the block as notes, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(" ".join(str(warning.message).split()) for warning in caught):
        say(f"Note: {message}")

"""What the commands share: types of their options, and how they speak to the user."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

TABLE = "TSV, CSV or Parquet with a header: sentence (or sentence1, sentence2) and label."

Table = Annotated[Path | None, typer.Option(help=TABLE)]
Text = Annotated[
    str | None, typer.Option(help="Column of texts, or two of pairs as A,B; else found by name.")
]
Label = Annotated[str | None, typer.Option(help="Column of labels.")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens a text is cut to.")]
OverwriteCheckpoint = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint.")]


class Source(NamedTuple):
    """File of rows, with the model that embeds its texts and with its labels."""

    path: Path
    model: str | None = None
    label: str | None = None  # a column; None is "label", where there is one
    labels: Path | None = None  # a file beside a .npy matrix
    max_length: int | None = None
    text: list[str] | None = None  # one column or two of pairs; None finds them by name

    def is_matrix(self) -> bool:
        """Whether the file holds embeddings: .npy does, and Parquet unless there is a model."""
        suffix = self.path.suffix.lower()
        return suffix == ".npy" or (suffix == ".parquet" and self.model is None)


class Tables(NamedTuple):
    """Tables to train on and to judge on, and what is read of them."""

    train: Path
    dev: Path | None
    text: list[str] | None  # one column or two of pairs; None finds them by name
    label: str | None  # None is "label"
    max_length: int


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

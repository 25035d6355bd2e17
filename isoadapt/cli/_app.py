"""The application with its commands, in the order of its help, and its entry point."""

import sys
from typing import Annotated

import typer

from isoadapt import __version__
from isoadapt._utils.errors import reason
from isoadapt.cli._commands import audit, compare, demo, finetune, fit, merge, transform
from isoadapt.cli._settings import SettingsCommand

_EXPECTED = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _common(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Measure and repair the anisotropy of fine-tuned transformer embeddings."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


app.command()(demo)
app.command()(audit)
app.command()(compare)
app.command(cls=SettingsCommand)(finetune)
app.command(cls=SettingsCommand)(fit)
app.command()(transform)
app.command()(merge)


def main() -> None:
    """Run the program. An expected error is printed on one line, without a traceback."""
    try:
        app()
    except _EXPECTED as error:
        sys.exit(f"isoadapt: {reason(error)}")

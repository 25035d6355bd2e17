"""The application with its commands, in the order of its help, and its entry point."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from isoadapt import __version__
from isoadapt._utils.errors import reason
from isoadapt.cli._commands import (
    audit,
    compare,
    demo,
    export,
    finetune,
    fit,
    merge,
    transform,
)
from isoadapt.cli._options import WrongUsage
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
app.command()(export)


def main() -> None:
    """Run the program.

    An expected error is printed on one line, without a traceback. The exit status is 2 for wrong
    usage, 1 for other errors, and 130 after an interrupt.
    """
    try:
        _check_arguments(sys.argv[1:])
        app()
    except WrongUsage as error:
        typer.echo(f"isoadapt: {reason(error)}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except _EXPECTED as error:
        sys.exit(f"isoadapt: {reason(error)}")


def _check_arguments(arguments: Sequence[str]) -> None:
    """Raise WrongUsage for an argument with a null byte, which no operating system accepts."""
    for argument in arguments:
        if "\0" in argument:
            raise WrongUsage(
                f"the argument {argument!r} has a null byte, which no path or name may contain; "
                "remove it"
            )

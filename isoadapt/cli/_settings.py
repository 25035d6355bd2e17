"""Parameters on the command line: ``--set name=value name=value``."""

import ast
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

from isoadapt.cli._options import WrongUsage

_FLAG = "--set"
_SETTING = re.compile(r"[A-Za-z_]\w*=")


class SettingsCommand(TyperCommand):
    """A command that accepts several settings after one ``--set``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments after inserting the flag before each setting."""
        return super().parse_args(ctx, list(_flagged(args)))


def _flagged(args: Sequence[str]) -> Iterator[str]:
    """Insert the flag before each setting that follows another setting."""
    after_flag = in_settings = False
    for argument in args:
        if in_settings and _SETTING.match(argument):
            yield _FLAG
        else:
            in_settings = after_flag
        after_flag = argument == _FLAG
        yield argument


def read_settings(settings: Sequence[str], known: Collection[str], taker: str) -> dict[str, Any]:
    """Read ``name=value``, where a value is a JSON or Python literal or else a string."""
    values = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name not in known:
            raise WrongUsage(
                f"--set {setting}: {taker} takes name=value with the names {', '.join(known)}"
            )
        values[name] = _literal(text)
    return values


def _literal(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return text

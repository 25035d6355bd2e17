"""What the docstrings of several adapters share, which is in the file docstrings.txt."""

import inspect
import json
import re
from pathlib import Path

_TEXT = Path(__file__).with_name("docstrings.txt").read_text("utf-8")
_PARTS = re.findall(r"^# (.+)\n((?:(?!# ).*\n)+)", _TEXT, re.MULTILINE)


def fill_docstring(cls: type) -> None:
    """Replace lines such as ``<head>`` by their parts, and ``<name>`` by the class's default."""
    text = inspect.cleandoc(cls.__doc__ or "") + "\n"  # which Python 3.13 does when it compiles
    for marker, part in _PARTS:
        text = text.replace(f"\n<{marker}>\n", f"\n{part.rstrip()}\n")
    for name, value in ((name, getattr(cls, name, None)) for name in dir(cls)):
        shown = json.dumps(value) if isinstance(value, str) else repr(value)
        text = text.replace(f"default=<{name}>", f"default={shown}")
    cls.__doc__ = text

"""What is shown to the user: warnings, error messages, and tables as text and as HTML."""

import html
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

_AROUND = ("isoadapt", "sklearn", "joblib", "contextlib")  # packages whose lines are skipped
_UNLIKE = 0.5  # similarity from which a name is suggested


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Give a warning for the line that called this package, or scikit-learn or joblib around it."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _AROUND:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def shows_progress(verbose: int | bool) -> bool:
    """Whether to show a progress bar: if `verbose` and the standard error stream is a terminal."""
    return bool(verbose and sys.stderr and sys.stderr.isatty())  # services have no such stream


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def choices(name: str, known: Collection[str]) -> str:
    """Say which names there are, and which of them is most like a wrong name."""
    plain = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), plain, n=1, cutoff=_UNLIKE)
    guess = f"; did you mean {plain[found[0]]!r}?" if found else ""
    shown = [repr(each) if "," in each else each for each in known]
    return f"choose from {', '.join(dict.fromkeys(shown))}{guess}"


def listed(names: Sequence[Any], most: int = 16) -> str:
    """Join names for a message; if there are more than `most`, give their number instead."""
    joined = ", ".join(map(shown, names[:most]))
    return joined if len(names) <= most else f"{joined}, … ({len(names)} in all)"


def shown(value: Any) -> str:
    """Return the repr of a value on one line, truncated to 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:60]}…"


def aligned_table(
    rows: Sequence[Sequence[str]],
    *,
    rule: bool = False,
    left: Collection[int] = (0,),
    at_least: Sequence[int] = (),
) -> str:
    """Align cells in columns, to the left in those with an index in `left`, else to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[: len(at_least)] = map(max, widths, at_least)
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    if rule:
        lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in lines)


def html_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of texts, which are escaped, as HTML."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    caption = f"<caption>{html.escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_paragraphs(texts: Iterable[str]) -> str:
    """Return texts, which are escaped, as paragraphs of HTML."""
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)

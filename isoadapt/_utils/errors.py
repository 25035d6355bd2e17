"""Formatting of error messages."""

import re
from collections.abc import Collection
from difflib import get_close_matches

_UNLIKE = 0.4  # similarity from which a name is suggested


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, or the name of its class if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def choices(name: str, known: Collection[str]) -> str:
    """Say which names there are, and which of them is most like a wrong name."""
    plain = {_plain(each): each for each in known}
    found = get_close_matches(_plain(name), plain, n=1, cutoff=_UNLIKE)
    guess = f"; did you mean {plain[found[0]]!r}?" if found else ""
    shown = [repr(each) if "," in each else each for each in known]
    return f"choose from {', '.join(dict.fromkeys(shown))}{guess}"


def _plain(name: str) -> str:
    """Drop case, punctuation and "adapter", so that names of classes are recognised."""
    return re.sub(r"[\W_]", "", name.lower()).removesuffix("adapter")

"""Markdown tables, and replacement of sections in Markdown files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False
) -> str:
    """Return a Markdown table with the first column aligned left and the others right.

    With `words`, all columns are aligned left.
    """
    rule = ["---", *["---" if words else "---:"] * (len(header) - 1)]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (escaped[0], rule, *escaped[1:]))


def frame_table(frame: pd.DataFrame) -> str:
    """Return a frame of text as a Markdown table: the index, then the columns; NaN is empty."""
    shown = frame.reset_index().astype(object).fillna("").astype(str)
    return markdown_table([*map(str, shown)], shown.to_numpy().tolist())


def replace_section(path: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name:begin -->` and `<!-- name:end -->` in a file."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = path.read_text("utf-8")
    if old.count(begin) != 1 or old.count(end) != 1 or old.find(end) < old.find(begin):
        raise ValueError(f"{path.name} must hold {begin} and {end} once each, in this order")
    before, _, after = old.partition(begin)
    rest = after.partition(end)[2]
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest}", "utf-8")

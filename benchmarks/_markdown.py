"""Markdown tables, and replacement of sections in Markdown files."""

from collections.abc import Sequence
from pathlib import Path

from isoadapt._utils.files import atomic_path


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False
) -> str:
    """Return a Markdown table with the first column aligned left and the others right.

    With `words`, all columns are aligned left.
    """
    rule = ["---", *["---" if words else "---:"] * (len(header) - 1)]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    escaped.insert(1, rule)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def replace_section(path: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- name:begin -->` and `<!-- name:end -->` in a file, atomically.

    A missing section is appended, and a missing file is created. The rest of the file does not
    change. ValueError is raised unless each marker occurs once, in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if begin in text or end in text:
        raise ValueError(f"the text of section {name!r} must not contain its own markers")
    old = path.read_bytes().decode("utf-8") if path.exists() else "# Results\n"
    section = f"{begin}\n\n{text.strip()}\n\n{end}"
    if begin not in old and end not in old:
        new = f"{old.rstrip()}\n\n{section}\n"
    else:
        first, last = old.find(begin), old.find(end)
        if old.count(begin) != 1 or old.count(end) != 1 or last < first:
            raise ValueError(f"{path.name} must hold {begin} and {end} once each, in this order")
        new = old[:first] + section + old[last + len(end) :]
    with atomic_path(path) as temporary:
        temporary.write_bytes(new.encode("utf-8"))

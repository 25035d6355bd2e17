"""Tables of text."""

from collections.abc import Sequence


def aligned_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format cells as a table, with the first column to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    texts = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    rule = "-" * len(texts[0])
    return "\n".join([texts[0].rstrip(), rule, *(text.rstrip() for text in texts[1:])])

"""Tables of text."""

from collections.abc import Collection, Sequence


def aligned_table(
    rows: Sequence[Sequence[str]],
    *,
    rule: bool = False,
    left: Collection[int] = (0,),
    at_least: Sequence[int] = (),
) -> str:
    """Align the cells of rows in columns that are two spaces apart.

    Columns are aligned to the right, those with an index in `left` to the left. `at_least` are the
    smallest widths of the first columns. With `rule`, a line of dashes follows the first row.
    """
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

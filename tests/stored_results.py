"""Tables of RESULTS.md and SPEED.md as data, with which tests compare the figures of pages."""

from itertools import takewhile
from pathlib import Path

RESULTS, SPEED = (Path(__file__).parents[1] / f"benchmarks/{n}.md" for n in ["RESULTS", "SPEED"])


def table(start: str) -> dict[str, dict[str, str]]:
    """Give a table by the start of its first line: by row, the text of each column."""
    (_, *columns), *found = _lines(start)
    return {name: dict(zip(columns, values, strict=True)) for name, *values in found}


def _lines(start: str) -> list[list[str]]:
    lines = [line for path in (RESULTS, SPEED) for line in path.read_text("utf-8").splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {start}"))
    body = takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [_cells(line) for line in (lines[first], *body)]


def number(text: str) -> float:
    """Read the mean of a cell such as "0.742 ± 0.002"."""
    return float(text.split("±")[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]

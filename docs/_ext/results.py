"""Tables of benchmarks/RESULTS.md as data, so that pages and pictures show stored figures."""

from pathlib import Path

RESULTS = Path(__file__).parents[2] / "benchmarks" / "RESULTS.md"


def table(start: str) -> dict[str, dict[str, str]]:
    """Give a table by the start of its first line: by row, the text of each column."""
    lines = RESULTS.read_text("utf-8").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {start}"))
    columns = _cells(lines[first])[1:]
    rows = {}
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        name, *values = _cells(line)
        rows[name] = dict(zip(columns, values, strict=True))
    return rows


def number(text: str) -> float:
    """Read the mean of a cell such as "0.742 ± 0.002"."""
    return float(text.split("±")[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]

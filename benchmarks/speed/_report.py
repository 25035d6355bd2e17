"""Tables of speed figures as text and as Markdown."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks._markdown import markdown_table
from benchmarks._versions import written
from benchmarks.speed._harness import Comparison, Measurement, Result, Skipped

HEADER = ("name", "threads", "n", "d", "ours", "reference", "ratio [IQR]", "target", "met")


def speed_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Return one row of cells for each result that was not skipped."""
    return [_cells(result) for result in results if not isinstance(result, Skipped)]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns with spaces, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [_align(row, widths) for row in (header, ["-" * width for width in widths], *rows)]
    return "\n".join(line.rstrip() for line in lines)


def speed_text(results: Sequence[Result]) -> str:
    """Return the table and the skipped benchmarks as aligned text."""
    table = text_table(HEADER, speed_rows(results))
    return "\n".join([table, *(f"skipped {line}" for line in _skipped(results))])


def speed_markdown(results: Sequence[Result], versions: dict[str, Any]) -> str:
    """Return the table, the skipped benchmarks and the versions as Markdown."""
    parts = [
        "Seconds are medians. The ratio is reference / ours, the median over pairs measured one "
        "after the other; in brackets its quartiles. Both sides may use the given number of "
        "threads.",
        markdown_table(HEADER, speed_rows(results)),
        *(f"Skipped {line}" for line in _skipped(results)),
        f"Measured with {written(versions)}.",
    ]
    return "\n\n".join(parts)


def _cells(result: Comparison | Measurement) -> tuple[str, ...]:
    sizes = [str(result.facts.get(key, "")) for key in ("threads", "n", "d")]
    if isinstance(result, Measurement):
        return (result.name, *sizes, duration(result.ours), "", "", "", "")
    low, high = result.quartiles
    return (
        result.name,
        *sizes,
        duration(result.ours),
        duration(result.reference),
        f"{_ratio(result.ratio)} [{_ratio(low)}, {_ratio(high)}]",
        "" if result.target is None else f"≥ {_ratio(result.target)}",
        {None: "", True: "yes", False: "no"}[result.met],
    )


def duration(seconds: float) -> str:
    """Format a duration with three digits and a suitable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = zip(row, widths, strict=True)
    return "  ".join(
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(cells)
    )


def _skipped(results: Sequence[Result]) -> Iterator[str]:
    return (f"{item.name}: {item.reason}" for item in results if isinstance(item, Skipped))

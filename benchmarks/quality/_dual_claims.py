"""What the table on vectors of classifiers must show, checked on its cells."""

from collections.abc import Mapping

from benchmarks.quality._dual_cells import COLUMNS, HUBNESS, SEARCH, SIGN_BITS, STSB, Cell
from benchmarks.quality._dual_rows import BEFORE, BEST_LAYER, OWN, RAW

TARGETS = (
    ("cola-minilm", STSB, 0.70),
    ("cola-minilm", SEARCH, 0.68),
    ("cola-minilm", SIGN_BITS, 0.68),
    ("mrpc-minilm", SEARCH, 0.58),
)
OVER_BEST_LAYER = 0.12
LOGIT_ERROR = 1e-5


def check_lines(table: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Return a line for each target, for the checkpoints of the table."""
    lines = []
    for name, column, least in TARGETS:
        if name in table:
            after, before = (table[name][row].figures[column].value for row in (OWN, RAW))
            lines.append(
                f"{name}, {column}, at least {least:.2f} by {OWN}: {_verdict(after >= least)} "
                f"({before:.3f} → {after:.3f})"
            )
    if "cola-minilm" in table:
        cells = table["cola-minilm"]
        gain = cells[OWN].figures[STSB].value - cells[BEST_LAYER].figures[STSB].value
        lines.append(
            f"cola-minilm, {STSB}, at least {OVER_BEST_LAYER} above the {BEST_LAYER}: "
            f"{_verdict(gain >= OVER_BEST_LAYER)} ({gain:+.3f})"
        )
    for name, cells in table.items():
        cell = cells[OWN]
        kept = not cell.changed and cell.logit_error is not None
        kept = kept and cell.logit_error <= LOGIT_ERROR
        lines.append(
            f"{name}, no prediction changed and logits to {LOGIT_ERROR:.0e} by {OWN}: "
            f"{_verdict(kept)} ({cell.changed} of {cell.n_rows:,}, {cell.logit_error:.0e})"
        )
    return lines


def comparison_lines(table: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Return in which columns the map is better and worse than other vectors, beyond the error."""
    return [
        f"{name}, {OWN} against {other}: {_comparison(cells[OWN], cells[other])}"
        for name, cells in table.items()
        for other in (RAW, BEFORE)
    ]


def _comparison(cell: Cell, other: Cell) -> str:
    """Sort columns by the difference; it counts if it exceeds both standard errors."""
    better, worse = [], []
    for column in COLUMNS:
        here, there = cell.figures[column], other.figures[column]
        gain = (there.value - here.value) if column == HUBNESS else (here.value - there.value)
        if abs(gain) > max(here.error, there.error):
            (better if gain > 0 else worse).append(column)
    return f"better in {'; '.join(better) or 'none'}. Worse in {'; '.join(worse) or 'none'}"


def _verdict(holds: bool) -> str:
    return "yes" if holds else "no"

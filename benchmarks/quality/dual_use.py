"""Vectors of classifiers used for similarity and search: `python -m benchmarks.quality.dual_use`.

Two checkpoints are shared models, the others are fine-tuned first, into build/. Each text is
encoded once for each checkpoint. Each finished row is saved in a file, so that an interrupted run
can be resumed. The result is printed as Markdown; `--write FILE` writes it to a section of that
file.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks._markdown import markdown_table
from benchmarks._places import FOLDER
from benchmarks._versions import versions, written
from benchmarks.quality._command import add_write_option, publish, run_resumable
from benchmarks.quality._dual_cells import (
    CHECKPOINTS,
    COLUMNS,
    Cell,
    Cells,
    cell_key,
    cell_line,
    cell_store,
    measure_cell,
)
from benchmarks.quality._dual_claims import check_lines, comparison_lines
from benchmarks.quality._dual_protocol import PROTOCOL_TEXT
from benchmarks.quality._dual_rows import ROWS

CELLS = FOLDER / "quality" / "results" / "dual_use.jsonl"

COUNTED = "In these comparisons, a difference counts if it exceeds both standard errors."

Table = Mapping[str, Mapping[str, Cell]]


def obtain_table(checkpoints: Sequence[str], cells: Cells) -> Table:
    """Read the cells of the checkpoints from the file, or measure and save them."""
    return {name: {row: _obtain(name, row, cells) for row in ROWS} for name in checkpoints}


def _obtain(name: str, row: str, cells: Cells) -> Cell:
    key = cell_key(CHECKPOINTS[name], row)
    found = cells.get(key)
    if found is None:
        print(f"measuring {name}: {row}", file=sys.stderr, flush=True)
        found = measure_cell(CHECKPOINTS[name], row)
        cells.add(cell_line(key, found))
    return found


def dual_use_text(table: Table, setting: str) -> str:
    """Return the section: the table, the checks and the protocol."""
    header = ["checkpoint", "vectors", *COLUMNS, "changed", "logits"]
    rows = [
        _line(checkpoint, row, cell)
        for checkpoint, cells in table.items()
        for row, cell in cells.items()
    ]
    found = [*check_lines(table), *comparison_lines(table), COUNTED]
    checks = "\n".join(f"- {line}" for line in found)
    parts = (markdown_table(header, rows), checks, PROTOCOL_TEXT, f"Measured with {setting}.")
    return "\n\n".join(part for part in parts if part)


def _line(checkpoint: str, row: str, cell: Cell) -> list[str]:
    figures = [f"{value:.3f} ± {error:.3f}" for value, error in map(cell.figures.get, COLUMNS)]
    error = "" if cell.logit_error is None else f"{cell.logit_error:.0e}"
    named = f"{row} ({cell.note})" if cell.note else row
    return [checkpoint, named, *figures, f"{cell.changed} of {cell.n_rows:,}", error]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.dual_use")
    parser.add_argument(
        "--checkpoints", nargs="+", choices=CHECKPOINTS, default=list(CHECKPOINTS), metavar="NAME"
    )
    parser.add_argument("--cells", type=Path, default=CELLS, help="file of finished rows")
    parser.add_argument("--fresh", action="store_true", help="measure all rows again")
    add_write_option(parser)
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> int:
    """Measure missing rows, then print and write the table."""
    table = obtain_table(options.checkpoints, cell_store(options.cells, options.fresh))
    publish(dual_use_text(table, written(versions())), options.write, "dual-use")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    return run_resumable(run, parse(arguments))


if __name__ == "__main__":
    sys.exit(main())

"""Common parts of the commands that measure adapters."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._markdown import replace_section
from benchmarks._places import RESULTS
from benchmarks._store import HELD, Busy, locked
from benchmarks.quality._adapter_rows import Row, choose_rows


class TableCommand(NamedTuple):
    """The command line of a table: its module, tasks, rows and number of repeated fits.

    `repeats` is the name of the option for that number and `meaning` its help text. The row named
    `always` is measured whichever rows are selected.
    """

    name: str
    repeats: str
    meaning: str
    tasks: Sequence[str]
    rows: Sequence[Row]
    always: str

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse the command line; `rows` become Row objects, and `tasks` default to all tasks."""
        parser = self._parser()
        options = parser.parse_args(arguments)
        repeats = getattr(options, self.repeats)
        if repeats < 1:
            parser.error(f"--{self.repeats} {repeats} must be 1 or more")
        if options.rows and options.write:
            parser.error("--write replaces the whole section: leave out --rows")
        try:
            options.rows = choose_rows(options.rows, self.rows, self.always)
        except ValueError as error:
            parser.error(f"--rows: {error}")
        return options

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.quality.{self.name}")
        parser.add_argument(f"--{self.repeats}", type=int, default=5, help=self.meaning)
        parser.add_argument(
            "--tasks", nargs="+", choices=self.tasks, default=list(self.tasks), metavar="TASK"
        )
        parser.add_argument(
            "--rows", nargs="+", metavar="TEXT", help="only rows whose name holds one of the texts"
        )
        parser.add_argument(
            "--cells",
            type=Path,
            default=RESULTS / f"{self.name}.jsonl",
            help="file of finished fits",
        )
        parser.add_argument("--fresh", action="store_true", help="measure all cells anew")
        add_write_option(parser)
        return parser


def add_write_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the file that `publish` writes to."""
    parser.add_argument("--write", type=Path, help="Markdown file whose section to replace")


def publish(text: str, file: Path | None, section: str) -> None:
    """Print a section, and write it to a file if one is given."""
    print(text)
    if file is not None:
        replace_section(file, section, text)


def run_resumable(run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Run with the file of cells locked; return 2 if it is locked already, 130 if interrupted."""
    try:
        with locked(options.cells):
            return run(options)
    except Busy as busy:
        print(busy, file=sys.stderr)
        return HELD
    except KeyboardInterrupt:
        print(
            f"stopped; finished cells are in {options.cells}: the same command goes on",
            file=sys.stderr,
        )
        return 130

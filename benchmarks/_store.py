"""Finished cells in a file of JSON lines, each on the disk as soon as it is there."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

HELD = 2  # exit code where another run holds the cells

Key = tuple[Any, ...]
Line = Mapping[str, Any]


class CellStore:
    """The newest cell of each key; a run that was interrupted goes on from it.

    `names` are the fields of a line that make its key. With `fresh`, the cells of earlier runs are
    not read. Reading leaves the file as it is, so that a report can be written while a run adds
    cells; a last line that was cut off is not a cell.
    """

    def __init__(self, path: Path, names: Sequence[str], fresh: bool = False) -> None:
        self.path, self.names = path, names
        self.cells: dict[Key, Line] = {} if fresh else dict(self._read())

    def entries(self) -> list[Line]:
        """Return all cells in the order of the file."""
        return list(self.cells.values())

    def add(self, line: Line) -> None:
        """Add a line and sync it, after cutting off what a killed run left of its last one."""
        key = self._key(line)
        text = json.dumps(line).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.truncate(len(_whole_lines(self.path)))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self.cells[key] = line

    def _key(self, line: Line) -> Key:
        return tuple(line[name] for name in self.names)

    def _read(self) -> Iterator[tuple[Key, Line]]:
        for number, text in enumerate(_whole_lines(self.path).splitlines(), 1):
            try:
                line = json.loads(text)
                yield self._key(line), line
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self.path}, line {number} holds no cell ({error!r}): delete the line, or "
                    "the file to run all cells again"
                ) from error


def rounded(figures: Any, digits: int) -> Any:
    """Round the floats in nested lists and dictionaries to significant digits."""
    text = json.dumps(figures)
    return json.loads(text, parse_float=lambda value: float(f"{float(value):.{digits}g}"))


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other runs from a file of cells; the process ends where another run holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(path.with_suffix(".lock")).acquire(blocking=False)
    except Timeout:
        print(f"another run holds {path}", file=sys.stderr)
        sys.exit(HELD)
    with held:
        yield

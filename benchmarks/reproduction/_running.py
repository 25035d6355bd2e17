"""How a long run ends before all cells have run: by its budget or by a signal."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Self

from benchmarks.reproduction._cells import Cell, Record
from benchmarks.reproduction._figures import matching_records


class Stopped(BaseException):
    """A signal has asked the run to end; only `except BaseException` can catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """Raises `Stopped` at SIGINT and SIGTERM, but not within `shielded`.

    `check` raises it again where other code has caught it.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._is_shielded = False

    def __enter__(self) -> Self:
        self._earlier = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise if a signal has come."""
        if self._number is not None:
            raise Stopped(self._number)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Finish what stands inside before the end."""
        self._is_shielded = True
        try:
            yield
        finally:
            self._is_shielded = False
        self.check()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if not self._is_shielded:
            raise Stopped(number)


class Budget:
    """Time left, and whether a cell fits into it by what such cells have cost so far."""

    def __init__(self, minutes: float | None) -> None:
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes

    def allows(self, cell: Cell, finished: Sequence[Record]) -> bool:
        """Whether to begin a cell."""
        if self._ends is None:
            return True
        left = self._ends - time.monotonic()
        return left > 0 and expected_seconds(cell, finished) <= left


def expected_seconds(cell: Cell, finished: Sequence[Record]) -> float:
    """Median processor time of the same condition on the task, else of cells of that kind."""
    kind, task = {"kind": cell.kind}, {"task": cell.task}
    for fields in ({**kind, **task, "name": cell.name}, {**kind, **task}, kind):
        if kin := matching_records(finished, fields):
            return median(record["processor_seconds"] for record in kin)
    return 0.0

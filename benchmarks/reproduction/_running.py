"""Early end of a long run, by its time budget or by a signal."""

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
    """Raised when a signal ends the run; only `except BaseException` catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Stop:
    """Raises `Stopped` at SIGINT and SIGTERM, but not inside `shielded`.

    `check` raises it again in case other code has caught it.
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
        """Raise if a signal was received."""
        if self._number is not None:
            raise Stopped(self._number)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Delay the end of the run until the block has finished."""
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
    """The time left; decides whether a cell fits, from the times of similar finished cells."""

    def __init__(self, minutes: float | None) -> None:
        self._ends = None if minutes is None else time.monotonic() + 60 * minutes

    def allows(self, cell: Cell, finished: Sequence[Record]) -> bool:
        """Return whether there is time for a cell."""
        if self._ends is None:
            return True
        left = self._ends - time.monotonic()
        return left > 0 and expected_seconds(cell.fields(), finished) <= left


def expected_seconds(planned: Record, finished: Sequence[Record]) -> float:
    """Return the median processor time of this condition on the task, else of this kind."""
    kind, task = {"kind": planned["kind"]}, {"task": planned["task"]}
    for fields in ({**kind, **task, "name": planned["name"]}, {**kind, **task}, kind):
        if kin := matching_records(finished, fields):
            return median(record["processor_seconds"] for record in kin)
    return 0.0

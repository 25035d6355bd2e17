"""Messages and warnings that are hidden in one thread only.

Levels of loggers, warning filters and the like belong to the whole process. They are not changed
here. Instead, filters are added that have no effect in other threads and after the block.
"""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Thread(threading.local):
    """How many blocks that hide something the thread is in."""

    def __init__(self) -> None:
        self.loggers: dict[str, int] = {}
        self.warnings = 0


_THREAD = _Thread()


@contextmanager
def hidden_messages(name: str) -> Iterator[None]:
    """Hide what this thread logs through the logger `name` and its children, except errors."""
    for handler in _handlers(logging.getLogger(name)):
        handler.addFilter(_shows)  # has no effect if it was added before
    depths = _THREAD.loggers
    depths[name] = depths.get(name, 0) + 1
    try:
        yield
    finally:
        depths[name] -= 1


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Iterate over the handlers that receive the messages of a logger."""
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None
    if logging.lastResort is not None:
        yield logging.lastResort


def _shows(record: logging.LogRecord) -> bool:
    """Filter of messages: whether one is shown."""
    if record.levelno >= logging.ERROR:
        return True
    depths = _THREAD.loggers.items()
    return not any(depth and f"{record.name}.".startswith(f"{name}.") for name, depth in depths)


class _HiddenWarnings:
    """Pattern of a warning filter, which matches the warnings of threads that hide them."""

    def match(self, message: str) -> bool:
        """Return whether a warning of the calling thread is hidden."""
        return _THREAD.warnings > 0


@contextmanager
def hidden_warnings() -> Iterator[None]:
    """Hide the warnings of this thread."""
    entry: Any = ("ignore", _HiddenWarnings(), Warning, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, entry)
    _THREAD.warnings += 1
    try:
        yield
    finally:
        _THREAD.warnings -= 1
        current: Any = warnings.filters  # another thread may have replaced the list
        for each in (filters, current):
            while entry in each:
                each.remove(entry)

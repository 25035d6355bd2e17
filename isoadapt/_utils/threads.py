"""Python threads beside the calling one."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any


class Worker(threading.Thread):
    """A thread that makes one call after the other.

    Those of an executor take no calls after the main thread has ended.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self.start()

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Let the thread call a function."""
        future = Future[Any]()
        self._calls.put((future, function, args))
        return future

    def run(self) -> None:
        """Make the calls."""
        for future, function, args in iter(self._calls.get, None):
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        """Drop the calls that have not begun, and wait for the one that has."""
        try:
            while True:
                self._calls.get_nowait()
        except Empty:
            self._calls.put(None)
        self.join()

"""Python threads beside the calling one, and the number of threads that torch uses in each."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import torch

_LOCK = threading.Lock()  # of the number that Python threads take over when they first use torch
_PROCESSES: set[int] = set()  # that have used models: this one and those it was forked from


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


@contextmanager
def workers(n_workers: int) -> Iterator[list[Worker]]:
    """Start workers that share torch's threads: fewer of these wait for each other then."""
    with ExitStack() as stack:
        started = [stack.enter_context(closing(Worker())) for _ in range(n_workers)]
        with _LOCK:
            n = torch.get_num_threads()
            try:
                for worker in started:
                    worker.submit(_use_threads, max(1, n // n_workers)).result()
            finally:
                torch.set_num_threads(n)  # which other new threads take over
        yield started


def _use_threads(number: int) -> None:
    torch.set_num_threads(number)
    torch.get_num_threads()  # the first use of torch takes over the number that was set last


def settle_threads() -> None:
    """Let the calling thread take over torch's number of threads; after a fork it is one.

    The threads of OpenMP do not survive a fork of a process that has used models. The first
    parallel computation would wait for them.
    """
    with _LOCK:
        torch.get_num_threads()
    if _PROCESSES and os.getpid() not in _PROCESSES:
        torch.set_num_threads(1)
    _PROCESSES.add(os.getpid())

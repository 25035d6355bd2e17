"""Python threads beside the calling one, and the number of threads that torch uses in each."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import torch

from isoadapt._utils.threads import Worker

_LOCK = threading.Lock()  # of the number that Python threads take over when they first use torch
_PROCESSES: set[int] = set()  # that have used models: this one and those it was forked from


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

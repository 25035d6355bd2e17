"""Python threads, settings that they share, and the numbers of threads of torch and BLAS.

A step that is spread over several threads waits for the slowest one. Small steps thus become many
times slower if other programs keep the cores busy, or the threads of another library do: NumPy,
SciPy and torch each have their own, which go on waiting for work for some time after each step. So
small steps run in one thread, and a loop of large ones calls one library.

BLAS has one number of threads for the process. Torch has one for each Python thread, and one that a
Python thread takes over when it first uses torch: the number that was set last in any of them.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import wraps
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import numpy as np
import torch
from threadpoolctl import OpenBLASController, get_cached_controller

_SMALL = 1e10  # products and decompositions with fewer multiply-adds run in one thread
_EIGEN = 10  # an eigendecomposition takes about this many times d³ multiply-adds

_LOCK = threading.Lock()  # of the number that Python threads take over when they first use torch
_PROCESSES: set[int] = set()  # that have used models: this one and those it was forked from

_Function = TypeVar("_Function", bound=Callable[..., Any])


class SharedSetting:
    """A setting of the process that several threads may hold; the last holder takes it back."""

    # Overlapping contexts of several threads would otherwise restore each other's setting.
    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self._setting, self._made = setting, ExitStack()
        self._lock, self._holders = threading.Lock(), 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the setting in the calling Python thread."""
        with self._lock:
            if not self._holders:
                self._made.enter_context(self._setting())
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._made.close()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    limits = get_cached_controller().select(user_api="blas").limit(limits=1)
    try:
        yield
    finally:  # OpenBLAS accepts a number only from the Python thread that last set it
        OpenBLASController.clear_controlling_thread(force=True)
        limits.restore_original_limits()
        OpenBLASController.clear_controlling_thread()


one_blas_thread = SharedSetting(_one_blas_thread).hold


def one_blas_thread_if_small(X: Any) -> AbstractContextManager[Any]:
    """Let BLAS use one thread while computing with a small matrix X (n, d)."""
    shape: tuple[int, ...] = () if hasattr(X, "to_dask_array") else getattr(X, "shape", ())
    small = len(shape) == 2 and max(shape[0], _EIGEN * shape[1]) * shape[1] ** 2 < _SMALL
    return one_blas_thread() if small else nullcontext()


def few_rows_in_one_thread(function: _Function) -> _Function:
    """Decorate a function so that BLAS uses one thread if its first array (n, d) is small."""

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        matrices = (each for each in given if isinstance(each, np.ndarray) and each.ndim == 2)
        with one_blas_thread_if_small(next(matrices, None)):
            return function(*args, **kwargs)

    return cast(_Function, limited)


class Worker(threading.Thread):
    """A thread that makes one call after the other, also after the main thread has ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._calls: SimpleQueue[Any] = SimpleQueue()
        self._open = True
        self.start()

    def submit(self, function: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Let the thread call a function."""
        future = Future[Any]()
        self._calls.put((future, function, args))
        return future

    def run(self) -> None:
        """Make the calls."""
        while (call := self._calls.get()) and self._open:
            future, function, args = call
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        """Drop the calls that have not begun, and wait for the one that has."""
        self._open = False
        self._calls.put(None)
        self.join()


@contextmanager
def workers(n_workers: int) -> Iterator[list[Worker]]:
    """Start workers that share torch's threads: fewer of these wait for each other then."""
    share = max(1, torch.get_num_threads() // n_workers)
    with ExitStack() as stack:
        started = [stack.enter_context(closing(Worker())) for _ in range(n_workers)]
        for worker in started:
            worker.submit(_set_torch_threads, share).result()
        yield started


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch use one thread in the calling Python thread, and restore its number at the end."""
    with _LOCK:
        before = torch.get_num_threads()
    try:
        _set_torch_threads(1)
        yield
    finally:
        _set_torch_threads(before)


def _set_torch_threads(number: int) -> None:
    """Set torch's number in the calling thread, but not the one that other threads take over."""
    with _LOCK, closing(Worker()) as other:
        default = other.submit(torch.get_num_threads).result()
        torch.set_num_threads(number)
        torch.get_num_threads()  # the first use of torch takes over the number that was set last
        other.submit(torch.set_num_threads, default).result()


def settle_threads() -> None:
    """Let the calling thread take over torch's number of threads; after a fork it is one."""
    with _LOCK:
        torch.get_num_threads()
    if _PROCESSES and os.getpid() not in _PROCESSES:  # OpenMP's threads do not survive a fork
        torch.set_num_threads(1)
    _PROCESSES.add(os.getpid())

"""The number of threads that torch and BLAS use in small fits.

Where other programs keep the cores busy, a step that is spread over several threads waits for the
one that gets no core, and small steps become many times slower. They run in one thread, therefore.

With OpenMP, ``torch.set_num_threads`` sets two numbers: that of the calling Python thread, and the
default, which other Python threads take over when they first use torch. Only the former is changed
here, so that neither fits nor other work in several Python threads affect each other.
"""

import _thread
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any

import torch
from threadpoolctl import OpenBLASController, threadpool_limits

LARGE_STEP = 1e8
"""From this product of parameters and rows, `UPDATE_ROWS` added, a step runs in all threads.

As measured by ``python -m benchmarks --only threads``: on a quiet machine, two threads make steps
below it at most 1.6 times as fast as one, and those above it up to twice as fast.
"""

UPDATE_ROWS = 100
"""Rows whose multiply-adds take as long as AdamW's update, for each parameter."""

SMALL_PRODUCT = 1e10
"""Multiply-adds up to which products and decompositions of BLAS run in one thread."""

_EIGEN = 10  # d³ multiply-adds that an eigendecomposition takes, about
_PER_THREAD = "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()
_LOCK = threading.Lock()  # no fork, and no other change, while the default is not as it was


def one_thread_if_small(n_parameters: int, n_rows: int) -> AbstractContextManager[None]:
    """Give :func:`one_thread` for steps on `n_rows` rows, whatever their members, that are small.

    A step takes about three multiply-adds for each row and parameter, and AdamW's update of a
    parameter as long as those of a hundred rows.
    """
    small = n_parameters * (n_rows + UPDATE_ROWS) < LARGE_STEP
    return one_thread() if small else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the calling Python thread.

    What the number was is put back in the end, unless the calling Python thread has set it to
    another one meanwhile. Builds of torch without OpenMP are left alone: they cannot change the
    number once they have used it.
    """
    with _LOCK:
        found = torch.get_num_threads()
    if found == 1 or not _PER_THREAD:
        yield
        return
    try:
        _set_here(1)
        yield
    finally:
        try:
            if torch.get_num_threads() == 1:
                _set_here(found)
        except BaseException:  # such as KeyboardInterrupt
            torch.set_num_threads(found)
            raise


def _set_here(count: int) -> None:
    """Set the number of the calling Python thread; a new one, which has the default, keeps that.

    No signal comes to the latter, which holds the lock therefore. What waits for it and starts it
    can be interrupted, but not halfway, as methods of ``threading.Thread`` can.
    """
    known: SimpleQueue[None] = SimpleQueue()
    changed: SimpleQueue[None] = SimpleQueue()
    kept: SimpleQueue[None] = SimpleQueue()

    def keep_default() -> None:
        with _LOCK:
            default = torch.get_num_threads()
            known.put(None)
            changed.get()
            torch.set_num_threads(default)
        kept.put(None)

    try:
        _thread.start_new_thread(keep_default, ())
        known.get()
        torch.set_num_threads(count)
    finally:
        changed.put(None)
    kept.get()


def one_blas_thread_if_small(X: Any) -> AbstractContextManager[Any]:
    """Let BLAS use one thread while a small matrix (n, d) is worked on.

    Such products and decompositions take fractions of a second; with several threads many times
    that, where other programs keep the cores busy. The number is the whole process's: of Python
    threads that overlap here, the first one sets it and the last one puts it back. What has no
    shape, such as a list, is left alone.
    """
    shape: tuple[int, ...] = getattr(X, "shape", ())
    with _LOCK:  # a Python thread that is new to torch takes the default over here
        torch.get_num_threads()
    small = len(shape) == 2 and max(shape[0], _EIGEN * shape[1]) * shape[1] ** 2 < SMALL_PRODUCT
    return _ONE_BLAS_THREAD.hold() if small else nullcontext()


class _BlasLimit:
    """One thread for BLAS as long as anyone holds it, counted by Python thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.holders: Counter[int] = Counter()
        self.limits: Any = None

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the limit in the calling Python thread."""
        thread = threading.get_ident()
        with self.lock:
            self.holders[thread] += 1
        try:
            with self.lock:
                if self.limits is None:
                    self.limits = threadpool_limits(1, user_api="blas")
            yield
        finally:
            with self.lock:
                self.holders -= Counter([thread])
                self._release()

    def after_fork(self) -> None:
        """Forget, in a forked child, the threads that it does not have."""
        thread = threading.get_ident()
        self.holders = +Counter({thread: self.holders[thread]})
        self._release()
        self.lock.release()

    def _release(self) -> None:
        """Put back what was there if nobody holds the limit.

        OpenBLAS takes a number only from the Python thread that set the one before, as long as it
        lives and until it is told that this one is done.
        """
        if not self.holders and self.limits is not None:
            OpenBLASController.clear_controlling_thread(force=True)
            self.limits.restore_original_limits()
            OpenBLASController.clear_controlling_thread()
            self.limits = None


_ONE_BLAS_THREAD = _BlasLimit()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
    os.register_at_fork(
        before=_ONE_BLAS_THREAD.lock.acquire,
        after_in_parent=_ONE_BLAS_THREAD.lock.release,
        after_in_child=_ONE_BLAS_THREAD.after_fork,
    )

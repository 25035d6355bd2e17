"""The number of threads that torch and BLAS use in small fits.

A step that is spread over several threads waits for the slowest one. If other programs keep the
cores busy, small steps thus become many times slower, so they run in one thread.

With OpenMP, ``torch.set_num_threads`` sets two numbers: that of the calling Python thread, and the
default that other Python threads take over when they first use torch. Only the first is changed
here, so that fits and other work in several Python threads do not affect each other.
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
from threadpoolctl import OpenBLASController, get_cached_controller

LARGE_STEP = 1e8
"""Steps run in all threads if n_parameters * (n_rows + UPDATE_ROWS) is at least this number.

Measured by ``python -m benchmarks --only threads`` on a machine without other load: two threads
are at most 1.6 times as fast as one in smaller steps, and up to twice as fast in larger ones.
"""

UPDATE_ROWS = 100
"""Number of rows whose multiply-adds take as long as AdamW's update of the parameters."""

SMALL_PRODUCT = 1e10
"""BLAS products and decompositions with fewer multiply-adds run in one thread."""

_EIGEN = 10  # an eigendecomposition takes about this many times d³ multiply-adds
_PER_THREAD = "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()
_LOCK = threading.Lock()  # excludes forks and other changes while the default is changed


def one_thread_if_small(n_parameters: int, n_rows: int) -> AbstractContextManager[None]:
    """Return :func:`one_thread` if the training steps are small, and else a context without effect.

    `n_rows` is the number of rows in a step, regardless of the number of members. A step takes
    about three multiply-adds for each row and parameter. AdamW's update of a parameter takes as
    long as those of a hundred rows.
    """
    small = n_parameters * (n_rows + UPDATE_ROWS) < LARGE_STEP
    return one_thread() if small else nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the calling Python thread.

    The former number is restored at the end, unless the calling Python thread has changed it in the
    block. Builds of torch without OpenMP are not changed: they cannot change the number after its
    first use.
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
        except BaseException:  # for example KeyboardInterrupt
            torch.set_num_threads(found)
            raise


def _set_here(count: int) -> None:
    """Set the number of threads of the calling Python thread, and keep the default of new ones.

    A helper Python thread starts with the default and sets it again afterwards. Signals are
    delivered to the main Python thread only, so the helper holds the lock. The calling thread can
    be interrupted, so it uses ``_thread`` and ``SimpleQueue``: an interrupt cannot leave their
    calls half done, as it can those of ``threading.Thread``.
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
    """Let BLAS use one thread while computing with a small matrix X (n, d).

    Such products and decompositions take fractions of a second. With several threads they take many
    times longer if other programs keep the cores busy. The number of threads is that of the
    process: if several Python threads are in such contexts, the first one sets it and the last one
    restores it. Objects without a shape, such as lists, have no effect.
    """
    shape: tuple[int, ...] = getattr(X, "shape", ())
    with _LOCK:  # a Python thread that has not used torch before takes over the default here
        torch.get_num_threads()
    small = len(shape) == 2 and max(shape[0], _EIGEN * shape[1]) * shape[1] ** 2 < SMALL_PRODUCT
    return _ONE_BLAS_THREAD.hold() if small else nullcontext()


class _BlasLimit:
    """A limit of one BLAS thread while any Python thread holds it; holders are counted."""

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
                    self.limits = get_cached_controller().limit(limits=1, user_api="blas")
            yield
        finally:
            with self.lock:
                self.holders -= Counter([thread])
                self._release()

    def after_fork(self) -> None:
        """In a forked child, drop the holders whose Python threads do not exist there."""
        thread = threading.get_ident()
        self.holders = +Counter({thread: self.holders[thread]})
        self._release()
        self.lock.release()

    def _release(self) -> None:
        """Restore the former limits if there is no holder.

        OpenBLAS accepts a new number only from the Python thread that last set it, as long as that
        thread lives and the controlling thread has not been cleared.
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

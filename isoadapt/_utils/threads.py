"""Settings of the process while any Python thread needs them; one thread in small fits.

A step that is spread over several threads waits for the slowest one. If other programs keep the
cores busy, small steps thus become many times slower, so they run in one thread.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
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


class SharedSetting:
    """A setting of the process: its first holder makes it, and its last holder takes it back.

    `setting` returns the context that does so. Overlapping contexts of several Python threads
    would otherwise restore each other's setting.
    """

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


_LOCK = threading.Lock()
_HELD: dict[int, int] = {}  # number of threads to restore, by Python thread in one_thread


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the calling Python thread, and restore its number at the end.

    Torch has a number for each Python thread, and one number that a Python thread takes over when
    it first uses torch. The latter is the last number that was set anywhere. A Python thread that
    first uses torch while others are in this context thus starts with one thread. If it enters the
    context too, it leaves it with the number of the others, also if it had set one thread itself.
    """
    here = threading.get_ident()
    if here in _HELD:
        yield
        return
    with _LOCK:
        found = torch.get_num_threads()
        _HELD[here] = max(_HELD.values(), default=1) if found == 1 else found
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            torch.set_num_threads(_HELD.pop(here))


def one_thread_if_small(n_parameters: int, n_rows: int) -> AbstractContextManager[None]:
    """Return :func:`one_thread` if the training steps are small, and else a context without effect.

    `n_rows` is the number of rows in a step, regardless of the number of members. A step takes
    about three multiply-adds for each row and parameter. AdamW's update of a parameter takes as
    long as those of a hundred rows.
    """
    small = n_parameters * (n_rows + UPDATE_ROWS) < LARGE_STEP
    return one_thread() if small else nullcontext()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    limits = get_cached_controller().select(user_api="blas").limit(limits=1)
    try:
        yield
    finally:  # OpenBLAS accepts a number only from the Python thread that last set it
        OpenBLASController.clear_controlling_thread(force=True)
        limits.restore_original_limits()
        OpenBLASController.clear_controlling_thread()


_ONE_BLAS_THREAD = SharedSetting(_one_blas_thread)


def one_blas_thread_if_small(X: Any) -> AbstractContextManager[Any]:
    """Let BLAS use one thread while computing with a small matrix X (n, d).

    Such products and decompositions take fractions of a second. With several threads they take many
    times longer if other programs keep the cores busy. The number of threads is that of the
    process. Objects without a shape, such as lists, have no effect.
    """
    shape: tuple[int, ...] = getattr(X, "shape", ())
    small = len(shape) == 2 and max(shape[0], _EIGEN * shape[1]) * shape[1] ** 2 < SMALL_PRODUCT
    return _ONE_BLAS_THREAD.hold() if small else nullcontext()

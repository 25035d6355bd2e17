"""Devices, settings of the process, and the threads of BLAS.

A step that is spread over several threads waits for the slowest one. Small steps thus become many
times slower if other programs keep the cores busy, or the threads of another library do: NumPy,
SciPy and torch each have their own, which go on waiting for work for some time after each step. So
small steps run in one thread, and a loop of large ones calls one library.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from threadpoolctl import OpenBLASController, get_cached_controller

_SMALL = 1e10  # products and decompositions with fewer multiply-adds run in one thread
_EIGEN = 10  # an eigendecomposition takes about this many times d³ multiply-adds

_Function = TypeVar("_Function", bound=Callable[..., Any])


def resolve_device(device: str | torch.device) -> torch.device:
    """Convert a device parameter to a device that can be used; raise ValueError if it cannot."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device={str(device)!r} cannot be used here ({str(error).splitlines()[0]}); choose "
            "'auto', 'cpu', or a GPU that torch finds"
        ) from error


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

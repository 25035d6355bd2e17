"""Exchange of two folders in one step, and locks on folders that end with their process."""

import ctypes
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
_HELD = (errno.EAGAIN, errno.EACCES)
_WAIT = 60.0  # seconds


def exchange(first: Path, second: Path) -> bool:
    """Exchange two existing paths in one step; return False if the system cannot do this."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    if renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(first), None, str(second))


def while_locked(folder: Path, action: Callable[[bool], Result]) -> Result:
    """Call a function while the lock on a folder is held.

    Its argument is False if the file system has no locks. OSError is raised if another process
    holds the lock for a minute. This is not a context manager, whose end could be skipped if Ctrl-C
    comes just before it.
    """
    if fcntl is None:
        return action(False)
    handles = [os.open(folder, os.O_RDONLY)]
    try:
        result = action(_wait(handles[0], folder))
        _release(handles)
        return result
    except BaseException:
        _release(handles)
        raise


def _wait(handle: int, folder: Path) -> bool:
    end = time.monotonic() + _WAIT
    while (state := _flock(handle)) is False:
        if time.monotonic() > end:
            raise OSError(
                f"another process has been writing to {str(folder)!r} for {_WAIT:.0f} s; end it if "
                "it is suspended, or try again later"
            )
        time.sleep(0.02)
    return bool(state)


def _release(handles: list[int]) -> None:
    """Unlock and close the handle in the list, unless this was done before."""
    for handle in handles:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the handle open too
    while handles:
        os.close(handles.pop())


@contextmanager
def try_lock(folder: Path) -> Iterator[bool | None]:
    """Yield whether the lock on a folder could be taken; None if the file system has no locks."""
    if fcntl is None:
        yield None
        return
    handles = [os.open(folder, os.O_RDONLY)]
    try:
        yield _flock(handles[0])
    finally:
        _release(handles)


def _flock(handle: int) -> bool | None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True

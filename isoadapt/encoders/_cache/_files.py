"""Files of the cache: locks that report who holds them, reserved space, permissions."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from isoadapt._utils.warn import warn

Result = TypeVar("Result")

PATIENCE = 5.0  # seconds without progress before a message
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02  # seconds between attempts to get a lock
_GROUP_WRITES = 0o020


def lock_in(folder: Path, name: str) -> FileLock:
    """Return a lock in `folder/locks`, which all who may write to `folder` can use."""
    locks = folder / "locks"
    if not locks.is_dir():
        locks.mkdir(parents=True, exist_ok=True)
        permit_group(locks, folder)
    return FileLock(locks / f"{name}.lock", mode=0o600 | (folder.stat().st_mode & 0o066))


def while_held(lock: FileLock, action: Callable[[], Result]) -> Result:
    """Call a function while a lock of :func:`lock_in` is held; warn if the wait is long.

    Attempts are repeated, because a wait in the kernel could not be interrupted by Ctrl-C. This is
    not a context manager, whose end could be skipped if Ctrl-C comes just before it. The release is
    forced, because an acquisition that was interrupted may have been counted without being made.
    """
    try:
        _acquire(lock)
        result = action()
        lock.release(force=True)
        return result
    except BaseException:
        lock.release(force=True)
        raise


def _acquire(lock: FileLock) -> None:
    started, pause, warned = time.monotonic(), _SHORTEST_PAUSE, False
    while True:
        with suppress(Timeout):
            lock.acquire(blocking=False)
            return
        if not warned and time.monotonic() - started > PATIENCE:
            file = Path(lock.lock_file)
            warn_of_wait(file.parents[1], "to write", file.stem)
            warned = True
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def try_acquire(lock: FileLock) -> bool:
    """Acquire a lock of :func:`lock_in`; return False if it is held already."""
    try:
        lock.acquire(blocking=False)
        return True
    except Timeout:
        return False
    except BaseException:
        lock.release(force=True)
        raise


def warn_of_wait(folder: Path, purpose: str, *names: str) -> None:
    """Warn that this process waits, and for whom."""
    found = {holder for name in names if (holder := _holder(folder / "locks" / f"{name}.lock"))}
    holders = f"process {', '.join(map(str, sorted(found)))}" if found else "another process"
    warn(
        f"waiting {purpose}: {holders} has been using the embedding cache in {str(folder)!r} for "
        f"more than {PATIENCE:g} s; if it is suspended, resume or end it",
    )


def _holder(lock: Path) -> int | None:
    """Return the process that holds a lock, or None if the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        inode = f":{lock.stat().st_ino}"
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            _, kind, _, _, process, file, *_ = line.split()
            if kind == "FLOCK" and file.endswith(inode):
                return int(process)
    return None


def permit_group(path: Path, folder: Path) -> None:
    """Let the group write to a new file or folder if it may write to `folder`."""
    group = folder.stat().st_mode & 0o070
    mode = path.stat().st_mode
    group &= 0o070 if path.is_dir() else 0o060
    if group & _GROUP_WRITES and mode & group != group:
        with suppress(PermissionError):  # it belongs to another user, who has permitted it or not
            path.chmod((mode & 0o7777) | group)


def reserve(path: Path, size: int) -> None:
    """Reserve disk space for a file that is mapped into memory, and make it `size` bytes long.

    If the disk is full, a write to a mapped file without space would terminate the process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        state = os.fstat(descriptor)
        missing = size - state.st_size
        if hasattr(os, "posix_fallocate"):
            if missing > 0 or 512 * state.st_blocks < state.st_size:
                try:
                    os.posix_fallocate(descriptor, 0, max(size, state.st_size))
                except OSError as error:
                    if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                        raise
        elif missing > 0:
            os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, bytes(missing))
    finally:
        os.close(descriptor)

"""Locks of threads that load models, tokenise or compute, and which forks wait for."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _SharedLock:
    """A lock that any number of threads can hold at once, but none during a fork."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.holders: Counter[threading.Thread] = Counter()
        self.threads: set[threading.Thread] = set()  # that have held it, but for some that ended
        self.is_forking = False

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock in the calling thread, which may hold it already."""
        thread = threading.current_thread()
        with self.changed:
            while self.is_forking and not self.holders[thread]:
                self.changed.wait()
            self.holders[thread] += 1
            if thread not in self.threads:
                self.threads = {thread, *filter(_has_memory, self.threads)}
        try:
            yield
        finally:
            with self.changed:
                self.holders -= Counter([thread])
                self.changed.notify_all()

    def acquire(self) -> None:
        """Wait until no other thread holds the lock, and keep others from it until release.

        Wait also for the threads that have held it and are ending, for a second at most.
        """
        self.changed.acquire()
        self.is_forking = True
        while self.holders.keys() - {threading.current_thread()}:
            self.changed.wait()
        deadline = time.monotonic() + 1
        while any(map(_is_ending, self.threads)) and time.monotonic() < deadline:
            time.sleep(0.001)

    def release(self) -> None:
        """Let other threads hold the lock again."""
        self.is_forking = False
        self.changed.notify_all()
        self.changed.release()


def _has_memory(thread: threading.Thread) -> bool:
    """Return whether a thread may have buffers of MKL."""
    return thread.is_alive() or _is_ending(thread)


def _is_ending(thread: threading.Thread) -> bool:
    """Return whether a thread has ended in Python, but not yet in the operating system.

    It frees the buffers of MKL then, under a lock that a child of a fork never sees released.
    Before Python 3.13, ``join`` does not wait for it.
    """
    return not thread.is_alive() and os.path.exists(f"/proc/self/task/{thread.native_id}")


# In the order in which a thread may hold more than one of them. A thread that forks while it holds
# one, as in a tokenizer that starts another program, acquires it again.
MODELS_LOCK = threading.RLock()  # the stores of loaded models
PROBES_LOCK = threading.RLock()  # the probes for the influence of padding
TOKENIZER_LOCK = threading.RLock()  # a fast tokenizer stores the truncation of its last call
HOOK_LOCK = threading.RLock()  # the hook of transformers for progress bars
FORWARD_LOCK = _SharedLock()  # forward passes: torch holds locks of its own in them

_LOCKS = (MODELS_LOCK, PROBES_LOCK, TOKENIZER_LOCK, HOOK_LOCK, FORWARD_LOCK)


def _before_fork() -> None:
    """Wait until no other thread loads, tokenises or computes: a child never sees it finish."""
    for lock in _LOCKS:
        lock.acquire()


def _after_fork() -> None:
    """Release the locks that were acquired before the fork."""
    for lock in reversed(_LOCKS):
        lock.release()


def _after_fork_in_child() -> None:
    """Release the locks, and keep to one thread if the parent may have had more.

    OpenMP's threads do not exist in the child, which would wait for them in its first parallel
    computation.
    """
    _after_fork()
    if FORWARD_LOCK.threads:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )

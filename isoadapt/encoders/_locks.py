"""Locks that threads share for loading models and tokenising, and which forks wait for."""

import os
import threading

# In the order in which a thread may hold more than one of them. A thread that forks while it holds
# one, as in a tokenizer that starts another program, acquires it again.
MODELS_LOCK = threading.RLock()  # the stores of loaded models
PROBES_LOCK = threading.RLock()  # the probes for the influence of padding
TOKENIZER_LOCK = threading.RLock()  # a fast tokenizer stores the truncation of its last call
HOOK_LOCK = threading.RLock()  # the hook of transformers for progress bars

_LOCKS = (MODELS_LOCK, PROBES_LOCK, TOKENIZER_LOCK, HOOK_LOCK)


def _before_fork() -> None:
    """Wait until no other thread loads or tokenises: a child would never see it finish."""
    for lock in _LOCKS:
        lock.acquire()


def _after_fork() -> None:
    """Release the locks that were acquired before the fork."""
    for lock in reversed(_LOCKS):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )

"""The cache, used by processes that are killed at random, and by many threads and processes.

`python -m benchmarks.faults.cache WHAT FOLDER NUMBER SEED` prints counts as JSON. The number is
that of rounds for "kills", of calls for "calls", and of interrupts for "interrupts". The vectors
are computed from the texts without an encoder, so that wrong ones are detected.
"""

import fcntl
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt import EmbeddingCache
from isoadapt.encoders._cache._keys import Identity
from isoadapt.encoders._texts import Texts

TEXTS = Texts([f"text {i}" for i in range(8000)])
WIDTH = 256
MAX_SIZE = 5 * 2**20  # smaller than all vectors together, so that rows are evicted too
PROCESSES, THREADS = 3, 3  # that use the cache at once


def vectors_of(texts: Texts) -> NDArray[np.float32]:
    """Compute vectors from texts, reproducibly."""
    rows = [hashlib.shake_128(text.encode()).digest(WIDTH) for text in texts.first]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, WIDTH).astype(np.float32)


def embed_through_cache(cache: EmbeddingCache, texts: Texts) -> NDArray[np.float32]:
    """Encode texts through the cache as a TransformerEncoder does."""
    return cache._embed(texts, lambda: Identity(b"stand-in"), vectors_of, lambda rows: None)


def fill(cache: EmbeddingCache, seed: int) -> None:
    """Encode random texts until the process is killed."""
    rng = np.random.default_rng(seed)
    while True:
        embed_through_cache(
            cache, TEXTS.take(rng.choice(len(TEXTS), size=rng.integers(1, 3000), replace=False))
        )


def kill_in_rounds(folder: str, rounds: int, seed: int) -> dict[str, Any]:
    """Kill one of two processes in every round and both in the last; count the errors."""
    cache = EmbeddingCache(folder, MAX_SIZE)
    chance = random.Random(seed)
    wrong = checked = problems = 0
    pids = [_start(cache, seed + i) for i in range(2)]
    for i in range(rounds):
        time.sleep(chance.uniform(0, 0.2))
        _kill(pids.pop(0))
        texts = TEXTS.take(range(i % 7, len(TEXTS), 7))
        wrong += int((embed_through_cache(cache, texts) != vectors_of(texts)).any(axis=1).sum())
        checked += len(texts)
        problems += len(cache.verify().problems)
        pids.append(_start(cache, seed + i + 2))
    for pid in pids:
        _kill(pid)
    problems += len(cache.verify().problems)
    wrong += int((embed_through_cache(cache, TEXTS) != vectors_of(TEXTS)).any(axis=1).sum())
    return {
        "kills": rounds + 2,
        "checked": checked + len(TEXTS),
        "wrong": wrong,
        "problems": problems,
        "set_aside": os.path.exists(os.path.join(folder, "rows.damaged")),
        **cache.stats()._asdict(),
    }


def call_together(folder: str, calls: int, seed: int) -> dict[str, Any]:
    """Use a cache in several threads of several processes at once; count the wrong vectors."""
    shares = [calls // PROCESSES + (i < calls % PROCESSES) for i in range(PROCESSES)]
    tasks = [(folder, share, seed + i) for i, share in enumerate(shares)]
    with get_context("fork").Pool(PROCESSES) as pool:
        found = pool.starmap(_call_in_threads, tasks, chunksize=1)
    cache = EmbeddingCache(folder, MAX_SIZE)
    return {
        "calls": sum(calls for calls, _, _ in found),
        "checked": sum(checked for _, checked, _ in found),
        "wrong": sum(wrong for _, _, wrong in found),
        "problems": len(cache.verify().problems),
        "set_aside": os.path.exists(os.path.join(folder, "rows.damaged")),
        **cache.stats()._asdict(),
    }


def _call_in_threads(folder: str, calls: int, seed: int) -> tuple[int, int, int]:
    """Return the numbers of calls, of vectors and of wrong vectors in all threads of a process."""
    cache = EmbeddingCache(folder, MAX_SIZE)

    def call(number: int) -> tuple[int, int]:
        rng = np.random.default_rng((seed, number))
        texts = TEXTS.take(rng.choice(len(TEXTS), size=rng.integers(1, 100), replace=False))
        wrong = (embed_through_cache(cache, texts) != vectors_of(texts)).any(axis=1)
        return len(texts), int(wrong.sum())

    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(call, range(calls)))
    return len(found), sum(n for n, _ in found), sum(wrong for _, wrong in found)


def interrupt_calls(folder: str, interrupts: int, seed: int) -> dict[str, Any]:
    """Interrupt calls at random moments; count the locks that are kept and the wrong vectors."""
    cache, chance = EmbeddingCache(folder, MAX_SIZE), random.Random(seed)
    signal.signal(signal.SIGALRM, _raise_interrupt)
    sys.unraisablehook = lambda _: None  # an interrupt in a finaliser, which ends nothing
    counts = dict.fromkeys(("interrupts", "locks", "wrong"), 0)
    embed_through_cache(cache, TEXTS.take(range(100)))
    while counts["interrupts"] < interrupts:
        texts = TEXTS.take(chance.sample(range(len(TEXTS)), chance.randint(1, 60)))
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 1e-2))
            embed_through_cache(cache, texts)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            counts["interrupts"] += 1
        counts["locks"] += sum(_is_locked(lock) for lock in Path(folder, "locks").iterdir())
    counts["wrong"] = int((embed_through_cache(cache, TEXTS) != vectors_of(TEXTS)).any(1).sum())
    return {
        **counts,
        "problems": len(cache.verify().problems),
        "set_aside": os.path.exists(os.path.join(folder, "rows.damaged")),
    }


def _is_locked(file: Path) -> bool:
    with file.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _start(cache: EmbeddingCache, seed: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            fill(cache, seed)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise RuntimeError(f"a process ended by itself: {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    run = {"kills": kill_in_rounds, "calls": call_together, "interrupts": interrupt_calls}[
        sys.argv[1]
    ]
    print(json.dumps(run(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))

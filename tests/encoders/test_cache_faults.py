"""The cache used by several threads and processes, which are killed, interrupted or forked."""

import ctypes
import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from torch.utils.data import DataLoader

from isoadapt import EmbeddingCache, TransformerEncoder
from isoadapt.encoders._cache._store import Store, Unusable, store_in
from isoadapt.encoders._identity import Identity
from isoadapt.encoders._texts import Texts
from tests.encoders.test_store import forks, in_fork

TEXTS = Texts([f"text {i} {'is not short ' * 3}" for i in range(8000)])
WIDTH = 256
NO_MOUNT = 77  # exit code
MAX_SIZE = 5 * 2**20  # smaller than all vectors together, so that rows are evicted too


def vectors_of(texts):
    """Compute vectors from texts, so that a wrong one is detected."""
    rows = [hashlib.shake_128(text.encode()).digest(WIDTH) for text in texts.first]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, WIDTH).astype(np.float32)


def embed(folder, texts, encode=vectors_of, size=MAX_SIZE):
    cache = EmbeddingCache(folder, size)
    return cache._embed(texts, lambda: Identity(b"stand-in"), encode, lambda rows: None)


def n_wrong(folder, texts):
    return (embed(folder, texts) != vectors_of(texts)).any(axis=1).sum()


def check(folder):
    """Check all vectors and the file."""
    assert n_wrong(folder, TEXTS) == 0
    assert EmbeddingCache(folder).verify().problems == ()


def sample(rng, most):
    return TEXTS.take(rng.choice(len(TEXTS), size=rng.integers(1, most), replace=False))


def fill_until_killed(folder, seed):
    pid = os.fork()
    if pid:
        return pid
    rng = np.random.default_rng(seed)
    try:
        while True:
            embed(folder, sample(rng, 3000))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, "it ended by itself"


@forks
@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error::UserWarning")  # no damage is found
def test_three_processes_of_which_one_is_killed_at_random(tmp_path, rounds):
    chance = random.Random(0)
    pids = [fill_until_killed(tmp_path, i) for i in range(2)]
    for i in range(rounds):
        time.sleep(chance.uniform(0, 0.2))
        kill(pids.pop(0))
        assert n_wrong(tmp_path, TEXTS.take(range(i % 7, len(TEXTS), 7))) == 0
        pids.append(fill_until_killed(tmp_path, i + 2))
    for pid in pids:
        kill(pid)
    check(tmp_path)


def is_locked(file):
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    lock.release()
    return False


def interrupt_calls(folder):
    """Interrupt calls at random moments; no lock may be kept."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda _: None  # an interrupt in a finaliser, which ends nothing
    chance, rng, interrupted = random.Random(0), np.random.default_rng(0), 0
    while interrupted < 60:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 3e-2))
            embed(folder, sample(rng, 60))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        assert not any(map(is_locked, Path(folder, "locks").glob("*.lock")))
    check(folder)


@forks
def test_interrupted_calls_keep_no_lock_and_leave_nothing_wrong(tmp_path):
    assert in_fork(interrupt_calls, tmp_path) == 0


@pytest.mark.parametrize("start", [0, 4000])
def test_two_threads_encode_at_once_and_no_text_twice(tmp_path, start):
    """The same texts or others: both encode their first batches at the same time."""
    both, encoded = threading.Barrier(2), []

    def call(start):
        batches = 0

        def encode(texts):
            nonlocal batches
            batches += 1
            if batches == 1:
                both.wait(60)  # raises an error if the other thread waits for this one
            encoded.extend(texts.first)
            return vectors_of(texts)

        texts = TEXTS.take(range(start, start + 4000))
        np.testing.assert_array_equal(embed(tmp_path, texts, encode, 2**30), vectors_of(texts))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(call, (0, start)))
    assert len(encoded) == len(set(encoded)) == 4000 + start
    assert EmbeddingCache(tmp_path).stats()[:3] == (4000 - start, 4000 + start, 4000 + start)


# A full disk


def fill_a_disk(folder, size):
    """Mount a disk of `size` KiB for this process alone, and encode more than it can hold."""
    ids = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", folder]
    try:
        ctypes.CDLL(None).unshare(0x10020000)  # CLONE_NEWUSER | CLONE_NEWNS
        for name, content in ids.items():
            Path("/proc/self", name).write_text(content)
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError):
        os._exit(NO_MOUNT)
    if size < 100:  # there is no space for an empty store
        said = pytest.raises(OSError, match="No space left")
    else:
        match = r"continues without the cache.*(No space left|Input/output error)"
        said = pytest.warns(UserWarning, match=match)
    with said:
        for stop in (200, 400, 600):
            assert n_wrong(folder, TEXTS.take(range(stop))) == 0


@pytest.mark.filterwarnings("error:.*damaged:UserWarning")
@forks
@pytest.mark.skipif(sys.platform != "linux", reason="needs a disk of its own")
@pytest.mark.parametrize("size", [4, 40, 68, 72, 100, 400])
def test_encoding_goes_on_when_the_disk_is_full(tmp_path, size):
    if (code := in_fork(fill_a_disk, tmp_path, size)) == NO_MOUNT:
        pytest.skip("needs a small file system, and this process may not mount one")
    assert code == 0


@pytest.mark.parametrize("step", ["put", "touch", "try_lock"])
def test_encoding_goes_on_without_a_cache_that_fails(tmp_path, monkeypatch, step):
    embed(tmp_path, TEXTS.take(range(5)))

    def fail(*args):
        raise Unusable("No space left on device")

    monkeypatch.setattr(Store, step, fail)
    with pytest.warns(UserWarning, match=r"continues without the cache: No space left"):
        found = embed(tmp_path, TEXTS.take(range(20)))
    np.testing.assert_array_equal(found, vectors_of(TEXTS.take(range(20))))


# Forks


@forks
def test_a_child_leaves_the_stores_and_the_locks_of_its_parent_alone(tmp_path):
    texts = TEXTS.take(range(100))
    embed(tmp_path, texts)
    store = store_in(tmp_path)
    lock = store.lock("held")
    assert store.try_lock(lock)

    def use_in_child():
        assert store_in(tmp_path) is not store
        assert n_wrong(tmp_path, TEXTS.take(range(50, 200))) == 0
        assert not store_in(tmp_path).try_lock(store_in(tmp_path).lock("held"))

    assert in_fork(use_in_child) == 0
    assert is_locked(tmp_path / "locks" / "held.lock")
    lock.release()
    assert store_in(tmp_path) is store
    assert n_wrong(tmp_path, TEXTS.take(range(200))) == 0
    assert EmbeddingCache(tmp_path).stats()[:3] == (250, 200, 200)


@forks
def test_forked_workers_of_a_data_loader_encode_through_one_cache(checkpoint, tmp_path):
    texts, before = [f"{i} cats " * 20 for i in range(200)], torch.get_num_threads()
    encoder = TransformerEncoder(checkpoint, cache=tmp_path)
    torch.set_num_threads(2)
    try:
        encoder.transform(texts[:100])  # with threads that do not exist in the workers
        options = {"num_workers": 2, "multiprocessing_context": "fork"}
        loader = DataLoader(texts, batch_size=10, collate_fn=encoder.transform, **options)
        found = np.concatenate(list(loader))
    finally:
        torch.set_num_threads(before)
    expected = TransformerEncoder(checkpoint).transform(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert EmbeddingCache(tmp_path).stats()[:3] == (100, 200, 200)

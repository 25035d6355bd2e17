"""The cache used by several processes, which are forked, killed or interrupted."""

import os
import random
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock, Timeout

from isoadapt import EmbeddingCache
from isoadapt.encoders._cache import _store as module
from isoadapt.encoders._cache._store import store_in
from isoadapt.encoders._identity import Identity
from isoadapt.encoders._texts import Texts
from tests.encoders.test_store import LARGE, fill, keys_of, vectors_of

pytestmark = [
    pytest.mark.xdist_group("processes"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
TEXTS = Texts([f"text {i} {'is not short ' * 3}" for i in range(8000)])
MAX_SIZE = 5 * 2**20  # smaller than all vectors together, so that rows are evicted too


def in_fork(function, *arguments):
    """Call a function in a forked process and return the exit code: 0 unless it fails."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def rows_of(texts):
    """Compute vectors from texts, so that a wrong one is detected."""
    return vectors_of([text.encode() for text in texts.first], 256)


def embed(folder, texts):
    cache = EmbeddingCache(folder, MAX_SIZE)
    return cache._embed(texts, lambda: Identity(b"stand-in"), rows_of, lambda rows: None)


def n_wrong(folder, texts):
    return (embed(folder, texts) != rows_of(texts)).any(axis=1).sum()


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


@pytest.mark.parametrize("rounds", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("error::UserWarning")  # no damage is found
def test_three_processes_of_which_one_is_killed_at_random(tmp_path, rounds):
    chance = random.Random(0)
    pids = [fill_until_killed(tmp_path, i) for i in range(2)]
    for i in range(rounds):
        time.sleep(chance.uniform(0, 0.2))
        kill(pids.pop(0))
        assert n_wrong(tmp_path, TEXTS.take(range(i % 17, len(TEXTS), 17))) == 0
        pids.append(fill_until_killed(tmp_path, i + 2))
    for pid in pids:
        kill(pid)
    assert EmbeddingCache(tmp_path).verify().problems == ()


def is_locked(file):
    with suppress(Timeout), FileLock(file).acquire(blocking=False):
        return False
    return True


def interrupt_calls(folder):
    """Interrupt calls at random moments; no lock may be kept."""

    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = lambda _: None  # an interrupt in a finaliser, which ends nothing
    chance, rng, interrupted = random.Random(0), np.random.default_rng(0), 0
    while interrupted < 40:
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-4, 3e-2))
            embed(folder, sample(rng, 60))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        assert not any(map(is_locked, Path(folder, "locks").glob("*.lock")))
    assert n_wrong(folder, TEXTS.take(range(0, len(TEXTS), 9))) == 0
    assert EmbeddingCache(folder).verify().problems == ()


@pytest.mark.slow
def test_interrupted_calls_keep_no_lock_and_leave_nothing_wrong(tmp_path):
    assert in_fork(interrupt_calls, tmp_path) == 0


def test_the_file_may_outgrow_the_map_of_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_MAP", 2**16)
    keys = [keys_of(*range(start, start + 500)) for start in range(0, 1500, 500)]
    fill(store_in(tmp_path), 500)
    put = lambda: store_in(tmp_path).put(keys[1], vectors_of(keys[1]), LARGE)  # noqa: E731
    assert in_fork(put) == 0
    store_in(tmp_path).put(keys[2], vectors_of(keys[2]), LARGE)
    for part in keys:
        np.testing.assert_array_equal(store_in(tmp_path).read(part)[0], vectors_of(part))


def damage_at_random(content, chance):
    """Return the content of a file of pages of 4096 bytes damaged in one of many ways."""
    content = bytearray(content)
    page, other = (4096 * chance.randrange(len(content) // 4096) for _ in range(2))
    places = {  # of single bytes
        "anywhere": [chance.randrange(len(content)) for _ in range(20)],
        "root": [4096 * chance.randrange(2) + chance.randrange(152) for _ in range(10)],
    }
    pages = {"zero": bytes(4096), "noise": chance.randbytes(4096)}
    pages["copied"] = content[other : other + 4096]
    kind = chance.choice([*places, *pages, "cut"])
    for place in places.get(kind, ()):
        content[place] = chance.randrange(256)
    if kind in pages:
        content[page : page + 4096] = pages[kind]
    return content[: chance.randrange(len(content))] if kind == "cut" else content


def check_damage(folder, seeds):
    """Damage a store in many ways; check that no wrong row is read and that it recovers."""
    warnings.simplefilter("ignore")
    keys = fill(store_in(folder / "sound"), 400)
    content = (folder / "sound" / "rows.lmdb" / "data.mdb").read_bytes()
    expected = vectors_of(keys)
    for seed in seeds:
        place = folder / str(seed) / "rows.lmdb"
        place.mkdir(parents=True)
        (place / "data.mdb").write_bytes(damage_at_random(content, random.Random(seed)))
        store = store_in(place.parent)
        for max_size in (LARGE, 2**20):
            vectors, found = store.read(keys)
            assert not found.any() or (vectors[found] == expected[found]).all()
            store.put(keys[::4], expected[::4], max_size)
            store.touch(keys)
        store.check()
        assert store.check()[1] == []
        store.put(keys, expected, LARGE)
        np.testing.assert_array_equal(store.read(keys)[0], expected)
        store.close()


@pytest.mark.slow
def test_damage_neither_gives_a_wrong_row_nor_ends_the_process(tmp_path):
    code = in_fork(check_damage, tmp_path, range(60))
    assert code == 0, f"exit code {code} after {sorted(tmp_path.iterdir())}"


def test_a_child_leaves_the_stores_and_the_locks_of_its_parent_alone(tmp_path):
    embed(tmp_path, TEXTS.take(range(100)))
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

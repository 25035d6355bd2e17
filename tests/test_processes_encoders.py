"""The cache used by several processes, which are forked, killed or interrupted, and full disks."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from torch.utils.data import DataLoader

from isoadapt import EmbeddingCache, TransformerEncoder
from isoadapt.encoders._cache import _store as module
from isoadapt.encoders._cache._store import store_in
from isoadapt.encoders._identity import Identity
from isoadapt.encoders._texts import Texts
from tests.encoders.test_store import LARGE, fill, in_fork, keys_of, vectors_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]
TEXTS = Texts([f"text {i} {'is not short ' * 3}" for i in range(8000)])
NO_MOUNT = 77  # exit code
MAX_SIZE = 5 * 2**20  # smaller than all vectors together, so that rows are evicted too


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


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.slow)])
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


def test_interrupted_calls_keep_no_lock_and_leave_nothing_wrong(tmp_path):
    assert in_fork(interrupt_calls, tmp_path) == 0


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
@pytest.mark.skipif(sys.platform != "linux", reason="needs a disk of its own")
@pytest.mark.parametrize("size", [4, 72, 400])
def test_encoding_goes_on_when_the_disk_is_full(tmp_path, size):
    if (code := in_fork(fill_a_disk, tmp_path, size)) == NO_MOUNT:
        pytest.skip("needs a small file system, and this process may not mount one")
    assert code == 0


def test_the_file_may_outgrow_the_map_of_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_MAP", 2**16)
    keys = [keys_of(*range(start, start + 500)) for start in range(0, 1500, 500)]
    fill(store_in(tmp_path), 500)
    put = lambda: store_in(tmp_path).put(keys[1], vectors_of(keys[1]), LARGE)  # noqa: E731
    assert in_fork(put) == 0
    store_in(tmp_path).put(keys[2], vectors_of(keys[2]), LARGE)
    for part in keys:
        np.testing.assert_array_equal(store_in(tmp_path).read(part)[0], vectors_of(part))


def test_rows_are_stored_in_the_file_that_replaced_a_removed_one(tmp_path, monkeypatch):
    store = store_in(tmp_path)
    fill(store, 5)
    lock = store._other_writers_excluded

    def clear_and_fill():
        other = store_in(tmp_path)
        other.clear()
        fill(other, 2)

    def wait_for_another_process():
        monkeypatch.undo()
        assert in_fork(clear_and_fill) == 0
        return lock()

    monkeypatch.setattr(store, "_other_writers_excluded", wait_for_another_process)
    keys = keys_of(10, 11)
    store.put(keys, vectors_of(keys), LARGE)
    assert store.read([*keys_of(0, 1, 2), *keys])[1].tolist() == [True, True, False, True, True]


def damage_at_random(content, chance):
    """Return the content of a file damaged in one of many ways."""
    content = bytearray(content)
    kind = chance.choice(["bytes", "header", "zero", "noise", "meta", "cut", "swap", "other"])
    page, other = (4096 * chance.randrange(2, len(content) // 4096) for _ in range(2))
    places = {  # of single bytes
        "bytes": [chance.randrange(len(content)) for _ in range(chance.choice([1, 20, 500]))],
        "header": [page + chance.randrange(32) for _ in range(3)],
        "meta": [4096 * chance.randrange(2) + chance.randrange(152) for _ in range(10)],
    }
    for place in places.get(kind, ()):
        content[place] = chance.randrange(256)
    swapped = content[other : other + 4096]
    pages = {"zero": bytes(4096), "noise": chance.randbytes(4096), "swap": swapped}
    content[page : page + 4096] = pages.get(kind, content[page : page + 4096])
    if kind == "cut":
        del content[chance.randrange(len(content)) :]
    if kind == "other":
        content[:] = chance.choice([b"", b"x", content[4096:]])
    return content


def check_damage(folder, seeds):
    """Damage a store in many ways; check that no wrong row is read and that it recovers."""
    warnings.simplefilter("ignore")
    sound = store_in(folder / "sound")
    keys = fill(sound, 400)
    for start in range(0, 400, 40):
        sound.touch(keys[start : start + 60])
    content = (folder / "sound" / "rows.lmdb" / "data.mdb").read_bytes()
    expected = vectors_of(keys)
    for seed in seeds:
        (folder / "seed").write_text(str(seed))
        chance = random.Random(seed)
        place = folder / str(seed) / "rows.lmdb"
        place.mkdir(parents=True)
        (place / "data.mdb").write_bytes(damage_at_random(content, chance))
        if chance.random() < 0.3:
            (place / "lock.mdb").write_bytes(chance.randbytes(chance.choice([0, 10, 8192])))
        store = store_in(place.parent)
        for size in (LARGE, LARGE, 2**20):
            vectors, found = store.read(keys)
            assert not found.any() or (vectors[found] == expected[found]).all()
            some = sorted(chance.sample(range(400), 100)) if size == LARGE else range(400)
            store.put([keys[i] for i in some], expected[some], size)
            store.touch(keys)
        store.check()
        assert store.check()[1] == []
        store.put(keys, expected, LARGE)
        np.testing.assert_array_equal(store.read(keys)[0], expected)
        store.close()
        shutil.rmtree(place.parent)


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.slow)])
def test_damage_neither_gives_a_wrong_row_nor_ends_the_process(tmp_path, seeds):
    code = in_fork(check_damage, tmp_path, seeds)
    assert code == 0, f"seed {(tmp_path / 'seed').read_text()}: exit code {code}"


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


def test_forked_workers_of_a_data_loader_encode_through_one_cache(checkpoint, tmp_path):
    texts, before = [f"{i} cats " * 20 for i in range(60)], torch.get_num_threads()
    encoder = TransformerEncoder(checkpoint, cache=tmp_path)
    torch.set_num_threads(2)
    try:
        encoder.transform(texts[:30])  # with threads that do not exist in the workers
        options = {"num_workers": 2, "multiprocessing_context": "fork"}
        loader = DataLoader(texts, batch_size=10, collate_fn=encoder.transform, **options)
        found = np.concatenate(list(loader))
    finally:
        torch.set_num_threads(before)
    expected = TransformerEncoder(checkpoint).transform(texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert EmbeddingCache(tmp_path).stats()[:3] == (30, 60, 60)

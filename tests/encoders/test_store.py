"""The store of the cache: rows, eviction, damage and killed processes."""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import lmdb
import numpy as np
import pytest
from lmdb.verify import verify

from benchmarks.faults.cache import kill_in_rounds
from isoadapt.encoders._cache import _environment
from isoadapt.encoders._cache._environment import Unusable
from isoadapt.encoders._cache._store import Store

ROOT = Path(__file__).parents[2]
LARGE = 2**30


def forks(test):
    """Mark a test that forks this process."""
    test = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")(test)


def keys_of(*numbers):
    return [hashlib.blake2b(b"%d" % number, digest_size=20).digest() for number in numbers]


def vectors_of(keys, width=100):
    """Compute vectors (n, width) from their keys, so that a wrong row is detected."""
    seeds = (int.from_bytes(key, "little") for key in keys)
    return np.stack([np.random.default_rng(seed).normal(size=width) for seed in seeds]).astype("f4")


def fill(store, n, width=100, max_size=LARGE):
    keys = keys_of(*range(n))
    store.put(keys, vectors_of(keys, width), max_size)
    return keys


def test_rows_are_returned_exactly_and_in_order(tmp_path):
    store = Store(tmp_path)
    keys = fill(store, 50)
    absent = keys_of(50, 51)
    vectors, found = store.read([absent[0], *keys[::-1], absent[1]])
    assert found.tolist() == [False] + 50 * [True] + [False]
    np.testing.assert_array_equal(vectors[1:-1], vectors_of(keys[::-1]))
    assert store.read(absent)[0] is None
    store.touch(keys[:7])
    assert store.counts()[:3] == (7, 50, 50)


def test_one_environment_for_every_name_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    stores = [Store(name) for name in ("cache", tmp_path / "cache", "./x/../cache", "link")]
    assert not (tmp_path / "cache").exists()
    for i, store in enumerate(stores):
        store.put(keys_of(i), vectors_of(keys_of(i)), LARGE)
    assert [store.counts()[2] for store in stores] == [4, 4, 4, 4]


def test_the_least_recently_used_rows_are_evicted_first(tmp_path):
    store, size = Store(tmp_path), 2**20
    first = fill(store, 300, width=250, max_size=size)
    assert store.counts()[3] == 300 * (20 + 4 + 1000)
    store.touch(first[:100])
    later = []
    while store.read(first)[1].all():
        more = keys_of(*range(300 + len(later), 320 + len(later)))
        store.put(more, vectors_of(more, 250), size)
        later += more
        assert store.counts()[3] <= size
        assert len(later) < 1024, "newer rows were evicted in place of the first ones"
    assert store.read(first[:100])[1].all()
    vectors, found = store.read(later)
    assert found.all()
    np.testing.assert_array_equal(vectors, vectors_of(later, 250))
    assert verify(str(tmp_path / "rows.lmdb")) == []


def test_more_rows_at_once_than_fit(tmp_path):
    store = Store(tmp_path)
    fill(store, 3000, width=250, max_size=2**20)
    hits, misses, rows, size = store.counts()
    assert (hits, misses) == (0, 3000)
    assert 0.7 * 2**20 < size == rows * (20 + 4 + 1000) <= 2**20


@pytest.mark.parametrize("width", [100, 384, 1024])
def test_the_file_takes_at_most_twice_the_maximum_size(tmp_path, width):
    store, size = Store(tmp_path), 2**21
    n = size // (4 * width + 24)
    for start in range(0, 4 * n, n // 3):
        keys = keys_of(*range(start, start + n // 3))
        store.put(keys, np.zeros((len(keys), width), dtype="f4"), size)
        store.touch(keys[::5])
        assert (tmp_path / "rows.lmdb" / "data.mdb").stat().st_size <= 2 * size
    assert 0.6 * size < store.counts()[3] <= size


def test_the_file_may_outgrow_the_map(tmp_path, monkeypatch):
    monkeypatch.setattr("isoadapt.encoders._cache._environment._FIRST_MAP", 2**16)
    store = Store(tmp_path)
    keys = fill(store, 2000)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))


def test_a_row_has_one_claim(tmp_path):
    store = Store(tmp_path)
    stored = fill(store, 3)
    keys = [*stored, *keys_of(3, 4, 5, 6)]
    assert store.claim(keys, b"a", limit=2) == ([3, 4], 5)
    assert store.claim(keys, b"b", limit=9) == ([5, 6], 7)
    assert store.claim(keys, b"c", limit=9) == ([], 7)
    assert store.owners() == {b"a", b"b"}
    store.unclaim(b"a")
    store.put(keys[5:6], vectors_of(keys[5:6]), LARGE)
    assert store.claim(keys, b"c", limit=9) == ([3, 4], 7)
    assert store.owners() == {b"b", b"c"}


def in_fork(function, *arguments):
    """Call a function in a forked process and return the exit code: 0 unless it fails."""
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join(120)
    process.kill()
    process.join()
    return process.exitcode


def enlarge_in_two_processes(folder):
    _environment._FIRST_MAP = 2**16
    store = Store(folder)
    fill(store, 10)
    pid = os.fork()
    for i in range(50):
        mine = keys_of(*range(1000 + 10 * i, 1010 + 10 * i) if pid else (5000 + i,))
        store.put(mine, vectors_of(mine), LARGE)
        assert store.read(keys_of(i % 10))[1].all()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    keys = keys_of(*range(10), *range(1000, 1500), *range(5000, 5050))
    assert (store.read(keys)[0] == vectors_of(keys)).all()
    assert store.check() == (560, [])


@forks
def test_parent_and_child_process_enlarge_the_map_independently(tmp_path):
    assert in_fork(enlarge_in_two_processes, tmp_path) == 0


@pytest.mark.parametrize("removal", ["rename", "remove"])
def test_a_store_removed_while_open_is_created_again(tmp_path, removal):
    store = Store(tmp_path / "cache")
    keys = fill(store, 10)
    if removal == "rename":
        (tmp_path / "cache" / "rows.lmdb").rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(tmp_path / "cache")
    assert not store.read(keys)[1].any()
    fill(store, 10)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))


def test_clear_leaves_other_files_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    store = Store(tmp_path)
    keys = fill(store, 10)
    store.clear()
    assert store.counts()[:3] == (0, 0, 0)
    assert not store.read(keys)[1].any()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "rows.lmdb", "locks"}


def test_a_row_with_a_wrong_byte_is_not_read(tmp_path):
    store = Store(tmp_path)
    keys = fill(store, 20)
    file = tmp_path / "rows.lmdb" / "data.mdb"
    content = bytearray(file.read_bytes())
    for place in find_all(content, vectors_of(keys[:1]).tobytes()[:40]):
        content[place + 7] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    message = r"was damaged \(the checksum of entry .*renamed to rows.damaged"
    with pytest.warns(UserWarning, match=message):
        assert not store.read(keys)[1].any()
    assert (tmp_path / "rows.damaged" / "data.mdb").read_bytes() == content
    fill(store, 20)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))


def find_all(content, part):
    place = content.find(part)
    while place >= 0:
        yield place
        place = content.find(part, place + 1)


def test_only_a_file_changed_by_others_is_verified_before_it_is_opened(tmp_path, monkeypatch):
    verified = []
    monkeypatch.setattr(
        "isoadapt.encoders._cache._environment.verify", lambda path: verified.append(path)
    )
    store = Store(tmp_path)
    fill(store, 20)
    verified.clear()
    store._environment.close()
    assert store.counts()[2] == 20
    assert verified == []
    store._environment.close()
    os.utime(tmp_path / "rows.lmdb" / "data.mdb", ns=(1, 1))
    assert store.counts()[2] == 20
    assert len(verified) == 1
    store._environment.close()
    assert store.counts()[2] == 20
    assert len(verified) == 1


@pytest.mark.parametrize("damage", ["row", "page"])
def test_check_finds_damage_and_sets_it_aside(tmp_path, damage):
    store = Store(tmp_path)
    keys = fill(store, 300)
    assert store.check() == (300, [])
    file = tmp_path / "rows.lmdb" / "data.mdb"
    content = bytearray(file.read_bytes())
    for i in (3, 5):
        for place in find_all(content, vectors_of(keys[i : i + 1]).tobytes()[:40]):
            if damage == "row":
                content[place + 7] ^= 1
            else:
                start = place - place % 4096
                content[start : start + 4096] = bytes(4096)
    with file.open("r+b") as opened:
        opened.write(content)
    with pytest.warns(UserWarning, match="was damaged"):
        rows, problems = store.check()
    assert rows == 300
    assert len(problems) == 2 if damage == "row" else problems
    assert store.check() == (0, [])


def test_a_folder_that_cannot_be_used(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below", Path("/proc/cache")):
        with pytest.raises(Unusable, match=r"cannot be used \(.*choose a folder that can be writt"):
            Store(folder).counts()


@pytest.mark.parametrize("kind", ["DiskError", "MemoryError", "ReadersFullError", "Error"])
def test_an_error_other_than_damage_keeps_the_store(tmp_path, monkeypatch, kind):
    store = Store(tmp_path)
    keys = fill(store, 10)

    def fail(*args):
        raise getattr(lmdb, kind)("mdb_get: something else")

    with monkeypatch.context() as patch:
        patch.setattr("isoadapt.encoders._cache._store._content", fail)
        with pytest.raises(Unusable, match="mdb_get: something else"):
            store.read(keys)
    assert store.read(keys)[1].all()
    assert not (tmp_path / "rows.damaged").exists()


def damage_at_random(content, chance):
    """Return the content of a file damaged in one of many ways."""
    content = bytearray(content)
    pages = len(content) // 4096
    kind = chance.choice(["bytes", "header", "zero", "noise", "meta", "cut", "swap", "other"])
    page = 4096 * chance.randrange(2, pages)
    if kind == "bytes":
        for _ in range(chance.choice([1, 20, 500])):
            content[chance.randrange(len(content))] = chance.randrange(256)
    elif kind == "header":
        for _ in range(3):
            content[page + chance.randrange(32)] = chance.randrange(256)
    elif kind == "zero":
        content[page : page + 4096 * chance.choice([1, 8])] = bytes(4096)
    elif kind == "noise":
        content[page : page + 4096] = chance.randbytes(4096)
    elif kind == "meta":
        for _ in range(chance.choice([1, 4, 30])):
            content[4096 * chance.randrange(2) + chance.randrange(152)] = chance.randrange(256)
    elif kind == "cut":
        del content[chance.randrange(len(content)) :]
    elif kind == "swap":
        other = 4096 * chance.randrange(2, pages)
        content[page : page + 4096], content[other : other + 4096] = (
            content[other : other + 4096],
            content[page : page + 4096],
        )
    else:
        content[:] = chance.choice([b"", b"x", chance.randbytes(100_000), content[4096:]])
    return content


def check_damage(folder, seeds):
    """Damage a store in many ways; check that no wrong row is read and that it recovers."""
    warnings.simplefilter("ignore")
    sound = Store(Path(folder, "sound"))
    keys = fill(sound, 400)
    for start in range(0, 400, 40):
        sound.touch(keys[start : start + 60])
    content = Path(folder, "sound", "rows.lmdb", "data.mdb").read_bytes()
    expected = vectors_of(keys)
    for seed in seeds:
        Path(folder, "seed").write_text(str(seed))
        chance = random.Random(seed)
        place = Path(folder, str(seed), "rows.lmdb")
        place.mkdir(parents=True)
        (place / "data.mdb").write_bytes(damage_at_random(content, chance))
        if chance.random() < 0.3:
            (place / "lock.mdb").write_bytes(chance.randbytes(chance.choice([0, 10, 8192])))
        store = Store(place.parent)
        for _ in range(2):
            vectors, found = store.read(keys)
            assert vectors is None or (vectors[found] == expected[found]).all()
            some = sorted(chance.sample(range(400), 100))
            store.put([keys[i] for i in some], expected[some], LARGE)
            store.touch(keys)
        store.put(keys, expected, 2**20)
        vectors, found = store.read(keys)
        assert vectors is None or (vectors[found] == expected[found]).all()
        store.check()
        assert store.check()[1] == []
        store._environment.close()
        shutil.rmtree(place.parent)


@forks
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)])
def test_damage_neither_gives_a_wrong_row_nor_ends_the_process(tmp_path, seeds):
    code = in_fork(check_damage, tmp_path, seeds)
    assert code == 0, f"seed {(tmp_path / 'seed').read_text()}: exit code {code}"


def counts_of(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults.cache", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counts = json.loads(done.stdout)
    assert (counts["wrong"], counts["problems"], counts["set_aside"]) == (0, 0, False)
    return counts


@forks
def test_processes_killed_at_random_leave_nothing_wrong(tmp_path):
    counts = kill_in_rounds(str(tmp_path / "cache"), 5, 1)
    assert counts["checked"] > 8000
    assert (counts["wrong"], counts["problems"], counts["set_aside"]) == (0, 0, False)


@pytest.mark.slow
def test_many_calls_at_once_give_no_wrong_vector(tmp_path):
    counts = counts_of("calls", tmp_path / "cache", "50", "1")
    assert counts["calls"] == 50
    assert counts["hits"] > 0
    assert counts["checked"] >= counts["hits"] + counts["misses"]


def test_interrupted_calls_keep_no_lock(tmp_path):
    counts = counts_of("interrupts", tmp_path / "cache", "60", "1")
    assert counts["interrupts"] == 60
    assert counts["locks"] == 0

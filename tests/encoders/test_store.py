"""The store of the cache: its format, eviction and damage."""

import hashlib
import os
import random
import shutil
import struct
import warnings
import zlib
from multiprocessing import get_context
from pathlib import Path

import lmdb
import numpy as np
import pytest
from lmdb.verify import verify

from isoadapt.encoders._cache import _store as module
from isoadapt.encoders._cache._store import Unusable, store_in
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts

LARGE = 2**30


def forks(test):
    """Mark a test that forks this process."""
    test = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")(test)


def in_fork(function, *arguments):
    """Call a function in a forked process and return the exit code: 0 unless it fails."""
    process = get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    return process.exitcode


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
    store = store_in(tmp_path)
    keys = fill(store, 50)
    absent = keys_of(50, 51)
    vectors, found = store.read([absent[0], *keys[::-1], absent[1]])
    assert found.tolist() == [False] + 50 * [True] + [False]
    np.testing.assert_array_equal(vectors[1:-1], vectors_of(keys[::-1]))
    assert store.read(absent)[0].shape == (2, 0)
    store.touch(keys[:7])
    assert store.counts()[:3] == (7, 50, 50)


def test_keys_stay_those_of_stored_vectors():
    identity, one = Identity(b"x"), ["one text"]
    pooled = identity.with_settings(("mean",), -1, None)
    found = [
        *row_keys(identity, Texts([*one, "é"])),
        *row_keys(identity, Texts(one, ["another"])),
        *row_keys(pooled, Texts(one)),
    ]
    assert [key.hex() for key in found] == [
        "f21df9032e97641879fbe43b511dfd8e109b11c5",
        "4e20b977791732aaba6d95330f154ace43368c1b",
        "977659f6ecf9ffb94c1f32269a9792c05a12cf03",
        "9a5eab889c0796c302dd9e26e942b9f93217d816",
    ]


def test_a_file_of_the_documented_format_is_read(tmp_path):
    """Four tables of LMDB, of which "claims" is only in older files."""

    def with_checksum(key, content):
        return struct.pack("<I", zlib.crc32(key + content)) + content

    keys = keys_of(*range(30))
    file = lmdb.open(str(tmp_path / "rows.lmdb"), max_dbs=4)
    tables = {name: file.open_db(name) for name in (b"rows", b"used", b"claims", b"counts")}
    with file.begin(write=True) as transaction:
        for key, vector in zip(keys, vectors_of(keys), strict=True):
            row = with_checksum(key, vector.astype("<f4").tobytes())
            transaction.put(key, row, db=tables[b"rows"])
            transaction.put(key, struct.pack(">Q", 3), db=tables[b"used"])
        transaction.put(b"claimed", b"1", db=tables[b"claims"])
        size = with_checksum(b"sizex", struct.pack("<I", 400))
        transaction.put(b"sizex", size, db=tables[b"counts"])
        counts = struct.pack("<4Q", 5, 30, 3, 30 * (20 + 4 + 400))  # hits, misses, time, bytes
        transaction.put(b"counts", with_checksum(b"counts", counts), db=tables[b"counts"])
    file.close()
    store = store_in(tmp_path)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))
    assert store.counts() == (5, 30, 30, 30 * 424)
    assert store.check() == (30, [])


def test_one_store_for_every_name_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    stores = [store_in(name) for name in ("cache", tmp_path / "cache", "./x/../cache", "link")]
    assert not (tmp_path / "cache").exists()
    assert all(store is stores[0] for store in stores)


def test_the_least_recently_used_rows_are_evicted_first(tmp_path):
    store, size = store_in(tmp_path), 2**20
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


@pytest.mark.parametrize("width", [100, 1024])
def test_the_file_takes_at_most_about_two_and_a_half_times_the_maximum_size(tmp_path, width):
    store, size = store_in(tmp_path), 2**20
    n = size // (4 * width + 24)
    for start in range(0, 4 * n, n // 3):
        keys = keys_of(*range(start, start + n // 3))
        store.put(keys, np.zeros((len(keys), width), dtype="f4"), size)
        store.touch(keys[::5])
        assert (tmp_path / "rows.lmdb" / "data.mdb").stat().st_size <= 2.5 * size
    assert 0.8 * size < store.counts()[3] <= size


@forks
def test_the_file_may_outgrow_the_map_of_two_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_MAP", 2**16)
    keys = [keys_of(*range(start, start + 500)) for start in range(0, 1500, 500)]
    fill(store_in(tmp_path), 500)
    put = lambda: store_in(tmp_path).put(keys[1], vectors_of(keys[1]), LARGE)  # noqa: E731
    assert in_fork(put) == 0
    store_in(tmp_path).put(keys[2], vectors_of(keys[2]), LARGE)
    for part in keys:
        np.testing.assert_array_equal(store_in(tmp_path).read(part)[0], vectors_of(part))


# Folders and damage


def test_a_store_that_was_removed_is_created_again(tmp_path):
    store = store_in(tmp_path / "cache")
    keys = fill(store, 10)
    shutil.rmtree(tmp_path / "cache")
    assert not store.read(keys)[1].any()
    fill(store, 10)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))


@forks
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


def test_clear_leaves_other_files_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    store = store_in(tmp_path)
    keys = fill(store, 10)
    store.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "locks"}
    assert store.counts()[:3] == (0, 0, 0)
    assert not store.read(keys)[1].any()


def test_a_folder_that_cannot_be_used(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below", Path("/proc/cache")):
        with pytest.raises(Unusable, match=r"cannot be used \(.*choose a folder that can be writt"):
            store_in(folder).counts()


def change_file(folder, part, change):
    """Change the file of a store at the places of some bytes, without changing its size."""
    file = folder / "rows.lmdb" / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.find(part)
    while place >= 0:
        change(content, place)
        place = content.find(part, place + 1)
    with file.open("r+b") as opened:
        opened.write(content)


def flip(content, place):
    content[place + 7] ^= 1


def erase_page(content, place):
    start = place - place % 4096
    content[start : start + 4096] = bytes(4096)


def test_a_row_of_another_width_is_damage(tmp_path):
    store = store_in(tmp_path)
    keys = fill(store, 20)
    other = keys_of(20)
    store.put(other, vectors_of(other, 3), LARGE)
    with pytest.warns(UserWarning, match=r"was damaged .*numbers, not"):
        assert not store.read(keys + other)[1].any()


@pytest.mark.parametrize("change", [flip, erase_page])
@pytest.mark.parametrize("use", ["read", "check"])
def test_damage_is_found_and_the_file_is_replaced(tmp_path, change, use):
    store = store_in(tmp_path)
    keys = fill(store, 300)
    assert store.check() == (300, [])
    for i in (3, 5):
        change_file(tmp_path, vectors_of(keys[i : i + 1]).tobytes()[:40], change)
    find = {
        "check": lambda: bool(store.check()[1]),
        "read": lambda: not store.read(keys)[1].any(),
    }
    with pytest.warns(UserWarning, match=r"was damaged \(.*replaced by an empty one"):
        assert find[use]()
    assert store.check() == (0, [])
    fill(store, 20)
    np.testing.assert_array_equal(store.read(keys[:20])[0], vectors_of(keys[:20]))


def test_only_a_file_changed_by_others_is_verified_before_it_is_opened(tmp_path, monkeypatch):
    verified = []
    monkeypatch.setattr(module, "verify", lambda path: verified.append(path))
    store = store_in(tmp_path)
    fill(store, 20)
    verified.clear()
    for changed, times in [(False, 0), (True, 1), (False, 1)]:
        store.close()
        if changed:
            os.utime(tmp_path / "rows.lmdb" / "data.mdb", ns=(1, 1))
        assert store.counts()[2] == 20
        assert len(verified) == times


def test_an_error_other_than_damage_keeps_the_store(tmp_path, monkeypatch):
    store = store_in(tmp_path)
    keys = fill(store, 10)

    def fail(*args):
        raise lmdb.DiskError("mdb_get: something else")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_content", fail)
        with pytest.raises(Unusable, match="mdb_get: something else"):
            store.read(keys)
    assert store.read(keys)[1].all()


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
    pages = {
        "zero": bytes(4096),
        "noise": chance.randbytes(4096),
        "swap": content[other : other + 4096],
    }
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


@forks
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)])
def test_damage_neither_gives_a_wrong_row_nor_ends_the_process(tmp_path, seeds):
    code = in_fork(check_damage, tmp_path, seeds)
    assert code == 0, f"seed {(tmp_path / 'seed').read_text()}: exit code {code}"

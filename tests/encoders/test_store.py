"""The store of the cache: its format, eviction and damage."""

import hashlib
import shutil
import struct
import zlib

import lmdb
import numpy as np
import pytest
from lmdb.verify import verify

from isoadapt.encoders._cache._store import store_in
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts

LARGE = 2**30


def keys_of(*numbers):
    return [hashlib.blake2b(b"%d" % number, digest_size=20).digest() for number in numbers]


def vectors_of(keys, width=100):
    """Compute vectors (n, width) from their keys, so that a wrong row is detected."""
    rows = [hashlib.shake_128(key).digest(width) for key in keys]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, width).astype("f4")


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
    found = [
        *row_keys(identity, Texts([*one, "é"])),
        *row_keys(identity, Texts(one, ["another"])),
        *row_keys(identity.with_settings(("mean",), -1, None), Texts(one)),
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
        counts = struct.pack("<4Q", 5, 30, 3, 30 * (20 + 4 + 400))  # hits, misses, time, bytes
        transaction.put(b"counts", with_checksum(b"counts", counts), db=tables[b"counts"])
    file.close()
    store = store_in(tmp_path)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))
    assert store.counts() == (5, 30, 30, 30 * 424)
    assert store.check() == (30, [])


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
        assert (tmp_path / "rows.lmdb" / "data.mdb").stat().st_size <= 2.5 * size
        assert len(later) < 1024, "newer rows were evicted in place of the first ones"
    assert store.read(first[:100])[1].all()
    vectors, found = store.read(later)
    assert found.all()
    np.testing.assert_array_equal(vectors, vectors_of(later, 250))
    assert verify(str(tmp_path / "rows.lmdb")) == []


# Folders and damage


def test_clear_leaves_other_files_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    store = store_in(tmp_path)
    keys = fill(store, 10)
    store.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "locks"}
    assert store.counts()[:3] == (0, 0, 0)
    assert not store.read(keys)[1].any()
    shutil.rmtree(tmp_path)  # as another program may do
    assert not store.read(keys)[1].any()
    fill(store, 10)
    np.testing.assert_array_equal(store.read(keys)[0], vectors_of(keys))


def flip_bits(folder, part):
    """Change the file of a store at the places of some bytes, without changing its size."""
    file = folder / "rows.lmdb" / "data.mdb"
    content = bytearray(file.read_bytes())
    place = content.find(part)
    while place >= 0:
        content[place + 7] ^= 1
        place = content.find(part, place + 1)
    with file.open("r+b") as opened:
        opened.write(content)


@pytest.mark.parametrize("use", ["read", "check"])
def test_damage_is_found_and_the_file_is_replaced(tmp_path, use):
    store = store_in(tmp_path)
    keys = fill(store, 300)
    assert store.check() == (300, [])
    flip_bits(tmp_path, vectors_of(keys[3:4]).tobytes()[:40])
    with pytest.warns(UserWarning, match="damaged"):
        assert store.check()[1] if use == "check" else not store.read(keys)[1].any()
    assert store.check() == (0, [])
    fill(store, 20)
    np.testing.assert_array_equal(store.read(keys[:20])[0], vectors_of(keys[:20]))

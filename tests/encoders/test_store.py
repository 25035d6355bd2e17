"""The file of the cache: its rows, eviction and damage."""

import hashlib
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from isoadapt import EmbeddingCache
from isoadapt.encoders import _cache as module
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts

FILE = "vectors-001.sqlite"


def keys_of(*numbers):
    return [hashlib.blake2b(b"%d" % number, digest_size=20).digest() for number in numbers]


def vectors_of(keys, width=100):
    """Compute vectors (n, width) from their keys, so that a wrong row is detected."""
    rows = [hashlib.shake_128(key).digest(width) for key in keys]
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, width).astype("f4")


def put(cache, *numbers, width=100):
    keys = keys_of(*numbers)
    cache._put("owner", dict(zip(keys, vectors_of(keys, width), strict=True)))
    return keys


def has(cache, keys, width=100):
    """Return whether all rows are found; those that are found must be right."""
    found = cache._read(keys)
    if found:
        np.testing.assert_array_equal([*found.values()], vectors_of(found, width))
    return found.keys() == set(keys)


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


def test_claims_exclude_other_owners_until_they_expire(tmp_path, monkeypatch):
    cache, keys = EmbeddingCache(tmp_path), keys_of(*range(6))
    assert cache._claim("one", keys[:4]) == {*keys[:4]}
    assert cache._claim("two", keys) == {*keys[4:]}
    assert cache._claim("one", keys[:2]) == {*keys[:2]}  # the claims of its last batch end
    assert cache._claim("two", keys) == {*keys[2:]}
    monkeypatch.setattr(module, "_CLAIM_SECONDS", 0)
    assert cache._claim("three", keys) == {*keys}


def test_the_least_recently_used_rows_are_evicted_first(tmp_path, monkeypatch):
    cache, size = EmbeddingCache(tmp_path, 2**20), 2**20
    first = put(cache, *range(300), width=250)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_MARK_SECONDS", 0)
        assert has(cache, first[:100], 250)
    later = []
    while has(cache, first[100:], 250):
        numbers = range(300 + len(later), 320 + len(later))
        later += put(cache, *numbers, width=250)
        assert cache.stats().size <= size
        assert (tmp_path / FILE).stat().st_size <= 1.2 * size
        assert len(later) < 1024, "newer rows were evicted in place of the first ones"
    assert len(later) > 500
    assert has(cache, first[:100], 250)
    assert has(cache, later, 250)


# Folders and damage


def test_clear_leaves_other_files_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    cache = EmbeddingCache(tmp_path)
    keys = put(cache, *range(10000))
    cache.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "lock", FILE}
    assert (tmp_path / FILE).stat().st_size < 2**18
    assert cache.stats()[:3] == (0, 0, 0)
    assert cache._read(keys) == {}
    shutil.rmtree(tmp_path)  # as another program may do
    assert cache._read(keys) == {}
    assert has(cache, put(cache, *range(10)))


def flip_bits(folder, part):
    """Change the file of a cache at the places of some bytes, without changing its size."""
    file = folder / FILE
    content = bytearray(file.read_bytes())
    place = content.find(part)
    while place >= 0:
        content[place + 7] ^= 1
        place = content.find(part, place + 1)
    file.write_bytes(content)


def test_damaged_vectors_are_encoded_again(tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = put(cache, *range(300))
    flip_bits(tmp_path, vectors_of(keys[3:4]).tobytes()[:40])
    with pytest.warns(UserWarning, match="1 vectors .* were damaged"):
        assert not has(cache, keys)
    assert cache.stats().rows == 299
    put(cache, 3)
    assert has(cache, keys)


def test_a_vector_of_another_key_is_never_returned(tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = put(cache, *range(5))
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("UPDATE rows SET content = (SELECT max(content) FROM rows)")
    with pytest.warns(UserWarning, match="4 vectors .* were damaged"):
        assert len(cache._read(keys)) == 1


def test_a_damaged_file_is_kept_beside_a_new_one(tmp_path):
    cache = EmbeddingCache(tmp_path)
    keys = put(cache, *range(300))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[16384:] = bytes(len(content) - 16384)
    (tmp_path / FILE).write_bytes(content)
    with pytest.warns(UserWarning, match="stored in 'vectors-002.sqlite'; you may delete"):
        assert not cache._read(keys)
    assert cache.stats().rows == 0
    assert has(cache, put(cache, *range(20)))
    assert (tmp_path / FILE).read_bytes() == content

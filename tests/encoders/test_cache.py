"""EmbeddingCache as used by encoders: each text is encoded once, and vectors are never mixed up."""

import os
import shutil
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from isoadapt import EmbeddingCache, TransformerEncoder
from isoadapt.encoders import _transformer, release
from isoadapt.encoders._cache import Request
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts
from tests.encoders.changes import change_weights, negate
from tests.tiny_models import TEXTS, save_model

UNIQUE = len(set(TEXTS))
SETTINGS = [{}, *({"pooling": mode} for mode in ("mean", "max", "cls", "readout"))]
SETTINGS += [{"pooling": "cls", "layer": 1}, {"pooling": [("cls", 1), ("mean", 0)]}]
SETTINGS += [{"max_length": 8}, {"dtype": "bfloat16"}]


@pytest.fixture
def cache(tmp_path):
    return EmbeddingCache(tmp_path / "cache")


def counts(cache):
    return cache.stats()[:3]


def test_each_text_is_encoded_once_and_returned_exactly(checkpoint, cache, loads):
    encoder = TransformerEncoder(checkpoint, cache=cache, verbose=1)
    first = encoder.fit(TEXTS).transform(TEXTS)
    assert counts(cache) == (0, UNIQUE, UNIQUE)
    np.testing.assert_allclose(first, TransformerEncoder(checkpoint).transform(TEXTS), atol=1e-6)
    second = encoder.transform(TEXTS[::-1])
    assert second.dtype == np.float32
    np.testing.assert_array_equal(second, first[::-1])
    encoder.transform(["the cat", *TEXTS])
    assert counts(cache) == (2 * UNIQUE, UNIQUE + 1, UNIQUE + 1)
    release()
    encoder.transform(TEXTS)
    assert len(loads) == 1


def test_a_cache_that_is_too_small_is_named_before_the_model_is_loaded(checkpoint, tmp_path, loads):
    small = EmbeddingCache(tmp_path / "c", 2**20 - 1)
    with pytest.raises(ValueError, match="max_size == 1048575, must be >= 1048576"):
        TransformerEncoder(checkpoint, cache=small).transform(TEXTS)
    assert loads == []


# Settings and changes that affect vectors


def test_settings_that_affect_vectors_have_separate_rows(checkpoint, cache):
    for options in SETTINGS:
        alone = TransformerEncoder(checkpoint, **options).transform(TEXTS)
        through = TransformerEncoder(checkpoint, cache=cache, **options).transform(TEXTS)
        np.testing.assert_allclose(through, alone, atol=1e-6)
    n = len(SETTINGS) * UNIQUE
    assert counts(cache) == (0, n, n)


def test_settings_that_do_not_matter_share_rows(checkpoint, tmp_path, cache):
    same = {"dtype": "float32", "batch_tokens": 7, "device": "cpu", "layer": np.int64(-1)}
    for model, options in [
        (checkpoint, same | {"cache": str(cache.folder)}),
        (str(checkpoint), {}),
        (shutil.copytree(checkpoint, tmp_path / "copy"), {"verbose": 1}),
    ]:
        TransformerEncoder(model, **{"cache": cache} | options).transform(TEXTS)
    assert counts(cache) == (2 * UNIQUE, UNIQUE, UNIQUE)


@given(
    st.sets(st.text(max_size=4), max_size=4),
    st.sets(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=4),
    st.binary(max_size=3),
)
@example({"", "ab"}, {("", ""), ("a", "b"), ("ab", ""), ("", "ab")}, b"")
def test_different_inputs_never_share_a_row(singles, pairs, digest):
    identity = Identity(digest)
    identities = identity, Identity(digest + b"x"), identity.with_settings(1)
    inputs = [Texts(sorted(singles))]
    if pairs:
        inputs.append(Texts(*map(list, zip(*sorted(pairs), strict=True))))
    keys = [key for each in identities for texts in inputs for key in row_keys(each, texts)]
    assert len(set(keys)) == len(keys) == 3 * (len(singles) + len(pairs))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [("model.safetensors", b"", b""), ("tokenizer.json", b'"cat": 6', b'"dog": 6')],
)
def test_a_changed_checkpoint_is_never_answered_from_old_rows(tmp_path, cache, file, old, new):
    folder = save_model(tmp_path / "model")
    encoder = TransformerEncoder(folder, cache=cache)
    before = encoder.transform(TEXTS)
    path = folder / file
    stat, content = path.stat(), path.read_bytes()
    if old:
        path.write_bytes(content.replace(b'"dog": 7', b'"cat": 7').replace(old, new))
    else:
        change_weights(folder, negate("pooler"))
    assert path.read_bytes() != content
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    after = encoder.transform(TEXTS)
    np.testing.assert_allclose(after, TransformerEncoder(folder).transform(TEXTS), atol=1e-6)
    assert np.abs(after - before).max() > 1e-3
    path.write_bytes(content)
    np.testing.assert_array_equal(encoder.transform(TEXTS), before)
    assert counts(cache) == (UNIQUE, 2 * UNIQUE, 2 * UNIQUE)


def test_a_checkpoint_replaced_while_it_is_loaded_leaves_no_row(tmp_path, cache, monkeypatch):
    folder = save_model(tmp_path / "model")
    load = _transformer.load_backbone

    def replace_and_load(*args):
        change_weights(folder, negate("pooler"))
        return load(*args)

    encoder = TransformerEncoder(folder, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(_transformer, "load_backbone", replace_and_load)
        vectors = encoder.transform(TEXTS)
    assert counts(cache) == (0, 0, 0)
    np.testing.assert_allclose(vectors, TransformerEncoder(folder).transform(TEXTS), atol=1e-6)
    np.testing.assert_allclose(encoder.transform(TEXTS), vectors, atol=1e-6)


# Requests of several threads, and a disk that fails

MANY = Texts([f"text {i} {'is not short ' * 3}" for i in range(4000)])


def vectors_of(texts):
    """Compute vectors from texts, so that a wrong one is detected."""
    numbers = [[int(text.split()[1]), len(text)] for text in texts.first]
    return np.array(numbers, dtype=np.float32)


def embed(cache, texts, encode=vectors_of):
    identity = Identity(b"stand-in")
    return Request(cache, texts, lambda: identity, lambda: encode, lambda rows: None).vectors()


@pytest.mark.parametrize("start", [0, 2000])
def test_two_threads_encode_at_once_and_no_text_twice(cache, start):
    """The same texts or others: both encode their first batches at the same time."""
    both, encoded = threading.Barrier(2), []

    def call(start):
        batches = []

        def encode(texts):
            batches.append(len(texts))
            if len(batches) == 1:
                both.wait(60)  # raises an error if the other thread waits for this one
            encoded.extend(texts.first)
            return vectors_of(texts)

        texts = MANY.take(range(start, start + 2000))
        np.testing.assert_array_equal(embed(cache, texts, encode), vectors_of(texts))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(call, (0, start)))
    assert len(encoded) == len(set(encoded)) == 2000 + start
    assert counts(cache) == (2000 - start, 2000 + start, 2000 + start)


def goes_on(cache, reason):
    """Encode texts without a cache, which warns once."""
    texts = MANY.take(range(20))
    with pytest.warns(UserWarning, match=f"continues without the cache .*{reason}") as told:
        found = embed(cache, texts)
    np.testing.assert_array_equal(found, vectors_of(texts))
    assert len(told) == 1


@pytest.mark.parametrize("step", ["_read", "_claim", "_put"])
def test_encoding_goes_on_without_a_cache_that_fails(cache, monkeypatch, step):
    embed(cache, MANY.take(range(5)))

    def fail(*args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(EmbeddingCache, step, fail)
    goes_on(cache, "disk is full")


UNUSABLE = {"file": "file' is a file", "file/cache": "file' is a file", "folder": "unable to open"}
UNUSABLE |= {"loop": "loop' cannot be written to", "~no-such-user/cache": "home"}


@pytest.mark.parametrize("place", UNUSABLE)
def test_encoding_goes_on_without_a_cache_that_cannot_be_made(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder/vectors-001.sqlite").mkdir(parents=True)
    goes_on(EmbeddingCache(place), UNUSABLE[place])
    assert sorted(os.listdir()) == ["file", "folder", "loop"]


def test_encoding_goes_on_with_a_cache_on_a_read_only_disk(cache, monkeypatch):
    embed(cache, MANY.take(range(5)))
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)  # which binds root too
    goes_on(cache, "protected")


def test_encoding_goes_on_while_a_database_is_locked(cache, monkeypatch):
    embed(cache, MANY.take(range(5)))
    connect = sqlite3.connect
    monkeypatch.setattr("sqlite3.connect", lambda f, **how: connect(f, **how | {"timeout": 0}))
    with closing(connect(cache._file())) as other:
        other.execute("BEGIN EXCLUSIVE")
        goes_on(cache, "is locked")


@pytest.mark.parametrize("place", ["link", "link/below"])
def test_a_link_whose_target_is_gone_leads_to_a_new_folder(tmp_path, place):
    (tmp_path / "link").symlink_to(tmp_path / "scratch" / "cache")
    cache, texts = EmbeddingCache(tmp_path / place), MANY.take(range(20))
    assert counts(cache) == (0, 0, 0)
    np.testing.assert_array_equal(embed(cache, texts), vectors_of(texts))
    assert counts(cache) == (0, 20, 20)


def test_claims_from_before_the_clock_was_set_back_do_not_count(checkpoint, tmp_path):
    encoder = TransformerEncoder(checkpoint, cache=tmp_path)
    expected = encoder.transform(TEXTS)
    with closing(sqlite3.connect(tmp_path / "vectors-001.sqlite")) as database, database:
        later = "INSERT INTO claims SELECT key, 'gone', ? FROM rows"
        database.execute(later, (time.time() + 3600,))
        database.execute("DELETE FROM rows")
    np.testing.assert_array_equal(encoder.transform(TEXTS), expected)

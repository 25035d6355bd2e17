"""EmbeddingCache as used by encoders: each text is encoded once, and vectors are never mixed up."""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from isoadapt import EmbeddingCache, TransformerEncoder, Whitening
from isoadapt.encoders import _models
from isoadapt.encoders._identity import Identity, row_keys
from isoadapt.encoders._texts import Texts
from tests.tiny_models import TEXTS, WORDS, make_model, save_model

UNIQUE = len(set(TEXTS))
MANY = [f"{a} {b} {c}" for a in WORDS[:6] for b in WORDS[6:12] for c in WORDS[12:]]


@pytest.fixture
def cache(tmp_path):
    return EmbeddingCache(tmp_path / "cache")


def counts(cache):
    return cache.stats()[:3]


def test_each_text_is_encoded_once_and_returned_exactly(checkpoint, cache, loads):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    first = encoder.fit(TEXTS).transform(TEXTS)
    assert counts(cache) == (0, UNIQUE, UNIQUE)
    np.testing.assert_allclose(first, TransformerEncoder(checkpoint).transform(TEXTS), atol=1e-6)
    second = encoder.transform(TEXTS[::-1])
    assert second.dtype == np.float32
    np.testing.assert_array_equal(second, first[::-1])
    encoder.transform(["the cat", *TEXTS])
    assert counts(cache) == (2 * UNIQUE, UNIQUE + 1, UNIQUE + 1)
    assert len(loads) == 1
    _models.release()
    encoder.transform(TEXTS)
    assert len(loads) == 1


def test_caches_are_equal_by_value(tmp_path, checkpoint):
    cache = EmbeddingCache(tmp_path / "never", max_size=2**21)
    assert clone(cache, safe=False) == cache
    encoder = clone(TransformerEncoder(checkpoint, cache=cache))
    assert encoder.get_params()["cache"] == cache
    assert pickle.loads(pickle.dumps(encoder)).cache == cache
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(("folder", "size"), [(3, 2**20), ("c", 2**20 - 1), ("c", "10GB")])
def test_parameters_out_of_range_are_named(checkpoint, tmp_path, monkeypatch, folder, size):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"The '(folder|max_size)' parameter of EmbeddingCache"):
        TransformerEncoder(checkpoint, cache=EmbeddingCache(folder, size)).transform(TEXTS)
    with pytest.raises(ValueError, match="The 'cache' parameter of TransformerEncoder"):
        TransformerEncoder(checkpoint, cache=3).transform(TEXTS)
    with pytest.raises(ValueError, match="cache=''"):
        TransformerEncoder(checkpoint, cache="").transform(TEXTS)


def test_a_folder_that_cannot_be_used_is_named_before_the_model_is_loaded(
    checkpoint, tmp_path, loads
):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file' cannot be used .* or cache=None"):
        TransformerEncoder(checkpoint, cache=tmp_path / "file").transform(TEXTS)
    assert loads == []


# Settings and changes that affect vectors


SETTINGS = [
    {},
    {"pooling": "mean"},
    {"pooling": "max"},
    {"pooling": "cls"},
    {"pooling": "cls", "layer": 1},
    {"max_length": 8},
    {"dtype": "bfloat16"},
]


def test_settings_that_affect_vectors_have_separate_rows(checkpoint, cache):
    for options in SETTINGS:
        alone = TransformerEncoder(checkpoint, **options).transform(TEXTS)
        for _ in range(2):
            through = TransformerEncoder(checkpoint, cache=cache, **options).transform(TEXTS)
            np.testing.assert_allclose(through, alone, atol=1e-6)
    n = len(SETTINGS)
    assert counts(cache) == (n * UNIQUE, n * UNIQUE, n * UNIQUE)


def test_settings_that_do_not_matter_share_rows(checkpoint, tmp_path, cache):
    shutil.copytree(checkpoint, tmp_path / "copy")
    same = {"dtype": "float32", "batch_tokens": 7, "device": "cpu", "layer": np.int64(-1)}
    for model, options in [
        (checkpoint, same | {"cache": str(cache.folder)}),
        (str(checkpoint), {"pooling": "head_input"}),
        (tmp_path / "copy", {"verbose": 1}),
    ]:
        TransformerEncoder(model, **{"cache": cache} | options).transform(TEXTS)
    assert counts(cache) == (2 * UNIQUE, UNIQUE, UNIQUE)


def test_a_sentence_transformers_pooling_is_part_of_the_key(bare_checkpoint, tmp_path, cache):
    folder = tmp_path / "st"
    shutil.copytree(bare_checkpoint, folder)
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": kind + "Transformer"}, {"path": "p", "type": kind + "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "p").mkdir()
    for mode in ("cls", "max"):
        config = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_max_tokens": mode == "max"}
        (folder / "p" / "config.json").write_text(json.dumps(config))
        through = TransformerEncoder(folder, cache=cache).transform(TEXTS)
        expected = TransformerEncoder(bare_checkpoint, pooling=mode).transform(TEXTS)
        np.testing.assert_allclose(through, expected, atol=1e-6)


text = st.text(max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.sets(text, max_size=8), st.sets(st.tuples(text, text), max_size=8), st.binary(max_size=3))
def test_different_inputs_never_share_a_row(singles, pairs, digest):
    identity = Identity(digest)
    identities = identity, Identity(digest + b"x"), identity.with_settings(1)
    inputs = [Texts(sorted(singles))]
    if pairs:
        inputs.append(Texts(*map(list, zip(*sorted(pairs), strict=True))))
    keys = [key for each in identities for texts in inputs for key in row_keys(each, texts)]
    assert len(set(keys)) == len(keys) == 3 * (len(singles) + len(pairs))


def save_other_weights(folder):
    model = make_model()
    with torch.no_grad():
        model.bert.pooler.dense.weight.neg_()
    model.save_pretrained(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_checkpoint_is_never_answered_from_old_rows(tmp_path, cache, file):
    folder = save_model(tmp_path / "model")
    encoder = TransformerEncoder(folder, cache=cache)
    before = encoder.transform(TEXTS)
    path = folder / file
    stat, content = path.stat(), path.read_bytes()
    if file == "model.safetensors":
        save_other_weights(folder)
    elif file == "tokenizer.json":
        path.write_bytes(
            content.replace(b'"cat": 6', b'"cat": 7').replace(b'"dog": 7', b'"dog": 6')
        )
    else:
        path.write_bytes(content.replace(b'"hidden_act": "gelu"', b'"hidden_act": "relu"'))
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
    load = _models._load

    def replace_and_load(*args):
        save_other_weights(folder)
        return load(*args)

    encoder = TransformerEncoder(folder, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(_models, "_load", replace_and_load)
        vectors = encoder.transform(TEXTS)
    assert counts(cache) == (0, 0, 0)
    np.testing.assert_allclose(vectors, TransformerEncoder(folder).transform(TEXTS), atol=1e-6)
    np.testing.assert_allclose(encoder.transform(TEXTS), vectors, atol=1e-6)


def test_a_live_model_has_no_cache(live, cache):
    with pytest.raises(
        ValueError, match=r"cache and backend='onnx' need .* save_pretrained and pass model=folder"
    ):
        TransformerEncoder(live, cache=cache).transform(TEXTS)


# Threads and processes


@pytest.mark.slow
def test_a_grid_search_in_two_processes_encodes_each_text_once(checkpoint, cache):
    y = np.arange(len(MANY)) % 2
    pipeline = make_pipeline(
        TransformerEncoder(checkpoint, cache=cache), Whitening(), LogisticRegression(max_iter=50)
    )
    grid = {"whitening__strength": [0.5, 1.0], "logisticregression__C": [0.1, 1.0]}
    GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(MANY, y)
    assert cache.stats()[1:3] == (len(MANY), len(MANY))


def test_progress_counts_every_text_once(checkpoint, cache, monkeypatch):
    encoder = TransformerEncoder(checkpoint, cache=cache, verbose=1)
    encoder.transform(TEXTS[:3])
    reported = []
    embed = EmbeddingCache._embed

    def listen(self, texts, identify, encode, progress):
        return embed(self, texts, identify, encode, lambda n: reported.append(n) or progress(n))

    monkeypatch.setattr(EmbeddingCache, "_embed", listen)
    encoder.transform(TEXTS)
    assert reported == [3]

"""EmbeddingCache as used by encoders: each text is encoded once, and vectors are never mixed up."""

import copy
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import joblib
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
from isoadapt.encoders._cache import _embedding_cache as _cache, _keys as _identity, _request
from isoadapt.encoders._cache._environment import Unusable
from isoadapt.encoders._cache._keys import Identity, row_keys
from isoadapt.encoders._texts import Texts
from tests.tiny_models import PAIRS, TEXTS, WORDS, make_model, make_tokenizer, save_model

UNIQUE = len(set(TEXTS))
MANY = [f"{a} {b} {c}" for a in WORDS[:6] for b in WORDS[6:12] for c in WORDS[12:]]


@pytest.fixture
def cache(tmp_path):
    return EmbeddingCache(tmp_path / "cache")


@pytest.fixture
def loads(monkeypatch):
    """The folders loaded from, one entry for each load."""
    seen = []
    load = _models._load
    monkeypatch.setattr(_models, "_load", lambda *args: seen.append(args[0]) or load(*args))
    return seen


def counts(cache):
    return cache.stats()[:3]


def test_each_text_is_encoded_once_and_returned_exactly(checkpoint, cache, loads):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    first = encoder.transform(TEXTS)
    assert counts(cache) == (0, UNIQUE, UNIQUE)
    np.testing.assert_allclose(first, TransformerEncoder(checkpoint).transform(TEXTS), atol=1e-6)
    second = encoder.transform(TEXTS[::-1])
    assert second.dtype == np.float32
    np.testing.assert_array_equal(second, first[::-1])
    encoder.transform(["the cat", *TEXTS])
    assert counts(cache) == (2 * UNIQUE, UNIQUE + 1, UNIQUE + 1)
    assert len(loads) == 1


@pytest.mark.parametrize("kind", [str, "path", EmbeddingCache])
def test_a_folder_is_a_cache(checkpoint, tmp_path, kind):
    given_as = tmp_path if kind == "path" else kind(tmp_path)
    TransformerEncoder(checkpoint, cache=given_as).fit(TEXTS).transform(TEXTS)
    assert counts(EmbeddingCache(tmp_path)) == (0, UNIQUE, UNIQUE)


def test_nothing_is_loaded_where_everything_is_stored(checkpoint, cache, loads):
    TransformerEncoder(checkpoint, cache=cache).transform(PAIRS)
    _models.release()
    loads.clear()
    TransformerEncoder(checkpoint, cache=cache).transform(PAIRS)
    assert loads == []


def test_caches_are_equal_by_value(tmp_path, checkpoint):
    cache = EmbeddingCache(tmp_path / "never", max_size=2**21)
    for other in (
        pickle.loads(pickle.dumps(cache)),
        copy.deepcopy(cache),
        clone(cache, safe=False),
    ):
        assert other == cache
        assert repr(other) == repr(cache)
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
    for model, options in [
        (checkpoint, {}),
        (str(checkpoint), {"pooling": "head_input"}),
        (
            checkpoint,
            {"dtype": "float32", "batch_tokens": 7, "device": "cpu", "layer": np.int64(-1)},
        ),
        (tmp_path / "copy", {"verbose": 1}),
    ]:
        TransformerEncoder(model, cache=cache, **options).transform(TEXTS)
    assert counts(cache) == (3 * UNIQUE, UNIQUE, UNIQUE)


def test_a_sentence_transformers_pooling_is_part_of_the_key(bare_checkpoint, tmp_path, cache):
    folder = tmp_path / "st"
    shutil.copytree(bare_checkpoint, folder)
    kind = "sentence_transformers.models."
    modules = [{"path": "", "type": kind + "Transformer"}, {"path": "p", "type": kind + "Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "p").mkdir()
    for mode in ("cls", "max"):
        (folder / "p" / "config.json").write_text(
            json.dumps(
                {f"pooling_mode_{mode}_token": True, "pooling_mode_max_tokens": mode == "max"}
            )
        )
        through = TransformerEncoder(folder, cache=cache).transform(TEXTS)
        expected = TransformerEncoder(bare_checkpoint, pooling=mode).transform(TEXTS)
        np.testing.assert_allclose(through, expected, atol=1e-6)


text = st.text(alphabet=st.characters(), max_size=4)


@settings(max_examples=200, deadline=None)
@given(st.sets(text, max_size=8), st.sets(st.tuples(text, text), max_size=8), st.binary(max_size=3))
def test_different_inputs_never_share_a_row(singles, pairs, digest):
    keys = [
        key
        for identity in (
            Identity(digest),
            Identity(digest + b"x"),
            Identity(digest).with_settings(1),
        )
        for texts in (
            Texts(sorted(singles)),
            Texts(*map(list, zip(*sorted(pairs), strict=True))) if pairs else Texts([]),
        )
        for key in row_keys(identity, texts)
    ]
    assert len(set(keys)) == len(keys) == 3 * (len(singles) + len(pairs))


def test_a_pair_is_not_a_text_nor_another_pair(checkpoint, cache):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    pairs = [("a cat", ""), ("a", " cat"), ("", "a cat")]
    found = [encoder.transform(["a cat"]), *(encoder.transform([pair]) for pair in pairs)]
    assert counts(cache) == (0, 4, 4)
    plain = TransformerEncoder(checkpoint)
    expected = [plain.transform(["a cat"]), *(plain.transform([pair]) for pair in pairs)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_changed_checkpoint_is_never_answered_from_old_rows(tmp_path, cache, file):
    folder = save_model(tmp_path / "model")
    encoder = TransformerEncoder(folder, cache=cache)
    before = encoder.transform(TEXTS)
    path = folder / file
    stat, content = path.stat(), path.read_bytes()
    if file == "model.safetensors":
        model = make_model()
        with torch.no_grad():
            model.bert.pooler.dense.weight.neg_()
        model.save_pretrained(folder)
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
        model = make_model()
        with torch.no_grad():
            model.bert.pooler.dense.weight.neg_()
        model.save_pretrained(folder)
        return load(*args)

    encoder = TransformerEncoder(folder, cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(_models, "_load", replace_and_load)
        vectors = encoder.transform(TEXTS)
    assert counts(cache) == (0, 0, 0)
    np.testing.assert_allclose(vectors, TransformerEncoder(folder).transform(TEXTS), atol=1e-6)
    np.testing.assert_allclose(encoder.transform(TEXTS), vectors, atol=1e-6)


def test_a_live_model_is_known_by_its_weights_and_its_tokenizer(live, cache):
    model, tokenizer = live
    encoder = TransformerEncoder(live, cache=cache)
    before = encoder.transform(TEXTS)
    np.testing.assert_array_equal(encoder.transform(TEXTS), before)
    assert counts(cache) == (UNIQUE, UNIQUE, UNIQUE)
    model.train()
    loss = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.square().sum()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = encoder.transform(TEXTS)
    np.testing.assert_allclose(after, TransformerEncoder(live).transform(TEXTS), atol=1e-6)
    assert np.abs(after - before).max() > 1e-3
    tokenizer.add_tokens(["very"], special_tokens=True)
    tokenizer.padding_side = "left"
    encoder.transform(TEXTS)
    assert counts(cache) == (UNIQUE, 3 * UNIQUE, 3 * UNIQUE)
    assert model.training


def set_truncation_side(tokenizer):
    tokenizer.truncation_side = "left"


def set_padding_side(tokenizer):
    tokenizer.padding_side = "left"


def set_model_max_length(tokenizer):
    tokenizer.model_max_length = 5


def set_split_special_tokens(tokenizer):
    tokenizer.split_special_tokens = True


def set_model_input_names(tokenizer):
    tokenizer.model_input_names = ["input_ids", "attention_mask"]


def add_a_token(tokenizer):
    tokenizer.add_tokens(["on it"])


def change_the_special_tokens_around_a_text(tokenizer):
    tokenizer.backend_tokenizer.post_processor = None


def lower_every_text(tokenizer):
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


CHANGES = [
    set_truncation_side,
    set_padding_side,
    set_model_max_length,
    set_split_special_tokens,
    set_model_input_names,
    add_a_token,
    change_the_special_tokens_around_a_text,
    lower_every_text,
]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_a_live_tokenizer_has_separate_rows(live, cache, change):
    texts = ["the cat sat on it and [SEP] then", "THE cat"]
    encoder = TransformerEncoder(live, pooling="mean", max_length=6, cache=cache)
    encoder.transform(texts)
    change(live[1])
    expected = TransformerEncoder(live, pooling="mean", max_length=6).transform(texts)
    np.testing.assert_allclose(encoder.transform(texts), expected, atol=1e-6)
    assert counts(cache) == (0, 4, 4)
    encoder.transform(texts)
    assert counts(cache) == (2, 4, 4)


@pytest.mark.parametrize("kind", ["ByT5Tokenizer", "CTRLTokenizer"])
def test_tokenizers_in_python_are_known_by_their_attributes(kind, tmp_path, cache):
    import transformers

    model = make_model(vocab_size=400, max_position_embeddings=200, pad_token_id=0)
    (tmp_path / "vocab.json").write_text(json.dumps({"<unk>": 0, "cat": 1, "the": 2, "c@@": 3}))
    (tmp_path / "merges.txt").write_text("#version\nt h\n")
    files = [tmp_path / "vocab.json", tmp_path / "merges.txt"] if kind == "CTRLTokenizer" else []
    tokenizer = getattr(transformers, kind)(*map(str, files))
    tokenizer.pad_token = tokenizer.unk_token if files else tokenizer.pad_token
    encoder = TransformerEncoder((model, tokenizer), pooling="mean", cache=cache)
    for _ in range(2):
        encoder.transform(TEXTS)  # the tokenizer's own cache of words is ignored
    assert counts(cache) == (UNIQUE, UNIQUE, UNIQUE)
    tokenizer.own_flag = True
    encoder.transform(TEXTS)
    assert counts(cache) == (UNIQUE, 2 * UNIQUE, 2 * UNIQUE)


def test_where_a_live_tokenizer_came_from_does_not_matter(bare_checkpoint, tmp_path, cache):
    from transformers import AutoModel, AutoTokenizer

    shutil.copytree(bare_checkpoint, tmp_path / "copy")
    for folder in (bare_checkpoint, tmp_path / "copy"):
        model = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
        TransformerEncoder(model, cache=cache).transform(TEXTS)
    assert counts(cache) == (UNIQUE, UNIQUE, UNIQUE)


def test_vectors_of_another_version_of_the_code_are_not_used(checkpoint, cache, monkeypatch):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    encoder.transform(TEXTS)
    monkeypatch.setattr(_identity, "VECTORS_VERSION", _identity.VECTORS_VERSION + 1)
    encoder.transform(TEXTS)
    assert counts(cache) == (0, 2 * UNIQUE, 2 * UNIQUE)


def test_equal_live_models_share_rows(cache):
    for _ in range(2):
        model = make_model(), make_tokenizer()
        model[1](["the cat"], truncation=True, max_length=3, padding=True)
        TransformerEncoder(model, cache=cache).transform(TEXTS)
    assert counts(cache) == (UNIQUE, UNIQUE, UNIQUE)


def test_weights_changed_while_encoding_leave_no_row(live, cache, monkeypatch):
    encoder = TransformerEncoder(live, cache=cache)
    encode = TransformerEncoder._encode

    def encode_and_train(*args, **options):
        vectors = encode(*args, **options)
        with torch.no_grad():
            live[0].bert.pooler.dense.bias.add_(1)
        return vectors

    with monkeypatch.context() as patch:
        patch.setattr(TransformerEncoder, "_encode", encode_and_train)
        encoder.transform(TEXTS)
    assert counts(cache) == (0, 0, 0)


# Threads and processes


@pytest.mark.parametrize("kind", ["stored", "live"])
def test_threads_that_want_the_same_texts_encode_each_once(
    checkpoint, live, cache, monkeypatch, kind
):
    model = checkpoint if kind == "stored" else live
    monkeypatch.setattr(_request, "_CHARACTERS", 100)
    start = threading.Barrier(4)

    def embed(seed):
        texts = np.random.default_rng(seed).permutation(MANY)
        start.wait()
        found = TransformerEncoder(model, cache=EmbeddingCache(cache.folder)).transform(texts)
        return found[np.argsort(texts)]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(embed, range(4)))
    for vectors in found[1:]:
        np.testing.assert_array_equal(vectors, found[0])
    assert counts(cache) == (3 * len(MANY), len(MANY), len(MANY))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_two_processes_at_once_end_with_one_copy(checkpoint, cache):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        work = pool.map_async(encoder.transform, [MANY, MANY[::-1]], chunksize=1)
        first, second = work.get(timeout=60)
    np.testing.assert_array_equal(first, second[::-1])
    assert counts(cache) == (len(MANY), len(MANY), len(MANY))
    assert cache.verify() == (len(MANY), ())


@pytest.mark.slow
def test_a_grid_search_in_two_processes_encodes_each_text_once(checkpoint, cache, tmp_path):
    y = np.arange(len(MANY)) % 2
    pipeline = make_pipeline(
        TransformerEncoder(checkpoint, cache=cache), Whitening(), LogisticRegression(max_iter=50)
    )
    grid = {"whitening__strength": [0.5, 1.0], "logisticregression__C": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(MANY, y)
    hits, misses, rows, _ = cache.stats()
    assert (misses, rows) == (len(MANY), len(MANY))
    joblib.dump((search.best_estimator_, MANY), tmp_path / "best.joblib")
    code = (
        "import joblib, sys; from isoadapt.encoders import _models\n"
        "model, texts = joblib.load(sys.argv[1]); model.predict(texts)\n"
        "print(len(_models._STORE), *model[0].cache.stats()[:3], 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "best.joblib"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["0", str(hits + len(MANY)), str(misses), str(rows), "False"]


def test_claims_of_a_dead_process_are_released(checkpoint, cache, monkeypatch):
    encoder = TransformerEncoder(checkpoint, cache=cache)

    class Stop(BaseException):
        pass

    def stop(*args, **options):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(TransformerEncoder, "_encode", stop)
        with pytest.raises(Stop):
            encoder.transform(TEXTS)
    store = cache._store()
    assert len(store.owners()) == 1
    store.claim([key * 10 for key in (b"ab", b"cd")], (77).to_bytes(4, "big"), 2)
    assert encoder.transform(TEXTS).shape == (len(TEXTS), 16)
    assert store.owners() == {(77).to_bytes(4, "big")}
    assert counts(cache) == (0, UNIQUE, UNIQUE)


# Limits and failures


def test_more_texts_than_fit_into_the_cache(cache, monkeypatch):
    small = EmbeddingCache(cache.folder, 2**20)
    texts = Texts([str(i) for i in range(2000)])
    rows = np.random.default_rng(0).normal(size=(2000, 300)).astype(np.float32)

    def embed(texts):
        places = [int(text) for text in texts.first]
        encoded.extend(places)
        return rows[places]

    for _ in range(2):
        encoded = []
        found = small._embed(texts, lambda: Identity(b""), embed, lambda rows: None)
        np.testing.assert_array_equal(found, rows)
        assert len(set(encoded)) == len(encoded) > 1000
    assert small.stats().size <= 2**20


def test_a_disk_failure_does_not_lose_vectors(checkpoint, cache, monkeypatch):
    def fail(*args):
        raise Unusable("No space left on device")

    monkeypatch.setattr("isoadapt.encoders._cache._store.Store.put", fail)
    encoder = TransformerEncoder(checkpoint, cache=cache)
    with pytest.warns(UserWarning, match=r"continues without the cache: No space left"):
        found = encoder.transform(TEXTS)
    np.testing.assert_allclose(found, TransformerEncoder(checkpoint).transform(TEXTS), atol=1e-6)


def test_a_damaged_store_is_set_aside_and_filled_again(checkpoint, cache):
    encoder = TransformerEncoder(checkpoint, cache=cache)
    expected = encoder.transform(TEXTS)
    file = cache.folder / "rows.lmdb" / "data.mdb"
    with file.open("r+b") as opened:
        opened.seek(3 * 4096)
        opened.write(os.urandom(file.stat().st_size - 3 * 4096))
    with pytest.warns(UserWarning, match=rf"cache in '{cache.folder}' was damaged"):
        np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-6)
    assert (cache.folder / "rows.damaged").is_dir()
    assert counts(cache) == (0, UNIQUE, UNIQUE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.transform(TEXTS)
    cache.clear()
    assert not (cache.folder / "rows.damaged").exists()
    assert counts(cache) == (0, 0, 0)


def test_progress_counts_every_text_once(checkpoint, cache, monkeypatch):
    encoder = TransformerEncoder(checkpoint, cache=cache, verbose=1)
    encoder.transform(TEXTS[:3])
    reported = []
    embed = _cache.EmbeddingCache._embed

    def listen(self, texts, identify, encode, progress):
        return embed(self, texts, identify, encode, lambda n: reported.append(n) or progress(n))

    monkeypatch.setattr(_cache.EmbeddingCache, "_embed", listen)
    encoder.transform(TEXTS)
    assert reported == [3]


def test_empty_name_is_not_the_working_directory(checkpoint):
    with pytest.raises(ValueError, match="cache=''"):
        TransformerEncoder(checkpoint, cache="").transform(["a text"])

"""The ONNX backend: vectors as from torch, stored graphs, int8, and errors."""

import json
import os
import pickle
import types
import warnings
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.base import clone

from isoadapt.encoders import (
    EmbeddingCache,
    TransformerEncoder,
    _models as models,
    _onnx as module,
    release,
)
from isoadapt.encoders._batching import embed_batch
from tests.encoders.changes import change_weights, copied as copy_folder, negate
from tests.tiny_models import PAIRS, TEXTS, save_model

pytestmark = [
    pytest.mark.skipif(find_spec("onnxruntime") is None, reason="no onnxruntime"),
    pytest.mark.xdist_group("onnx"),  # so that one process loads the exporter
]


@pytest.fixture(autouse=True)
def _users_folder(tmp_path, monkeypatch, empty_store):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory, shallow):
    """A folder with the exported graphs of `shallow`. Do not write to it."""
    folder = tmp_path_factory.mktemp("cache")
    release()
    with warnings.catch_warnings(record=True) as caught:
        onnx(shallow, cache=folder).transform(["a"])
    assert not caught
    graph = exact(folder).joinpath("model.onnx").read_bytes()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "export_graph", lambda *args: graph)  # int8 is made of it
        warnings.simplefilter("ignore", UserWarning)  # int8 vectors of random weights are inexact
        onnx(shallow, dtype="int8", cache=folder).transform(["a"])
    return folder


@pytest.fixture
def no_export(monkeypatch):
    monkeypatch.delattr(module, "_export")


@pytest.fixture
def fake_export(monkeypatch):
    """Replace the slow export by torch."""

    def export(spec, backbone):
        embed = torch.inference_mode(partial(embed_batch, backbone, spec.pooling, spec.layer))
        embed.equal_lengths = False
        return (embed, module.Deviation(1.0, 1.0, 0.0, 1)), {}

    monkeypatch.setattr(module, "_export", export)


def onnx(checkpoint, **options):
    return TransformerEncoder(checkpoint, backend="onnx", **options)


def graphs(folder):
    return sorted(path for path in (folder / "onnx").iterdir() if path.is_dir())


def exact(cache):
    """The folder of the graph in float32."""
    for graph in graphs(cache):
        report = json.loads((graph / "export.json").read_text())
        if report["deviation"]["max_difference"] < 1e-5:
            return graph
    raise AssertionError("there is none")


@pytest.mark.parametrize(
    ("batch_tokens", "inputs"),
    [(30, TEXTS), pytest.param(10_000, PAIRS, marks=pytest.mark.slow)],
)
def test_same_vectors_as_torch_in_any_batches(shallow, cache, batch_tokens, inputs, no_export):
    expected = TransformerEncoder(shallow).transform(inputs)
    got = onnx(shallow, cache=cache, batch_tokens=batch_tokens).transform(inputs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "pooling"), [("roberta", "readout"), ("gpt2", "head_input"), ("t5", "mean")]
)
def test_other_architectures(architecture, pooling, tmp_path):
    save_model(tmp_path / "model", architecture)
    expected = TransformerEncoder(tmp_path / "model", pooling=pooling).transform(TEXTS)
    got = onnx(tmp_path / "model", pooling=pooling).transform(TEXTS)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_int8_deviates_a_little_and_says_how_much(shallow, cache, no_export, monkeypatch):
    encoder = onnx(shallow, cache=cache, dtype="int8")
    exact = TransformerEncoder(shallow).transform(TEXTS).astype(np.float64)
    got = encoder.transform(TEXTS).astype(np.float64)
    norms = np.linalg.norm(exact, axis=1)
    cosines = np.sum(got * exact, axis=1) / (np.linalg.norm(got, axis=1) * norms)
    shares = np.linalg.norm(got - exact, axis=1) / norms
    found = encoder.deviation(TEXTS)
    assert found == pytest.approx((cosines.mean(), cosines.min(), shares.max(), len(TEXTS)))
    assert 0.9 < found.min_cosine < 1 - 1e-6
    release()
    monkeypatch.setattr(module, "_LOWEST_COSINE", 1.0)
    with pytest.warns(UserWarning, match="mean cosine"):
        encoder.transform(["the cat flew"])


def test_changed_weights_and_settings_are_exported_again(tmp_path, fake_export):
    folder, seen = save_model(tmp_path / "model"), []
    encoder = onnx(folder, pooling="mean")
    for change in (
        lambda: None,
        lambda: change_weights(folder, negate("query")),
        lambda: encoder.set_params(pooling="max"),
        lambda: encoder.set_params(layer=1),
    ):
        change()
        found = encoder.transform(TEXTS)
        expected = clone(encoder).set_params(backend="torch").transform(TEXTS)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        seen.append(found)
    assert len(np.unique(np.round(seen, 3), axis=0)) == 4
    assert len(graphs(tmp_path / "users" / "isoadapt")) == 4


def test_the_graph_is_kept_and_the_weights_are_not_read_again(shallow, cache, no_export):
    encoder = onnx(shallow, cache=cache, dtype="int8")
    encoder.transform(["the cat ran"])
    assert encoder.get_feature_names_out().shape == (16,)
    assert [kept.model.device.type for kept in models._STORE.values()] == ["meta"]
    loaded = list(models._GRAPHS.values())
    clone(encoder).transform(["the dog ran"])
    pickle.loads(pickle.dumps(encoder)).transform(["the bird ran"])
    assert list(models._GRAPHS.values()) == loaded
    release()
    assert not models._GRAPHS


def test_a_forked_process_loads_its_own(shallow, cache, monkeypatch, no_export):
    encoder = onnx(shallow, cache=cache)
    encoder.transform(["the cat ran over"])
    child = types.SimpleNamespace(**{**vars(os), "getpid": lambda: -1})
    monkeypatch.setattr(models, "os", child)
    encoder.transform(["the dog ran over"])
    assert len(set(models._GRAPHS.values())) == 2


def test_vectors_of_the_backends_are_kept_apart(shallow, cache, tmp_path):
    folder = tmp_path / "copied"
    copy_folder(cache / "onnx", folder / "onnx")
    encoders = [
        TransformerEncoder(shallow, backend=backend, dtype=dtype, cache=folder)
        for backend, dtype in [("torch", "auto"), ("onnx", "auto"), ("onnx", "int8")]
    ]
    once = [encoder.transform(TEXTS) for encoder in encoders]
    assert EmbeddingCache(folder).stats().misses == 3 * len(set(TEXTS))
    assert encoders[0].set_params(cache=None).transform(TEXTS).tolist() == once[0].tolist()
    assert np.abs(once[2] - once[1]).max() > 1e-3
    release()
    again = [encoder.transform(TEXTS) for encoder in encoders[1:]]
    assert not models._GRAPHS  # the vectors came from the cache
    np.testing.assert_array_equal(again, once[1:])


@pytest.mark.parametrize(("name", "place"), [("model.onnx", 500), ("export.json", 0)])
def test_a_damaged_graph_is_exported_again(shallow, cache, tmp_path, monkeypatch, name, place):
    expected = onnx(shallow, cache=cache).transform(TEXTS)
    release()
    sound = exact(cache)
    target = copy_folder(sound, tmp_path / "copied" / "onnx" / sound.name)
    content = bytearray((target / name).read_bytes())
    content[place] ^= 1
    (target / name).write_bytes(content)

    def export(spec, backbone):  # replaces the slow export
        return module._read(sound), {file.name: file.read_bytes() for file in sound.iterdir()}

    monkeypatch.setattr(module, "_export", export)
    with pytest.warns(UserWarning, match=f"{target.name} is damaged"):
        got = onnx(shallow, cache=tmp_path / "copied").transform(TEXTS)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert module._read(target) is not None


def test_a_graph_with_other_vectors_is_not_kept(shallow, cache, tmp_path, monkeypatch):
    folder = change_weights(copy_folder(shallow, tmp_path / "model"), negate("query"))
    other = exact(cache).joinpath("model.onnx").read_bytes()
    monkeypatch.setattr(module, "export_graph", lambda *args: other)
    with pytest.raises(ValueError, match="vectors would differ"):
        onnx(folder).transform(TEXTS)
    assert not graphs(tmp_path / "users" / "isoadapt")

"""The ONNX backend: vectors as from torch, stored graphs, int8, and errors."""

import io
import json
import os
import pickle
import shutil
import sys
import types
import warnings
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from sklearn.base import clone

from isoadapt.encoders import (
    TransformerEncoder,
    _models as models,
    _onnx as module,
    load_checkpoint,
    release,
)
from isoadapt.encoders._batching import embed_batch
from isoadapt.encoders._checkpoint import read_head
from tests.tiny_models import PAIRS, TEXTS, make_model, make_tokenizer, save_model

pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="no onnxruntime")


@pytest.fixture(autouse=True)
def _users_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory, checkpoint):
    """A folder with the exported graphs of `checkpoint`. Do not write to it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        check_export(checkpoint, folder, patch)
    graph = exact_graph(folder)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "export_graph", lambda *args: graph)  # int8 is made of it
        warnings.simplefilter("ignore", UserWarning)  # int8 vectors of random weights are inexact
        onnx(checkpoint, dtype="int8", cache=folder).transform(["a"])
    return folder


def check_export(checkpoint, folder, patch):
    """Export a graph; it must be quiet and leave the settings and the loaded model as they were."""
    export = torch.onnx.export

    def warn_and_export(*arguments, **options):
        warnings.warn("of the exporter", FutureWarning, stacklevel=1)
        return export(*arguments, **options)

    patch.setattr(torch.onnx, "export", warn_and_export)
    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with redirect_stdout(said), redirect_stderr(said):
            onnx(checkpoint, cache=folder).transform(["a"])
        assert warnings.filters == before
    assert not caught
    assert said.getvalue() == ""
    loaded = next(iter(models._STORE.values())).model
    configs = [module.config for module in loaded.modules() if hasattr(module, "config")]
    assert {config._attn_implementation for config in configs} == {"sdpa"}


@pytest.fixture
def copied(cache, tmp_path):
    """A copy of the exported graphs."""
    shutil.copytree(cache / "onnx", tmp_path / "copied" / "onnx")
    return tmp_path / "copied"


@pytest.fixture
def no_export(monkeypatch):
    def fail(*args, **options):
        raise AssertionError("exported once more")

    monkeypatch.setattr(module, "_export", fail)


def without_a_graph(spec, backbone):
    """Replace the slow export."""
    embed = torch.inference_mode(partial(embed_batch, backbone, spec.pooling, spec.layer))
    embed.equal_lengths = False
    return (embed, module.Deviation(1.0, 1.0, 0.0, 1)), {}


def onnx(checkpoint, **options):
    return TransformerEncoder(checkpoint, backend="onnx", **options)


def graphs(folder):
    return sorted(path for path in (folder / "onnx").iterdir() if path.is_dir())


# Vectors


@pytest.mark.parametrize("batch_tokens", [1, 30, 10_000])
@pytest.mark.parametrize("inputs", [TEXTS, PAIRS])
def test_same_vectors_as_torch_in_any_batches(checkpoint, cache, batch_tokens, inputs, no_export):
    expected = TransformerEncoder(checkpoint).transform(inputs)
    got = onnx(checkpoint, cache=cache, batch_tokens=batch_tokens).transform(inputs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "options"),
    [("roberta", {"pooling": "mean", "layer": 1}), ("gpt2", {"pooling": "head_input"})],
)
def test_architectures_poolings_and_layers(architecture, options, tmp_path):
    save_model(tmp_path / "model", architecture)
    expected = TransformerEncoder(tmp_path / "model", **options).transform(TEXTS)
    got = onnx(tmp_path / "model", **options).transform(TEXTS)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert len(graphs(tmp_path / "users" / "isoadapt")) == 1


def test_modules_and_columns_of_a_sentence_transformer(tmp_path, monkeypatch):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules as theirs

    bare = save_model(tmp_path / "bare", kind="AutoModel", num_hidden_layers=1)
    parts = [theirs.Transformer(str(bare)), theirs.Pooling(16, ("cls", "mean"))]
    parts += [theirs.Dense(32, 12), theirs.LayerNorm(12), theirs.Normalize()]
    model = library.SentenceTransformer(modules=parts, device="cpu", truncate_dim=7)
    model.save(str(tmp_path / "model"))
    encoder = onnx(tmp_path / "model", cache=tmp_path / "cache")
    np.testing.assert_allclose(encoder.transform(TEXTS), model.encode(TEXTS), atol=1e-5)
    config = tmp_path / "model" / "config_sentence_transformers.json"
    config.write_text(config.read_text().replace('"truncate_dim": 7', '"truncate_dim": 5'))
    monkeypatch.setattr(module, "_export", without_a_graph)
    np.testing.assert_allclose(encoder.transform(TEXTS), model.encode(TEXTS)[:, :5], atol=1e-5)
    assert len(encoder.get_feature_names_out()) == 5


def test_int8_deviates_a_little_and_says_how_much(checkpoint, cache, no_export):
    encoder = onnx(checkpoint, cache=cache, dtype="int8")
    exact = TransformerEncoder(checkpoint).transform(TEXTS).astype(np.float64)
    got = encoder.transform(TEXTS).astype(np.float64)
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(exact, axis=1)
    cosines = np.sum(got * exact, axis=1) / norms
    shares = np.linalg.norm(got - exact, axis=1) / np.linalg.norm(exact, axis=1)
    found = encoder.deviation(TEXTS)
    assert found == pytest.approx((cosines.mean(), cosines.min(), shares.max(), len(TEXTS)))
    assert 0.9 < found.min_cosine < 1 - 1e-6


def test_a_changed_checkpoint_is_exported_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_export", without_a_graph)
    save_model(tmp_path / "model")
    encoder = onnx(tmp_path / "model", pooling="mean")
    before = encoder.transform(TEXTS)
    model = make_model()
    model.bert.embeddings.word_embeddings.weight.data.mul_(2)
    model.save_pretrained(tmp_path / "model")
    expected = TransformerEncoder((model, make_tokenizer()), pooling="mean").transform(TEXTS)
    after = encoder.transform(TEXTS)
    np.testing.assert_allclose(after, expected, atol=1e-5)
    assert not np.allclose(after, before, atol=1e-3)
    assert len(graphs(tmp_path / "users" / "isoadapt")) == 2


# Stored graphs


def test_the_graph_is_kept_and_the_weights_are_not_read_again(checkpoint, cache, no_export):
    encoder = onnx(checkpoint, cache=cache, dtype="int8")
    encoder.transform(["the cat ran"])
    assert encoder.get_feature_names_out().shape == (16,)
    assert [kept.model.device.type for kept in models._STORE.values()] == ["meta"]
    loaded = list(models._GRAPHS.values())
    clone(encoder).transform(["the dog ran"])
    pickle.loads(pickle.dumps(encoder)).transform(["the bird ran"])
    assert list(models._GRAPHS.values()) == loaded
    release()
    assert not models._GRAPHS


def test_a_forked_process_loads_its_own(checkpoint, cache, monkeypatch, no_export):
    encoder = onnx(checkpoint, cache=cache)
    encoder.transform(["the cat ran over"])
    child = types.SimpleNamespace(**{**vars(os), "getpid": lambda: -1})
    monkeypatch.setattr(models, "os", child)
    encoder.transform(["the dog ran over"])
    assert len(set(models._GRAPHS.values())) == 2


def test_vectors_of_the_backends_are_kept_apart(checkpoint, copied):
    kinds = [("torch", "auto"), ("onnx", "auto"), ("onnx", "int8")]
    encoders = [
        TransformerEncoder(checkpoint, backend=backend, dtype=dtype, cache=copied)
        for backend, dtype in kinds
    ]
    once = [encoder.transform(TEXTS) for encoder in encoders]
    assert encoders[0].set_params(cache=None).transform(TEXTS).tolist() == once[0].tolist()
    assert np.abs(once[2] - once[1]).max() > 1e-3
    release()
    again = [encoder.transform(TEXTS) for encoder in encoders[1:]]
    assert not models._GRAPHS  # the vectors came from the cache
    np.testing.assert_array_equal(again, once[1:])


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip_one_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.onnx", truncate),
        ("model.onnx", flip_one_bit),
        ("model.onnx", lambda file: file.unlink()),
        ("export.json", truncate),
        ("export.json", lambda file: file.write_text("[]")),
    ],
)
def test_a_damaged_graph_is_exported_again(checkpoint, cache, copied, monkeypatch, name, damage):
    expected = onnx(checkpoint).set_params(cache=cache).transform(TEXTS)
    release()
    for folder in graphs(copied):
        damage(folder / name)
    sound = {path.name: path for path in graphs(cache)}

    def export(spec, backbone):  # replaces the slow export
        files = {file.name: file.read_bytes() for file in sound[target.name].iterdir()}
        return module._read(sound[target.name]), files

    target = next(path for path in graphs(copied) if is_exact(sound[path.name]))
    monkeypatch.setattr(module, "_export", export)
    with pytest.warns(UserWarning, match=rf"{target.name} is damaged and is exported again"):
        got = onnx(checkpoint, cache=copied).transform(TEXTS)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    assert module._read(target) is not None


def is_exact(graph):
    return json.loads((graph / "export.json").read_text())["deviation"]["max_difference"] < 1e-5


def test_a_checkpoint_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    save_model(tmp_path / "model")

    def export(*args):
        save_model(tmp_path / "model", intermediate_size=32)
        return None, {}

    monkeypatch.setattr(module, "_export", export)
    with pytest.raises(OSError, match="changed while it was exported; try again"):
        onnx(tmp_path / "model").transform(TEXTS)
    assert not graphs(tmp_path / "users" / "isoadapt")


# Exactness


def test_a_low_cosine_gives_a_warning_whenever_the_graph_is_loaded(
    checkpoint, cache, monkeypatch, no_export
):
    monkeypatch.setattr(module, "_LOWEST_COSINE", 1.0)
    encoder = onnx(checkpoint, cache=cache, dtype="int8")
    with pytest.warns(UserWarning, match=r"mean cosine of [01]\.\d+ .*encoder\.deviation\(texts\)"):
        encoder.transform(["the cat flew"])


def exact_graph(cache):
    return next(path / "model.onnx" for path in graphs(cache) if is_exact(path)).read_bytes()


def halved(graph):
    import onnx as format

    model = format.load_model_from_string(graph)
    for weights in model.graph.initializer:
        if "weight" in weights.name and weights.data_type == format.TensorProto.FLOAT:
            values = format.numpy_helper.to_array(weights)
            rough = np.where(np.arange(values.size).reshape(values.shape) % 2, values, 0)
            weights.CopyFrom(format.numpy_helper.from_array(rough, weights.name))
    return model.SerializeToString()


def test_a_graph_that_computes_something_else_is_refused(checkpoint, cache, tmp_path, monkeypatch):
    wrong = halved(exact_graph(cache))
    monkeypatch.setattr(module, "export_graph", lambda *args: wrong)
    with pytest.raises(ValueError, match=r"its vectors would differ by .*choose backend='torch'"):
        onnx(checkpoint).transform(TEXTS)
    assert not graphs(tmp_path / "users" / "isoadapt")


# Errors


def test_the_exporters_error_is_explained(checkpoint, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("step 1 of 3") from TypeError("no such operator\nand a long trace")

    monkeypatch.setattr(torch.onnx, "export", fail)
    message = r"BertFor\w+ cannot be exported to ONNX \(TypeError: no such operator\); choose"
    with pytest.raises(ValueError, match=message):
        onnx(checkpoint, pooling="mean").transform(TEXTS)
    assert not graphs(tmp_path / "users" / "isoadapt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat16"}, "dtype='bfloat16' .*: 'onnx' computes in 'float32' or 'int8' on"),
        ({"device": "meta"}, "device='meta' do not fit backend='onnx'.* on the CPU"),
        ({"backend": "torch", "dtype": "int8"}, "dtype='int8' .* fit backend='torch'.* but 'int8'"),
        ({"backend": "tensorflow"}, "The 'backend' parameter of TransformerEncoder"),
        ({"layer": 3, "pooling": "cls"}, "layer=3: the model has 2 layers"),
    ],
)
def test_parameters_that_do_not_fit(checkpoint, options, message):
    with pytest.raises(ValueError, match=message):
        TransformerEncoder(checkpoint, **{"backend": "onnx", **options}).transform(TEXTS)


def test_a_live_model_is_refused(live):
    with pytest.raises(ValueError, match=r"need the files of a checkpoint.*save_pretrained"):
        onnx(live).transform(TEXTS)


def test_a_folder_that_cannot_be_written_to(checkpoint, tmp_path):
    (tmp_path / "users").write_text("a file")
    with pytest.raises(OSError, match=r"keeps exported models in .*; pass cache=folder"):
        onnx(checkpoint).transform(TEXTS)


@pytest.mark.parametrize("package", ["onnxruntime", "onnxscript"])
def test_a_missing_package_is_named(checkpoint, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'{package}.*pip install "isoadapt\[onnx\]"'):
        onnx(checkpoint).transform(TEXTS)


# Other parts of the library


def test_the_head_is_read_from_the_weights(checkpoint, cache):
    encoder, head = load_checkpoint(checkpoint)
    encoder.set_params(backend="onnx", dtype="int8", cache=cache)
    np.testing.assert_array_equal(read_head(encoder).coef_, head.coef_)

"""SentenceTransformer folders and objects, with their pooling and further modules."""

import json
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from isoadapt import AdaptedEncoder, Whitening
from isoadapt.encoders import TransformerEncoder, release
from isoadapt.encoders._library import LibraryEncoder
from isoadapt.interop import export_onnx, to_sentence_transformer
from tests.encoders.changes import change_weights, edit, negate
from tests.tiny_models import PAIRS, TEXTS

library = pytest.importorskip("sentence_transformers")
theirs = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
module = partial(getattr, theirs)
MODEL, BERT = "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
DENSE_WEIGHTS = "2_Dense/model.safetensors"
MIXED = [*TEXTS, "the CAT sat on the mat and then", "The Cat sat far"]


def stack(*names):
    """Modules by name; a tuple is a Dense with this activation, width and bias."""
    width, found = 16, []
    for name in names:
        if isinstance(name, str):
            found.append(module(name)(*[width] * (name == "LayerNorm")))
            continue
        activation, new, bias = name
        found.append(module("Dense")(width, new, bias=bias, activation_function=activation))
        width = new
    for each in (weights for layer in found for weights in layer.parameters()):
        each.data.add_(torch.randn(each.shape, generator=torch.manual_seed(len(found))))
    return found


@pytest.fixture(scope="module")
def make(bare):
    """A function that makes a tiny SentenceTransformer with a pooling and further modules."""

    def make(mode="mean", *others, **options):
        modules = [module("Transformer")(str(bare)), module("Pooling")(16, mode)]
        modules += stack(*others)
        return library.SentenceTransformer(modules=modules, device="cpu", **options)

    return make


@pytest.fixture(scope="module")
def saved(make, tmp_path_factory):
    """A saved model of Transformer, Pooling, Dense and Normalize. Do not write to it."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    make("mean", (nn.Tanh(), 8, True), "Normalize").save(str(folder))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def agrees(folder, texts=MIXED, by_library=False):
    """Compare the vectors of a folder with those of the library, and who computes them."""
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    encoder = TransformerEncoder(folder, device="cpu")
    np.testing.assert_allclose(encoder.transform(texts), expected, atol=1e-5)
    assert isinstance(encoder.open(), LibraryEncoder) is by_library


@pytest.mark.parametrize(
    ("mode", "modules", "truncate"),
    [
        ("mean_sqrt_len_tokens", [], None),
        ("cls", ["Normalize"], 5),
        ("max", [(nn.Tanh(), 8, True)], 99),  # LaBSE, distiluse
        ("mean", ["LayerNorm", "Normalize"], None),
        ("weightedmean", ["Dropout", (nn.ReLU(), 12, True), "LayerNorm"], None),
        ("lasttoken", [(nn.Identity(), 24, False), (nn.SiLU(), 16, False), "Normalize"], None),
        (("cls", "mean"), [], 20),
    ],
    ids=str,
)
def test_modules_and_columns_are_those_of_encode(make, tmp_path, mode, modules, truncate):
    model = make(mode, *modules, truncate_dim=truncate)
    expected = model.encode(TEXTS)
    model.save(str(tmp_path))
    encoders = TransformerEncoder(model, device="cpu"), TransformerEncoder(tmp_path, device="cpu")
    for encoder in encoders:
        np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)
        assert len(encoder.get_feature_names_out()) == expected.shape[1]
        assert repr(mode if isinstance(mode, str) else "cls+mean") in encoder.open().describe()
    assert TransformerEncoder(tmp_path, pooling="mean").transform(TEXTS).shape == (8, 16)


def test_it_is_a_live_model(make):
    model = make("mean", (nn.GELU("tanh"), 16, True), "Normalize").train()
    encoder = TransformerEncoder(model)
    expected = encoder.transform(TEXTS)
    assert model.training
    np.testing.assert_allclose(expected, model.eval().encode(TEXTS), atol=1e-6)
    model.max_seq_length = 4  # changes have an effect
    np.testing.assert_allclose(encoder.transform(TEXTS), model.encode(TEXTS), atol=1e-6)
    assert not np.allclose(encoder.transform(TEXTS), expected)


# Folders

KINDS = ["Transformer", "Pooling", "Dense", "Normalize"]
OURS = [f"sentence_transformers.models.{kind}" for kind in KINDS]
FILES = [f"sentence_transformers.models.{kind}.{kind}" for kind in KINDS]
BASE = "sentence_transformers.base.modules"
NEWER = [f"{BASE}.transformer.Transformer", OURS[1], f"{BASE}.dense.Dense"]
NEWER += ["sentence_transformers.sentence_transformer.modules.normalize.Normalize"]
PLACES = ("", "1_Pooling", "2_Dense", "3_Normalize")


def retype(folder, *kinds, paths=PLACES):
    """Change the classes that modules.json names, and the places of the modules."""
    listed = enumerate(zip(kinds, paths, strict=True))
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (kind, path) in listed]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("kinds", [OURS, FILES, NEWER], ids=str)
def test_classes_are_known_by_their_paths_in_each_version(folder, kinds):
    retype(folder, *kinds)
    agrees(folder)
    (folder / "0").mkdir()  # the place of the transformer if modules.json says so
    for file in folder.glob("*[nts]"):
        if file.is_file() and file.name not in ("modules.json", MODEL):
            shutil.copy(file, folder / "0")
    change_weights(folder, negate("word_embeddings"))
    retype(folder, *kinds, paths=["0", *PLACES[1:]])
    agrees(folder)


@pytest.mark.parametrize(("kind", "empty"), [("bert", False), ("roberta", True), ("xlnet", False)])
def test_the_length_by_each_name_of_the_file(folder, kind, empty):
    (folder / BERT).unlink()
    if empty:
        edit(folder, BERT)
    edit(folder, "tokenizer_config.json", model_max_length=4)  # the file's length wins
    edit(folder, f"sentence_{kind}_config.json", max_seq_length=6, do_lower_case=False)
    agrees(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {POOLING: {"pooling_mode_max_tokens": 1}, BERT: {"max_seq_length": None}},
        {
            POOLING: {"pooling_mode": ["lasttoken"], "include_prompt": False},
            MODEL: {"similarity_fn_name": "dot", "truncate_dim": 3, "requirements": {}}
            | {"prompts": {"query": "q: ", "none": ""}, "default_prompt_name": "none"},
        },
    ],
    ids=str,
)
def test_settings_are_applied_or_have_no_effect(folder, changes):
    for name, entries in changes.items():
        edit(folder, name, **entries)
    agrees(folder)


def test_older_files_without_mode_and_activation(folder):
    """They mean the mean and a tanh; weights may be halves, and no random numbers are drawn."""
    modes = {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": False}
    (folder / POOLING).write_text(json.dumps({"word_embedding_dimension": 16} | modes))
    change_weights(folder, lambda x: {name: w.half() for name, w in x.items()}, DENSE_WEIGHTS)
    entries, state = json.loads((folder / DENSE).read_text()), torch.random.get_rng_state()
    assert "Tanh" in entries.pop("activation_function")
    (folder / DENSE).write_text(json.dumps(entries))
    TransformerEncoder(folder).transform(TEXTS)
    assert torch.equal(torch.random.get_rng_state(), state)
    agrees(folder)


def test_a_changed_module_is_not_read_from_the_cache(folder, tmp_path):
    encoder = TransformerEncoder(folder, cache=tmp_path / "cache", device="cpu")
    for change in (
        lambda: edit(folder, MODEL, truncate_dim=6),
        lambda: edit(folder, DENSE, activation_function="torch.nn.Identity"),
        lambda: edit(folder, BERT, max_seq_length=4),
        lambda: change_weights(folder, negate("linear"), DENSE_WEIGHTS),
    ):
        change()
        expected = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)


# Models that the library computes


def static(make):
    tokens = make().tokenizer.backend_tokenizer
    return [module("StaticEmbedding")(tokens, embedding_dim=4), module("Normalize")()]


def routed(make):
    first, second = make(), make("cls")
    router = module("Router").for_query_document([*first], [*second], default_route="document")
    return [router]


@pytest.mark.parametrize("modules", [static, routed], ids=["static", "router"])
def test_other_modules_are_computed_by_the_library(make, tmp_path, modules):
    model = library.SentenceTransformer(modules=modules(make), device="cpu")
    model.save(str(tmp_path / "model"))
    agrees(tmp_path / "model", by_library=True)
    encoder = TransformerEncoder(model.train())
    found = encoder.transform(PAIRS)
    assert model.training
    np.testing.assert_allclose(found, model.eval().encode(PAIRS), atol=1e-6)
    for each in (model, tmp_path / "model"):
        with pytest.raises(ValueError, match="not a single transformer"):
            TransformerEncoder(each, pooling="mean").transform(TEXTS)


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        (MODEL, {"default_prompt_name": "query", "prompts": {"query": "the dog "}}),
        (DENSE, {"activation_function": "torch.nn.modules.activation.Softplus"}),
        (BERT, {"do_lower_case": True}),
        (BERT, {"max_seq_length": 7, "processing_kwargs": {"text": {"padding": "max_length"}}}),
    ],
)
def test_other_settings_are_applied_by_the_library(folder, tmp_path, file, changes):
    agrees(edit(folder, file, **changes), by_library=True)
    expected = TransformerEncoder(folder, max_length=4).transform(MIXED)
    encoder = TransformerEncoder(folder, max_length=4, cache=tmp_path / "cache")
    for _ in range(2):
        np.testing.assert_allclose(encoder.transform(MIXED), expected, atol=1e-6)
        release()
    assert not np.allclose(TransformerEncoder(folder).transform(MIXED), expected)
    native = TransformerEncoder(folder, pooling="mean")
    assert native.transform(TEXTS).shape == (8, 16)
    assert not isinstance(native.open(), LibraryEncoder)


class Own(library.SentenceTransformer):
    """A class of one's own, whose vectors are others."""

    def encode(self, *args, **options):
        return super().encode(*args, **options) + 1


def test_live_models_of_other_kinds_are_computed_by_themselves(make):
    model = make("mean", prompts={"query": "the dog "}, default_prompt_name="query")
    own = make("cls")
    own.__class__ = Own
    for each in (model, own):
        np.testing.assert_allclose(TransformerEncoder(each).transform(TEXTS), each.encode(TEXTS))
        with pytest.raises(ValueError, match="max_seq_length"):
            TransformerEncoder(each, max_length=4).transform(TEXTS)


def test_what_needs_parts_of_the_model_refuses_it(folder, tmp_path):
    edit(folder, DENSE, activation_function="torch.nn.modules.activation.Softplus")
    model = AdaptedEncoder(folder, Whitening(shrinkage=0.5)).fit(MIXED)
    assert model.transform(TEXTS).shape == (8, 8)
    with pytest.raises(ValueError, match="only sentence-transformers computes"):
        to_sentence_transformer(model, folder, tmp_path / "out")
    with pytest.raises(ValueError, match="only sentence-transformers computes"):
        export_onnx(model, tmp_path / "graph" / "model.onnx")
    with pytest.raises(ValueError, match="layer=1"):
        TransformerEncoder(folder, layer=1).transform(TEXTS)


def test_it_needs_the_library_and_runs_no_foreign_code(folder, monkeypatch):
    retype(folder, OURS[0], OURS[1], "my_package.Dense", OURS[3])
    with pytest.raises(ValueError, match=r"my_package.Dense, whose code only runs"):
        TransformerEncoder(folder).transform(TEXTS)
    retype(folder, *OURS[:2], "sentence_transformers.models.LSTM", OURS[3])
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="another format"):
        TransformerEncoder(folder).transform(TEXTS)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(ImportError, match=r"isoadapt\[st\]"):
        TransformerEncoder(folder).transform(TEXTS)


def test_the_library_gives_a_text_the_same_vector_alone_and_in_a_batch(make, tmp_path):
    """A convolution reads padding, so such a model encodes one text at a time."""
    parts = [make()[0], module("CNN")(16, 8, [1, 3]), module("Pooling")(16)]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "cnn"))
    encoder = TransformerEncoder(tmp_path / "cnn")
    assert isinstance(encoder.open(), LibraryEncoder)
    alone = np.concatenate([encoder.transform([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.transform(TEXTS), alone, atol=1e-6)


def test_a_sparse_model_is_refused(folder):
    edit(folder, MODEL, model_type="SparseEncoder")
    with pytest.raises(ValueError, match="model_type='SparseEncoder'"):
        TransformerEncoder(folder).transform(TEXTS)


def test_pairs_of_a_model_that_the_library_computes(make):
    pairs = [*zip(TEXTS[:2], TEXTS[2:4], strict=True)]
    encoder = TransformerEncoder(make("mean", (nn.Softsign(), 8, True)))
    assert isinstance(encoder.open(), LibraryEncoder)
    expected = encoder.model.encode(pairs)
    np.testing.assert_allclose(encoder.transform(pairs), expected, atol=1e-6)

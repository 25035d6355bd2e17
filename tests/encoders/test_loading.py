"""Checkpoints that cannot be loaded are refused with their cause and a way out that helps."""

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from safetensors.torch import load_file, save_file

from isoadapt.encoders import TransformerEncoder, _loading, load_checkpoint
from tests.tiny_models import TEXTS, make_tokenizer, save_model, save_pair

ADDED = [f"added{i}" for i in range(30)]  # the tables have 40 rows, the tokenizer 24 tokens


def edit(folder, file="config.json", **changes):
    entries = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps(entries))


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"id2label": {"0": "a"}, "label2id": {"a": 0}},
            r"classifier.bias .*\(3,\).*\(1,\).*id2label",
        ),
        ({"vocab_size": 39}, r"word_embeddings.weight .*\(40, 16\).*\(39, 16\) \("),
        ({"hidden_size": 20}, r"shape \(16,\).* asks for \(20,\) \("),
        ({"max_position_embeddings": 9}, r"position_embeddings.*\(9, 16\)"),
        ({"model_type": "foobert"}, "configuration cannot be read .*model type `foobert` but"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quant_method='gptq'.*deq"),
        ({"quantization_config": {"load_in_8bit": True}}, "not quantised: .*dequantize"),
        ({"use_return_dict": False}, "configuration cannot be read .*property 'use_return_dict'"),
        ({"num_hidden_layers": 1}, r"weights bert.encoder.layer.1.*…, for .*num_hidden_layers=1"),
    ],
)
def test_an_entry_that_does_not_fit_is_named(changes, says, tmp_path):
    edit(save_model(tmp_path), **changes)
    with pytest.raises(ValueError, match=says) as caught:
        load_checkpoint(tmp_path)
    assert "completely" not in str(caught.value)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "gpt2", "t5", "llama"])
@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForSequenceClassification"])
def test_layers_beyond_the_configuration_are_named(architecture, kind, tmp_path):
    config = save_model(tmp_path, architecture, kind=kind) / "config.json"
    entries = json.loads(config.read_text())
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    edit(tmp_path, **{next(name for name in names if name in entries): 1})
    with pytest.raises(ValueError, match=r"has the weights \S*(layers?|block|h)\.1\..* no place"):
        TransformerEncoder(tmp_path).transform(TEXTS)


@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForSequenceClassification"])
@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("embeddings.position_ids", True),
        ("pooler.dense.extra", True),
        ("cls.predictions.bias", True),
        ("lm_head.weight", True),
        ("encoder.layer.0.attention.self.distance_embedding.weight", False),
        ("encoder.adapter.weight", False),
    ],
)
def test_other_weights_of_the_base_model_are_named(kind, name, fits, tmp_path):
    expected = TransformerEncoder(save_model(tmp_path, kind=kind)).transform(TEXTS)
    name = name if kind == "AutoModel" else f"bert.{name}"
    change_weights(tmp_path, lambda given: given | {name: torch.ones(2)})
    encoder = TransformerEncoder(tmp_path)
    if fits:
        np.testing.assert_array_equal(encoder.transform(TEXTS), expected)
    else:
        with pytest.raises(ValueError, match=f"has the weights {name}, for which"):
            encoder.transform(TEXTS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["bert.encoder.layer.1.output.dense.bias", "classifier.weight"])
def test_weights_that_are_not_finite_are_named(value, name, live, tmp_path):
    save_model(tmp_path)
    change_weights(tmp_path, lambda given: given | {name: torch.full_like(given[name], value)})
    dict(live[0].named_parameters())[name].data.fill_(value)
    for model, shown in ((tmp_path, str(tmp_path)), (live, "the live model")):
        with pytest.raises(ValueError, match=rf"{shown}.* NaN or infinite .*\({name}\)"):
            load_checkpoint(model)


def test_a_live_model_may_return_tuples(live):
    expected = TransformerEncoder(live).transform(TEXTS)
    live[0].config.return_dict = False
    np.testing.assert_array_equal(load_checkpoint(live)[0].transform(TEXTS), expected)
    assert TransformerEncoder(live, pooling="mean", layer=1).transform(TEXTS).shape == (8, 16)
    assert live[0].config.return_dict is False


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "model.", "encoder.", "a.module."])
@pytest.mark.parametrize("kind", ["AutoModel", "AutoModelForSequenceClassification"])
def test_a_prefix_of_all_names_is_named_and_the_way_out_works(prefix, kind, tmp_path):
    expected = TransformerEncoder(save_model(tmp_path, kind=kind)).transform(TEXTS)
    change_weights(tmp_path, lambda given: {prefix + name: x for name, x in given.items()})
    with pytest.raises(ValueError, match=f"contain '{prefix}'") as caught:
        TransformerEncoder(tmp_path).transform(TEXTS)
    way_out = str(caught.value).partition("safetensors.torch: ")[2]
    eval(way_out, vars(safetensors.torch) | {"file": tmp_path / "model.safetensors"})
    np.testing.assert_array_equal(TransformerEncoder(tmp_path).transform(TEXTS), expected)


@pytest.mark.parametrize("wrapper", _loading._WRAPPERS)
def test_a_part_that_was_wrapped_is_named(wrapper, tmp_path):
    save_model(tmp_path)
    change_weights(
        tmp_path, lambda x: {k.replace(".attention.", f".{wrapper}attention."): x[k] for k in x}
    )
    with pytest.raises(ValueError, match=rf"contain '{wrapper}'.*replace\('{wrapper}'"):
        load_checkpoint(tmp_path)


def test_quantised_weights_are_not_read_as_numbers(tmp_path):
    name = "bert.encoder.layer.0.output.dense."
    change_weights(
        save_model(tmp_path),
        lambda x: x | {f"{name}weight": x[f"{name}weight"].char(), f"{name}SCB": torch.ones(16)},
    )
    with pytest.raises(ValueError, match=rf"quantised weights \({name}SCB\)"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "deberta-v2"])
@pytest.mark.parametrize("attention", ["flash_attention_2", "org/kernels", "flex_attention"])
def test_attention_that_needs_a_package_is_replaced(architecture, attention, tmp_path):
    expected = TransformerEncoder(save_model(tmp_path, architecture)).transform(TEXTS)
    edit(tmp_path, attn_implementation=attention, _attn_implementation=attention)
    np.testing.assert_allclose(TransformerEncoder(tmp_path).transform(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("live", [False, True])
def test_a_language_is_needed(live, tmp_path):
    config = transformers.XmodConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=66, languages=("en_XX", "de_DE"),
    )  # fmt: skip
    pair = transformers.XmodForSequenceClassification(config), make_tokenizer("roberta")
    model = pair if live else save_pair(*pair, tmp_path)
    for use in (load_checkpoint, lambda model: TransformerEncoder(model).transform(TEXTS)):
        with pytest.raises(ValueError, match=r"language unknown.*set_default_language\("):
            use(model)
    pair[0].set_default_language("de_DE")
    if not live:
        edit(tmp_path, default_language="de_DE")
    load_checkpoint(model)


@pytest.mark.parametrize("name", ["T5Tokenizer", "XLMTokenizer", "CpmTokenizer"])
def test_a_package_that_the_tokenizer_needs_is_named(name, tmp_path):
    packages = {"T5Tokenizer": "sentencepiece", "XLMTokenizer": "sacremoses"}
    package = packages.get(name, "sentencepiece")
    if find_spec(package):
        pytest.skip(f"{package} is installed")
    (save_model(tmp_path) / "tokenizer.json").unlink()
    edit(tmp_path, "tokenizer_config.json", tokenizer_class=name)
    (tmp_path / "spiece.model").write_bytes(b"\n\x0f")
    with pytest.raises(ImportError, match=rf"(?i)tokenizer needs a package, .*{package}"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizer", "GPT2Tokenizer"])
def test_a_tokenizer_without_its_vocabulary_is_refused(name, tmp_path):
    (save_model(tmp_path) / "tokenizer.json").unlink()
    edit(tmp_path, "tokenizer_config.json", tokenizer_class=name)
    with pytest.raises(FileNotFoundError, match="its vocabulary is missing"):
        TransformerEncoder(tmp_path).transform(TEXTS)


@pytest.mark.parametrize("source", ["folder", "onnx", "live"])
@pytest.mark.parametrize("n_added", [16, 17, 30])
def test_tokens_beyond_the_table_are_found_at_loading(source, n_added, tmp_path):
    folder, tokenizer = save_model(tmp_path / "model", num_hidden_layers=1), make_tokenizer()
    tokenizer.add_tokens(ADDED[:n_added])
    tokenizer.save_pretrained(folder)
    model = folder
    if source == "live":
        network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        model = network, make_tokenizer()
        TransformerEncoder(model).transform(TEXTS)
        model[1].add_tokens(ADDED[:n_added])
    options = {"backend": "onnx", "cache": tmp_path / "c"} if source == "onnx" else {}
    encoder = TransformerEncoder(model, **options)
    if n_added == 16:
        assert encoder.transform(TEXTS).shape == (len(TEXTS), 16)
        return
    says = rf"for 40 tokens, but the tokenizer has {24 + n_added}, from 'added16' with id 40 on"
    with pytest.raises(ValueError, match=rf"{says}.*resize_token_embeddings\({24 + n_added}\)"):
        encoder.transform(TEXTS)


def test_all_models_are_loaded_though_a_table_is_larger(shared, tmp_path):
    for folder in sorted((shared / "models").iterdir()):
        assert len(TransformerEncoder(folder, max_length=16).transform(TEXTS)) == len(TEXTS)
    edit(shutil.copytree(save_model(tmp_path / "a"), tmp_path / "b"), architectures=None)
    TransformerEncoder(tmp_path / "b").transform(TEXTS)

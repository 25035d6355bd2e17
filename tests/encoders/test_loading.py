"""Checkpoints that cannot be loaded are refused with their cause and a way out that helps."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from tests.encoders.changes import change_weights, edit
from tests.tiny_models import TEXTS, make_tokenizer, save_model

ADDED = [f"added{i}" for i in range(30)]  # the tables have 40 rows, the tokenizer 24 tokens
OUTPUT = "bert.encoder.layer.0.output.dense."
KINDS = ["AutoModel", "AutoModelForSequenceClassification"]


def embed(model, **options):
    return TransformerEncoder(model, **options).transform(TEXTS)


def entries(**changes):
    return lambda folder: edit(folder, **changes)


def weights(change):
    return lambda folder: change_weights(folder, change)


def renamed(old, new):
    return weights(lambda x: {name.replace(old, new): w for name, w in x.items()})


def without(part):
    return weights(lambda x: {name: w for name, w in x.items() if part not in name})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (entries(id2label={"0": "a"}, label2id={"a": 0}), r"classifier.bias .*\(3,\).*id2label"),
        (entries(vocab_size=39), r"word_embeddings.weight .*\(40, 16\).*\(39, 16\)"),
        (entries(model_type="foobert"), "model type `foobert`"),
        (entries(quantization_config={"quant_method": "gptq"}), "quant_method='gptq'"),
        (entries(num_hidden_layers=1), "weights bert.encoder.layer.1.*num_hidden_layers=1"),
        (without("classifier"), "no weights for classifier.bias, classifier.weight"),
        (without("layer.1."), r"no weights for bert\.encoder\.layer\.1"),
        (renamed(".attention.", "._orig_mod.attention."), "contain '_orig_mod.'"),
        (weights(lambda x: {f"a.module.{k}": w for k, w in x.items()}), "contain 'a.module.'"),
        (weights(lambda x: x | {f"{OUTPUT}SCB": torch.ones(16)}), f"quantised .*{OUTPUT}SCB"),
        (weights(lambda x: {k: w / 0 for k, w in x.items()}), "NaN or infinite"),
    ],
)
def test_what_does_not_fit_is_named(change, says, tmp_path):
    change(save_model(tmp_path))
    with pytest.raises(ValueError, match=says):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "fits"),
    [
        (KINDS[0], "embeddings.position_ids", True),
        (KINDS[0], "pooler.dense.extra", True),
        (KINDS[0], "encoder.layer.0.attention.self.distance_embedding.weight", False),
        (KINDS[1], "bert.encoder.adapter.weight", False),
    ],
)
def test_other_weights_of_the_base_model_are_named(kind, name, fits, tmp_path):
    expected = embed(save_model(tmp_path, kind=kind))
    change_weights(tmp_path, lambda given: given | {name: torch.ones(2)})
    if fits:
        np.testing.assert_array_equal(embed(tmp_path), expected)
    else:
        with pytest.raises(ValueError, match=f"has the weights {name}"):
            embed(tmp_path)


def test_a_live_model_may_return_tuples_but_not_hold_infinity(live):
    expected = embed(live)
    live[0].config.return_dict = False
    np.testing.assert_array_equal(load_checkpoint(live)[0].transform(TEXTS), expected)
    assert embed(live, pooling="mean", layer=1).shape == (8, 16)
    assert live[0].config.return_dict is False
    with torch.no_grad():
        live[0].classifier.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match=r"infinite .*\(classifier.weight\)"):
        embed(live)


@pytest.mark.parametrize("attention", ["flash_attention_2", "org/kernels"])
def test_attention_that_needs_a_package_is_replaced(attention, tmp_path):
    expected = embed(save_model(tmp_path))
    edit(tmp_path, attn_implementation=attention, _attn_implementation=attention)
    np.testing.assert_allclose(embed(tmp_path), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("T5Tokenizer", ImportError, "sentencepiece"),
        ("XLMTokenizer", ImportError, "sacremoses"),
        ("BertTokenizer", FileNotFoundError, "vocabulary"),
    ],
)
def test_what_the_tokenizer_needs_is_named(name, error, says, tmp_path):
    if find_spec(says):
        pytest.skip(f"{says} is installed")
    (save_model(tmp_path) / "tokenizer.json").unlink()
    edit(tmp_path, "tokenizer_config.json", tokenizer_class=name)
    (tmp_path / "spiece.model").write_bytes(b"\n\x0f")
    with pytest.raises(error, match=f"(?i){says}"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("source", ["folder", "onnx", "live"])
def test_tokens_beyond_the_table_are_found_at_loading(source, tmp_path):
    folder, tokenizer = save_model(tmp_path / "model", num_hidden_layers=1), make_tokenizer()
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model = (network, tokenizer) if source == "live" else folder
    options = {"backend": "onnx", "cache": tmp_path / "c"} if source == "onnx" else {}
    tokenizer.add_tokens(ADDED[:16])
    tokenizer.save_pretrained(folder)
    if source != "onnx":
        assert embed(model).shape == (len(TEXTS), 16)
    tokenizer.add_tokens(ADDED[:17])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="'added16' with id 40"):
        embed(model, **options)

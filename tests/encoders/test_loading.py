"""Checkpoints that cannot be loaded are refused with their cause and a way out that helps."""

import numpy as np
import pytest
import torch
import transformers

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from tests.encoders.changes import change_weights, edit
from tests.refusals import refusals
from tests.tiny_models import TEXTS, make_tokenizer, save_model

ADDED = [f"added{i}" for i in range(30)]  # the tables have 40 rows, the tokenizer 24 tokens
OUTPUT = "bert.encoder.layer.0.output.dense."


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


test_what_does_not_fit_is_named = refusals(
    (entries(id2label={"0": "a"}, label2id={"a": 0}), r"classifier.bias .*\(3,\).*id2label"),
    (without("classifier"), "no weights for classifier.bias, classifier.weight"),
    (renamed(".attention.", "._orig_mod.attention."), "no weights for .*_orig_mod"),
    (weights(lambda x: x | {f"{OUTPUT}SCB": torch.ones(16)}), f"quantised .*{OUTPUT}SCB"),
    (weights(lambda x: {k: w / 0 for k, w in x.items()}), "NaN or infinite"),
    call=lambda change, tmp_path_factory: load_checkpoint(
        change(save_model(tmp_path_factory.mktemp("model")))
    ),
)


def test_positions_that_older_versions_stored_do_not_matter(tmp_path):
    expected = embed(save_model(tmp_path))
    change_weights(tmp_path, lambda x: x | {"bert.embeddings.position_ids": torch.ones(2)})
    np.testing.assert_array_equal(embed(tmp_path), expected)


def test_attention_that_needs_a_package_is_replaced(tmp_path):
    expected, attention = embed(save_model(tmp_path)), "flash_attention_2"
    edit(tmp_path, attn_implementation=attention, _attn_implementation=attention)
    np.testing.assert_allclose(embed(tmp_path), expected, atol=1e-5)


@pytest.mark.parametrize("source", ["folder", "live"])
def test_tokens_beyond_the_table_are_found_at_loading(source, tmp_path):
    folder, tokenizer = save_model(tmp_path / "model", num_hidden_layers=1), make_tokenizer()
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    model = (network, tokenizer) if source == "live" else folder
    tokenizer.add_tokens(ADDED[:16])
    tokenizer.save_pretrained(folder)
    assert embed(model).shape == (len(TEXTS), 16)
    tokenizer.add_tokens(ADDED[:17])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="'added16' with id 40"):
        embed(model)

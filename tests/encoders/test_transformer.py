"""TransformerEncoder: pooling, batches, lengths, the scikit-learn interface and live models."""

import pickle
import random

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from isoadapt.encoders import TransformerEncoder, _opened, load_checkpoint
from tests.refusals import refusals
from tests.tiny_models import PAIRS, TEXTS, make_tokenizer, save_model

POOLS = {"cls": lambda h: h[0], "mean": lambda h: h.mean(0), "max": lambda h: h.max(0)}
LONG = [" ".join(["cat"] * 30 + ["dog"] * 200), "a dog"]


def embed(model, inputs=TEXTS, **options):
    return TransformerEncoder(model, **options).transform(inputs)


@pytest.mark.parametrize("pooling", POOLS)
def test_pooling_reads_the_layer_that_is_asked_for(checkpoint, pooling):
    model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():  # each text alone, without padding
        encoded = [make_tokenizer()([text], return_tensors="pt") for text in TEXTS]
        outputs = [model(**tokens, output_hidden_states=True).hidden_states for tokens in encoded]
    for layer in (-1, 0, 1, 2, -3):
        expected = [POOLS[pooling](states[layer][0].numpy()) for states in outputs]
        got = embed(checkpoint, pooling=pooling, layer=layer)
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_auto_is_the_head_input_or_the_mean(checkpoint, bare):
    np.testing.assert_array_equal(embed(checkpoint), embed(checkpoint, pooling="head_input"))
    np.testing.assert_array_equal(embed(bare), embed(bare, pooling="mean"))
    assert not np.allclose(embed(checkpoint), embed(checkpoint, pooling="mean"))


@pytest.mark.parametrize(
    ("batch_tokens", "inputs", "side"), [(30, TEXTS, "left"), (10_000, PAIRS, "right")]
)
def test_batches_do_not_matter(live, batch_tokens, inputs, side):
    live[1].padding_side = side
    encoder = TransformerEncoder(live, pooling="mean", batch_tokens=batch_tokens)
    alone = np.concatenate([encoder.transform([item]) for item in inputs])
    np.testing.assert_allclose(encoder.transform(inputs), alone, atol=1e-5)


def test_equal_inputs_are_encoded_once(live, spy):
    embed(live, PAIRS)  # the probe for padding runs here
    rows = spy(_opened, "embed_batch", lambda *args: len(args[2]["input_ids"]))
    got = embed(live, PAIRS * 3)
    assert sum(rows) == len(set(PAIRS))
    np.testing.assert_array_equal(got[:8], got[8:16])


@pytest.mark.parametrize(("architecture", "positions"), [("bert", 64), ("roberta", 66)])
def test_length_is_what_the_model_has(architecture, positions, tmp_path):
    save_model(tmp_path, architecture, max_position_embeddings=positions)
    longest = embed(tmp_path, LONG)
    np.testing.assert_array_equal(longest, embed(tmp_path, LONG, max_length=64))
    assert not np.allclose(longest[0], embed(tmp_path, LONG, max_length=63)[0], atol=1e-6)
    with pytest.raises(ValueError, match="max_length=65"):
        embed(tmp_path, LONG, max_length=65)
    make_tokenizer(architecture, model_max_length=8.0).save_pretrained(tmp_path)
    np.testing.assert_array_equal(embed(tmp_path, LONG), embed(tmp_path, LONG, max_length=8))


def test_half_precision_computes_in_it_and_returns_float32(checkpoint):
    full, half = embed(checkpoint), embed(checkpoint, dtype="bfloat16")
    assert half.dtype == full.dtype == np.float32
    assert 1e-4 < np.abs(half - full).max() < 0.1


# scikit-learn


def test_the_scikit_learn_interface(checkpoint):
    encoder = TransformerEncoder(checkpoint, max_length=20)
    copy = clone(encoder)
    assert copy is not encoder
    assert copy.get_params() == encoder.get_params()
    assert encoder.get_feature_names_out().tolist() == [f"transformerencoder{i}" for i in range(16)]
    assert not encoder.__sklearn_tags__().requires_fit
    assert encoder.__sklearn_tags__().input_tags.string
    assert encoder.fit(TEXTS) is encoder
    plain = encoder.transform(TEXTS)
    assert len(pickle.dumps(encoder)) < 2_000
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(TEXTS), plain)
    series = pd.Series(TEXTS, index=list("abcdefgh"))
    frame = clone(encoder.set_output(transform="pandas")).transform(series)
    assert frame.columns[1] == "transformerencoder1"
    assert frame.index.tolist() == list("abcdefgh")
    np.testing.assert_array_equal(frame.to_numpy(), plain)
    nonsense = TransformerEncoder("no/such/folder", pooling="nonsense", max_length=-1)
    assert clone(nonsense).pooling == "nonsense"  # nothing happens before use


test_parameters_are_checked_on_use = refusals(
    ({"pooling": "median"}, "'pooling'"),
    ({"layer": 3, "pooling": "cls"}, "layer=3"),
    ({"layer": -4, "pooling": "cls"}, "layer=-4"),
    ({"layer": 1}, "layer=1"),
    ({"max_length": 2}, "max_length=2"),
    ({"device": "gpu"}, "device='gpu'"),
    ({"cache": ""}, "cache=''"),
    ({"dtype": "int8"}, "'dtype'"),
    call=lambda params, checkpoint: embed(checkpoint, **params),
)


# Live models


def test_live_model_stays_where_and_what_it_is(live):
    for name, value in {"dtype": "bfloat16", "device": "meta", "cache": "c"}.items():
        with pytest.raises(ValueError, match=name):
            embed(live, **{name: value})
    with pytest.raises(pickle.PicklingError, match="live model"):
        pickle.dumps(TransformerEncoder(live))


def test_live_model_is_shared_by_clones_and_never_changed(live, checkpoint):
    model = live[0].train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    names = {name: set(vars(part)) for name, part in model.named_modules()}
    encoder = clone(make_pipeline(TransformerEncoder(live)))[0]
    assert encoder.model[0] is model
    before = encoder.transform(TEXTS)
    np.testing.assert_array_equal(before, embed(checkpoint))
    np.testing.assert_array_equal(*(load_checkpoint(each)[1].coef_ for each in (live, checkpoint)))
    clone(encoder).set_params(pooling="mean", layer=1).transform(TEXTS)
    assert all(part.training for part in model.modules())
    assert {name: set(vars(part)) for name, part in model.named_modules()} == names
    assert not any(part._forward_hooks for part in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model(input_ids=torch.tensor([[0, 5, 2]]), labels=torch.tensor([1])).loss.backward()
    with torch.no_grad():
        model.bert.pooler.dense.bias.add_(1.0)
    assert not np.allclose(before, encoder.transform(TEXTS))


# Effects on the process


def test_global_generators_are_untouched_and_nothing_is_printed(checkpoint, capfd):
    before = random.getstate(), torch.get_rng_state().tolist()
    load_checkpoint(checkpoint, verbose=1)[0].transform(TEXTS)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert capfd.readouterr() == ("", "")

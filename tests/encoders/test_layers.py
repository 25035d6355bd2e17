"""The layer report, compared with metrics of all tokens in memory; batches, limits and output."""

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from isoadapt import metrics
from isoadapt.encoders import TransformerEncoder, layer_report
from tests.refusals import refusals
from tests.small_blocks import small_blocks
from tests.tiny_models import PAIRS, TEXTS, make_model, make_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.* different texts are")
CORPUS = [f"{one} {other}" for one in TEXTS for other in TEXTS[:4]]


def live_model(architecture="bert"):
    return make_model(architecture), make_tokenizer(architecture)


def token_states(model, tokenizer, texts):
    """Hidden states of every token, without padding, one array (n, d) a layer, and their texts."""
    parts = []
    for text in texts:
        encoded = tokenizer(*([each] for each in np.atleast_1d(text)), return_tensors="pt")
        with torch.inference_mode():
            output = model.base_model(**encoded, output_hidden_states=True)
        parts.append([states[0].double().numpy() for states in output.hidden_states])
    owners = np.repeat(np.arange(len(parts)), [len(layers[0]) for layers in parts])
    return [np.concatenate(layer) for layer in zip(*parts, strict=True)], owners


def reference(X, owners):
    distinct = X[np.unique(np.round(X, 4), axis=0, return_index=True)[1]]
    return {
        "n_tokens": len(X),
        "isoscore": metrics.isoscore(X),
        "isoscore_corrected": metrics.isoscore(X, bias_corrected=True, groups=owners),
        "ev1": metrics.cumulative_explained_variance(X, k=1),
        "ev2": metrics.cumulative_explained_variance(X, k=2),
        "ev3": metrics.cumulative_explained_variance(X, k=3),
        "anisotropy1": metrics.anisotropy(X, k=1),
        "mean_cosine": metrics.mean_cosine_similarity(X),
        "two_nn": metrics.two_nn(distinct),
    }


def assert_same(report, other, tolerance=1e-5):
    assert_frame_equal(report, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("architecture", "texts"),  # a decoder's tokenizer gives no tokens for ""
    [("bert", PAIRS), ("xlnet", TEXTS), ("gpt2", [text for text in TEXTS if text])],
)
def test_figures_are_those_of_all_tokens_in_memory(architecture, texts):
    live = live_model(architecture)
    report = layer_report(live, texts)
    layers, owners = token_states(*live, texts)
    index = pd.RangeIndex(3, name="layer")
    wanted = pd.DataFrame([reference(X, owners) for X in layers], index)
    assert_frame_equal(report, wanted, atol=1e-5, rtol=1e-4)
    assert report.attrs == {"n_texts": len(texts), "n_features": 16}


@pytest.mark.parametrize(("architecture", "batch_tokens"), [("bert", 40), ("fnet", 1)])
def test_neither_batches_nor_padding_matter(architecture, batch_tokens):
    """All texts have the same beginning, whose tokens differ by rounding between batches."""
    texts, live = ["the cat sat on " + text for text in CORPUS], live_model(architecture)
    wanted = layer_report(live, texts, two_nn_tokens=100)
    encoder = TransformerEncoder(live, batch_tokens=batch_tokens)
    assert_same(layer_report(encoder, texts, two_nn_tokens=100), wanted, 1e-4)


def test_settings_of_the_encoder_are_used(checkpoint):
    report = layer_report(TransformerEncoder(checkpoint, max_length=4), TEXTS)
    lengths = [len(make_tokenizer()(text)["input_ids"]) for text in TEXTS]
    assert report.loc[0, "n_tokens"] == sum(min(4, n) for n in lengths)
    whole = layer_report(str(checkpoint), TEXTS)
    assert_same(layer_report(TransformerEncoder(checkpoint, pooling="cls"), TEXTS), whole)


# Limits


@pytest.mark.parametrize("block", [1, 3])
def test_max_tokens_is_filled_with_whole_texts_in_order(block):
    live = live_model()
    ends = np.cumsum([len(live[1](text)["input_ids"]) for text in TEXTS])
    for max_tokens in (ends[0], ends[2] - 1, ends[2], 10**6):
        n_texts = int((ends <= max_tokens).sum())
        with small_blocks(layers=block):
            report = layer_report(live, TEXTS, max_tokens=int(max_tokens))
        assert (report.attrs["n_texts"], report.loc[0, "n_tokens"]) == (n_texts, ends[n_texts - 1])
        assert_same(report, layer_report(live, TEXTS[:n_texts]))


@pytest.mark.filterwarnings("default:.* different texts are")
def test_texts_with_equal_tokens_count_once():
    live = live_model()  # which knows no lions and no zebras
    with pytest.warns(UserWarning, match="1 different texts are fewer than 48"):
        layer_report(live, ["a lion", "a zebra"])
    lions, zebras = ([f"{text} {animal}" for text in CORPUS] for animal in ("lion", "zebra"))
    both = layer_report(live, [*lions, *zebras])
    wanted = layer_report(live, lions)["isoscore_corrected"]
    np.testing.assert_allclose(both["isoscore_corrected"], wanted, atol=1e-5)


def test_figures_that_are_not_defined_are_nan():
    three = layer_report(live_model("gpt2"), ["the cat sat"]).loc[1]
    assert three[["isoscore_corrected", "two_nn"]].isna().all()
    assert 0 <= three["isoscore"] <= 1
    model, tokenizer = live_model("gpt2")
    for table in (model.transformer.wte, model.transformer.wpe):
        table.weight.data[:] = table.weight.data[:1]
    constant = layer_report((model, tokenizer), TEXTS)
    assert constant[["isoscore", "ev1", "two_nn"]].isna().all(axis=None)
    np.testing.assert_allclose(constant["mean_cosine"], 1, atol=1e-6)


test_bad_parameters_are_refused = refusals(
    ({"max_tokens": 7}, "max_tokens=7"),
    ({"two_nn_tokens": 3}, "two_nn_tokens"),
    ({"texts": "one text"}, "X is a str; pass a list"),
    call=lambda given: layer_report(**{"model": live_model(), "texts": TEXTS} | given),
    errors=(TypeError, ValueError),
)

"""Several poolings side by side from one forward pass, and pooling="readout"."""

import numpy as np
import pytest
import transformers

from isoadapt.encoders import TransformerEncoder, load_checkpoint
from isoadapt.encoders._backbone import Backbone
from tests.encoders.test_architectures import ALL
from tests.tiny_models import PAIRS, TEXTS, make_model, make_tokenizer, mostly_slow

PARTS = [("head_input", -1), ("mean", 0), ("mean", -1), ("cls", 1)]
QUICK = ("bert", "xlnet", "bart")


def vectors(model, pooling, layer=-1, **options):
    return TransformerEncoder(model, pooling=pooling, layer=layer, **options).transform(TEXTS)


@pytest.mark.parametrize("architecture", mostly_slow(ALL, QUICK))
def test_columns_are_those_of_single_poolings(architecture):
    live = make_model(architecture), make_tokenizer(architecture)
    together = vectors(live, PARTS, max_length=60)
    single = [vectors(live, pooling, layer, max_length=60) for pooling, layer in PARTS]
    # Longformer's classifier has global attention on the first token, its base model has not.
    n = single[0].shape[1] if architecture == "longformer" else None
    np.testing.assert_allclose(together[:, :n], np.hstack(single)[:, :n], atol=1e-5)
    alone = TransformerEncoder(live, pooling=PARTS, max_length=60)
    for text, row in zip(TEXTS[:2], together, strict=False):
        np.testing.assert_allclose(alone.transform([text])[0], row, atol=1e-4)


def test_the_model_runs_once_for_each_batch(live, spy):
    calls = spy(transformers.BertModel, "forward")
    encoder = TransformerEncoder(live, pooling="readout")
    encoder.transform(TEXTS)  # the probes for padding run here
    calls.clear()
    encoder.transform(TEXTS)
    assert len(calls) == 1


def test_readout_of_a_classifier_begins_with_the_input_of_its_head(checkpoint):
    encoder, head = load_checkpoint(checkpoint, pooling="readout")
    own, _ = load_checkpoint(checkpoint)
    X = encoder.transform(PAIRS)
    assert X.shape == (len(PAIRS), 16 * 5)
    np.testing.assert_allclose(X[:, : head.n_features_in_], own.transform(PAIRS), atol=1e-6)
    names = encoder.get_feature_names_out().tolist()
    stems = ["head_input", "layer2_mean", "layer1_mean", "layer0_mean", "layer2_cls"]
    assert names == [f"{stem}_{i}" for stem in stems for i in range(16)]
    assert encoder.set_output(transform="pandas").transform(TEXTS).columns.tolist() == names


@pytest.mark.parametrize(
    ("n", "width", "head", "expected"),
    [
        (6, 384, True, ["head_input", "6mean", "4mean", "0mean", "6cls", "2mean"]),
        (12, 768, True, ["head_input", "12mean", "8mean", "0mean", "12cls"]),
        (28, 5120, True, ["head_input", "28mean"]),
        (3, 384, False, ["3mean", "2mean", "0mean", "3cls", "1mean"]),
    ],
)
def test_readout_takes_what_fits_into_its_columns(n, width, head, expected):
    config = transformers.BertConfig(num_hidden_layers=n, hidden_size=width)
    model = type("Model", (), {"config": config})
    linear = type("Linear", (), {"in_features": width}) if head else None
    pooling = Backbone(model, None, linear).pooling("readout")
    found = [mode if mode == "head_input" else f"{i}{mode}" for mode, i in pooling.parts]
    assert found == expected


def test_a_model_without_a_head_gives_hidden_states(bare, live):
    assert vectors(bare, "readout").shape == (len(TEXTS), 16 * 4)
    for model, pooling in ((bare, "readout"), (live, [("mean", 1)])):
        with pytest.raises(ValueError, match="pooling="):
            load_checkpoint(model, pooling=pooling)


@pytest.mark.parametrize(
    ("pooling", "layer"),
    [
        ([], -1),
        (["mean"], -1),
        ([("mean", 1.5)], -1),
        ([("mean", 3)], -1),  # there are two layers
        ("readout", 1),
    ],
)
def test_wrong_lists_are_refused(live, pooling, layer):
    with pytest.raises(ValueError, match=r"pooling=|layer="):
        vectors(live, pooling, layer)

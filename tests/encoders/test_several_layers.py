"""Several poolings side by side from one forward pass, and pooling="readout"."""

import joblib
import numpy as np
import pytest
import transformers
from sklearn.base import clone

from isoadapt.encoders import EmbeddingCache, TransformerEncoder, load_checkpoint
from isoadapt.encoders._backbone import Backbone
from isoadapt.encoders._identity import recorded_pooling, vector_source
from tests.encoders.test_architectures import ALL, QUICK
from tests.tiny_models import PAIRS, TEXTS, make_model, make_tokenizer

PARTS = [("head_input", -1), ("mean", 0), ("mean", -1), ("cls", 1)]


def vectors(model, pooling, layer=-1, **options):
    return TransformerEncoder(model, pooling=pooling, layer=layer, **options).transform(TEXTS)


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL],
)
def test_columns_are_those_of_single_poolings(architecture):
    live = make_model(architecture), make_tokenizer(architecture)
    together = vectors(live, PARTS, max_length=60)
    single = [vectors(live, pooling, layer, max_length=60) for pooling, layer in PARTS]
    # Longformer's classifier has global attention on the first token, its base model has not.
    n = single[0].shape[1] if architecture == "longformer" else None
    np.testing.assert_allclose(together[:, :n], np.hstack(single)[:, :n], atol=1e-5)
    alone = TransformerEncoder(live, pooling=PARTS, max_length=60)
    for text, row in zip(TEXTS[:4], together, strict=False):
        np.testing.assert_allclose(alone.transform([text])[0], row, atol=1e-4)


def test_the_model_runs_once_for_each_batch(live, monkeypatch):
    calls = []
    forward = transformers.BertModel.forward
    monkeypatch.setattr(
        transformers.BertModel, "forward", lambda *a, **k: calls.append(0) or forward(*a, **k)
    )
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
    names = encoder.get_feature_names_out()
    assert list(names[::16]) == [
        "head_input_0",
        "layer2_mean_0",
        "layer1_mean_0",
        "layer0_mean_0",
        "layer2_cls_0",
    ]
    assert names[-1] == "layer2_cls_15"
    assert encoder.set_output(transform="pandas").transform(TEXTS).columns.tolist() == list(names)


@pytest.mark.parametrize(
    ("n", "width", "head", "expected"),
    [
        (6, 384, True, ["head_input", "6mean", "4mean", "0mean", "6cls", "2mean"]),
        (12, 768, True, ["head_input", "12mean", "8mean", "0mean", "12cls"]),
        (24, 1024, True, ["head_input", "24mean", "16mean", "0mean"]),
        (28, 5120, True, ["head_input", "28mean"]),
        (3, 384, False, ["3mean", "2mean", "0mean", "3cls", "1mean"]),
        (1, 16, True, ["head_input", "1mean", "0mean", "1cls"]),
    ],
)
def test_readout_takes_what_fits_into_its_columns(n, width, head, expected):
    config = transformers.BertConfig(num_hidden_layers=n, hidden_size=width)
    model = type("Model", (), {"config": config})
    linear = type("Linear", (), {"in_features": width}) if head else None
    pooling = Backbone(model, None, linear).pooling("readout")
    found = [mode if mode == "head_input" else f"{i}{mode}" for mode, i in pooling.parts]
    assert found == expected


def test_each_list_of_poolings_has_its_own_entries_in_the_cache(tmp_path, checkpoint):
    cache = EmbeddingCache(tmp_path)
    for pooling in ("readout", PARTS, [*PARTS, ("max", 2)], "auto"):
        first = vectors(checkpoint, pooling, cache=cache)
        np.testing.assert_array_equal(vectors(checkpoint, pooling, cache=cache), first)
        np.testing.assert_array_equal(vectors(checkpoint, pooling), first)
    assert cache.stats().misses == 4 * len(set(TEXTS))


@pytest.mark.slow
def test_onnx_runtime_computes_the_same_columns(tmp_path, checkpoint):
    pytest.importorskip("onnxruntime")
    found = vectors(checkpoint, "readout", backend="onnx", cache=tmp_path)
    np.testing.assert_allclose(found, vectors(checkpoint, "readout"), atol=1e-5)


def test_lists_survive_clone_and_pickle(tmp_path, checkpoint):
    encoder = TransformerEncoder(checkpoint, pooling=PARTS)
    joblib.dump(clone(encoder), tmp_path / "encoder.joblib")
    loaded = joblib.load(tmp_path / "encoder.joblib")
    assert loaded.pooling == PARTS
    np.testing.assert_array_equal(loaded.transform(TEXTS), encoder.transform(TEXTS))


def test_a_model_without_a_head_gives_hidden_states(bare_checkpoint):
    assert vectors(bare_checkpoint, "readout").shape == (len(TEXTS), 16 * 4)
    with pytest.raises(ValueError, match="BertModel has no classifier head"):
        vectors((make_model(kind="AutoModel"), make_tokenizer()), PARTS)
    with pytest.raises(ValueError, match="does not begin with the input of a classifier head"):
        load_checkpoint(bare_checkpoint, pooling="readout")


@pytest.mark.parametrize(
    "pooling",
    [
        [],
        ["mean"],
        [("mean",)],
        [("head_input", 1)],
        [("sum", 1)],
        [("mean", 1.5)],
        [("cls", "1")],
        [("mean", 0), ("head_input", -1)],
        [("head_input", -1), ("head_input", -1)],
    ],
)
def test_wrong_lists_are_refused(live, pooling):
    with pytest.raises(ValueError, match=r"a list must hold pairs .* the first may be"):
        vectors(live, pooling)


def test_layers_that_do_not_exist_or_are_given_twice_are_refused(live):
    with pytest.raises(ValueError, match=r"layer=3: the model has 2 layers; choose from 0"):
        vectors(live, [("mean", 3)])
    with pytest.raises(ValueError, match=r"layer=1 was given, but pooling='readout' chooses"):
        vectors(live, "readout", layer=1)
    with pytest.raises(ValueError, match="does not begin with the input"):
        load_checkpoint(live, pooling=[("mean", 1)])


@pytest.mark.parametrize("pooling", ["readout", PARTS, [("mean", -1)]])
def test_a_record_names_the_poolings_of_its_vectors(checkpoint, pooling):
    kind = vector_source(TransformerEncoder(checkpoint, pooling=pooling)).kind
    found = recorded_pooling(kind)
    assert vector_source(TransformerEncoder(checkpoint, pooling=found)).kind == kind
    np.testing.assert_array_equal(vectors(checkpoint, found), vectors(checkpoint, pooling))


@pytest.mark.parametrize("kind", [None, "pooling='head_input'", "pooling='cls+mean', layer=-1"])
def test_other_records_name_no_list(kind):
    assert recorded_pooling(kind) == "auto"


@pytest.mark.parametrize("pooling", ["readout", PARTS])
def test_the_recorded_kind_is_what_the_encoder_accepts(checkpoint, pooling):
    kind = vector_source(TransformerEncoder(checkpoint, pooling=pooling)).kind
    again = eval(f"TransformerEncoder(checkpoint, {kind})")  # as messages and model cards have it
    np.testing.assert_array_equal(again.transform(TEXTS), vectors(checkpoint, pooling))

"""Pipelines in adapter folders: what merge_into_checkpoint takes, save_adapter takes too."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import (
    AdaptedEncoder,
    AllButTheTop,
    IStarAdapter,
    LogitPreservingWhitening,
    PenaltyAdapter,
    TransformerEncoder,
    Whitening,
)
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.interop._folder import read_config
from isoadapt.losses import CosRegLoss
from tests.interop.examples import HEAD, LABELS, X
from tests.tiny_models import TEXTS, save_model

PIPELINES = {
    "one": make_pipeline(Whitening(shrinkage=0.1)),
    "two": make_pipeline(AllButTheTop(1), IStarAdapter(HEAD, max_epochs=1, random_state=0)),
    "head": make_pipeline(Whitening(), LogisticRegression()),
    "nested": Pipeline(
        [
            ("inner", make_pipeline(Whitening(n_components=3), "passthrough")),
            ("after", LogitPreservingWhitening("logistic")),
        ]
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_of_adapters(name, tmp_path):
    pipeline = PIPELINES[name].fit(X, LABELS)
    loaded = load_adapter(save_adapter(pipeline, tmp_path / "a"))
    assert isinstance(loaded, Pipeline)
    if name == "head":
        np.testing.assert_allclose(loaded.predict_proba(X), pipeline.predict_proba(X))
        loaded, pipeline = loaded[:-1], pipeline[:-1]
    np.testing.assert_array_equal(loaded.transform(X), pipeline.transform(X))
    if hasattr(pipeline, "predict"):
        np.testing.assert_array_equal(loaded.predict(X), pipeline.predict(X))
    again = load_adapter(save_adapter(loaded, tmp_path / "b"))
    np.testing.assert_array_equal(again.transform(X), loaded.transform(X))


def test_a_pipeline_from_texts(checkpoint, tmp_path):
    encoder = TransformerEncoder(checkpoint, max_length=5, device="cpu", cache=tmp_path / "cache")
    labels = np.arange(len(TEXTS)) % 3
    pipeline = make_pipeline(encoder, Whitening(shrinkage=0.5)).fit(TEXTS, labels)
    folder = save_adapter(pipeline, tmp_path / "a")
    loaded = load_adapter(folder)
    assert loaded[0].max_length == 5
    assert loaded[0].cache is None
    np.testing.assert_array_equal(loaded.transform(TEXTS), pipeline.transform(TEXTS))
    card = (folder / "README.md").read_text()
    assert f"- Base model: {checkpoint}" in card
    assert 'load_adapter("path/to/this/folder").transform(texts)' in card
    merged = merge_into_checkpoint(loaded, checkpoint, tmp_path / "merged")
    assert (merged / "model.safetensors").is_file()


def test_an_adapted_encoder_predicts_as_before(checkpoint, tmp_path):
    model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(TEXTS)
    loaded = load_adapter(save_adapter(model, tmp_path / "a"))
    np.testing.assert_array_equal(loaded.transform(TEXTS), model.transform(TEXTS))
    np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))


def test_another_checkpoint_is_refused_when_the_adapters_are_merged(checkpoint, tmp_path):
    pipeline = make_pipeline(TransformerEncoder(checkpoint), Whitening(shrinkage=0.5)).fit(TEXTS)
    loaded = load_adapter(save_adapter(pipeline, tmp_path / "a"))
    other = save_model(tmp_path / "other", "distilbert")
    with pytest.raises(ValueError, match="another checkpoint"):
        merge_into_checkpoint(loaded[1:], other, tmp_path / "merged")


def test_the_same_adapter_alone_keeps_the_first_version_of_the_format(tmp_path):
    pipeline = make_pipeline(Whitening()).fit(X)
    assert read_config(save_adapter(pipeline[0], tmp_path / "a"))["format_version"] == 1
    assert read_config(save_adapter(pipeline, tmp_path / "b"))["format_version"] == 2


@pytest.mark.parametrize(
    ("pipeline", "error", "message"),
    [
        (
            make_pipeline(StandardScaler(), Whitening()),
            TypeError,
            r"StandardScaler\(\) is not an ad",
        ),
        (make_pipeline("passthrough"), TypeError, "Pipeline without an adapter"),
        (
            make_pipeline(Whitening(), PenaltyAdapter(CosRegLoss(), max_epochs=1)),
            TypeError,
            "its penalty is code",
        ),
    ],
)
def test_what_cannot_be_saved(pipeline, error, message, tmp_path):
    pipeline.fit(X, LABELS)
    with pytest.raises(error, match=message):
        save_adapter(pipeline, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_encoder_with_a_live_model_has_no_name(checkpoint, tmp_path):
    backbone = TransformerEncoder(checkpoint)._backbone()
    live = TransformerEncoder((backbone.model, backbone.tokenizer))
    pipeline = make_pipeline(live, Whitening(shrinkage=0.5)).fit(TEXTS)
    with pytest.raises(TypeError, match=r"pipeline\[1:\]"):
        save_adapter(pipeline, tmp_path / "a")
    save_adapter(pipeline[1:], tmp_path / "a", base_model=pipeline[0])


def test_the_encoder_is_the_base_model(checkpoint, tmp_path):
    pipeline = make_pipeline(TransformerEncoder(checkpoint), Whitening(shrinkage=0.5)).fit(TEXTS)
    with pytest.raises(ValueError, match="leave base_model out"):
        save_adapter(pipeline, tmp_path / "a", base_model="another")

"""Pipelines in adapter folders: what merge_into_checkpoint takes, save_adapter takes too."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

from isoadapt import (
    AdaptedEncoder,
    AllButTheTop,
    IStarAdapter,
    LogitPreservingWhitening,
    PenaltyAdapter,
    TransformerEncoder,
    Whitening,
)
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.interop._folder import read_config
from isoadapt.losses import CosRegLoss
from tests.interop.examples import HEAD, LABELS, X
from tests.tiny_models import TEXTS

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
@pytest.mark.usefixtures("fixed_penalty")
def test_a_pipeline_of_adapters(name, tmp_path):
    pipeline = PIPELINES[name].fit(X, LABELS)
    folder = save_adapter(pipeline, tmp_path / "a")
    assert read_config(folder)["format_version"] == 2
    loaded = load_adapter(folder)
    assert isinstance(loaded, Pipeline)
    if name == "head":
        np.testing.assert_allclose(loaded.predict_proba(X), pipeline.predict_proba(X))
        loaded, pipeline = loaded[:-1], pipeline[:-1]
    np.testing.assert_array_equal(loaded.transform(X), pipeline.transform(X))
    if hasattr(pipeline, "predict"):
        np.testing.assert_array_equal(loaded.predict(X), pipeline.predict(X))
    again = load_adapter(save_adapter(loaded, tmp_path / "b"))
    np.testing.assert_array_equal(again.transform(X), loaded.transform(X))


def test_a_pipeline_from_texts(shallow, tmp_path):
    encoder = TransformerEncoder(shallow, max_length=5, device="cpu", cache=tmp_path / "cache")
    model = AdaptedEncoder(encoder, LogitPreservingWhitening()).fit(TEXTS)
    folder = save_adapter(model, tmp_path / "a")
    loaded = load_adapter(folder)
    assert loaded[0].max_length == 5
    assert loaded[0].cache is None
    np.testing.assert_array_equal(loaded.transform(TEXTS), model.transform(TEXTS))
    np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))
    card = (folder / "README.md").read_text()
    assert f"- Base model: {shallow}" in card
    assert 'load_adapter("path/to/this/folder").transform(texts)' in card


PENALISED = PenaltyAdapter(CosRegLoss(), head=HEAD, max_epochs=1)
NARROW = Whitening("pca", n_components=3).fit(X)


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (make_pipeline("passthrough"), "Pipeline without an adapter"),
        (make_pipeline(Whitening().fit(X), PENALISED.fit(X, LABELS)), "penalty is code"),
        (make_pipeline(NARROW, Whitening().fit(X)), "takes 5 features, but receives 3"),
    ],
)
def test_what_cannot_be_saved(pipeline, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        save_adapter(pipeline, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_the_encoder_of_a_pipeline_is_its_base_model(shallow, tmp_path):
    pipeline = make_pipeline(TransformerEncoder(shallow), Whitening(shrinkage=0.5)).fit(TEXTS)
    with pytest.raises(ValueError, match="leave base_model out"):
        save_adapter(pipeline, tmp_path / "a", base_model="another")
    backbone = pipeline[0]._backbone()
    live = make_pipeline(TransformerEncoder((backbone.model, backbone.tokenizer)), pipeline[1])
    with pytest.raises(TypeError, match=r"pipeline\[1:\]"):  # a live model has no name
        save_adapter(live, tmp_path / "a")
    save_adapter(live[1:], tmp_path / "a", base_model=live[0])

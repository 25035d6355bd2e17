"""AdaptedEncoder, and text pipelines of any make."""

import joblib
import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    IsotropyLayer,
    LogitPreservingWhitening,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from tests.tiny_models import WORDS, save_model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))) for _ in range(60)]
    return texts, rng.integers(0, 3, 60)


def quick(**parameters):
    return IsotropyLayer(max_epochs=2, random_state=0, **parameters)


class TestAdaptedEncoder:
    def test_is_the_pipeline_of_its_parts(self, checkpoint, data):
        texts, y = data
        encoder, head = load_checkpoint(checkpoint)
        whole = AdaptedEncoder(checkpoint, quick()).fit(texts, y)
        layer = quick(head=head).fit(encoder.transform(texts), y)
        np.testing.assert_array_equal(
            whole.transform(texts), layer.transform(encoder.transform(texts))
        )
        np.testing.assert_array_equal(
            whole.predict_proba(texts), layer.predict_proba(encoder.transform(texts))
        )
        assert whole.score(texts, y) == layer.score(encoder.transform(texts), y)
        np.testing.assert_array_equal(whole.head_.coef_, head.coef_)
        assert list(whole.classes_) == [0, 1, 2]
        assert whole.decision_function(texts).shape == (60, 3)
        assert is_classifier(whole)

    def test_default_adapter_and_parameters_of_the_parts(self, checkpoint, data):
        model = AdaptedEncoder(str(checkpoint))
        model.set_params(encoder__max_length=5, adapter__alpha=0.3, adapter__max_epochs=1)
        assert isinstance(model.encoder, TransformerEncoder)
        assert (model.encoder.max_length, model.adapter.alpha) == (5, 0.3)
        fitted = model.fit(*data)
        assert fitted.pipeline_["encoder"].max_length == 5
        assert not hasattr(model.adapter, "map_")

    def test_own_head_of_the_adapter_rules(self, checkpoint, data):
        texts, _ = data
        _, head = load_checkpoint(checkpoint)
        other = type(head)(head.coef_ * 2, head.intercept_, ["a", "b", "c"])
        model = AdaptedEncoder(checkpoint, LogitPreservingWhitening(other)).fit(texts)
        assert set(model.predict(texts)) <= {"a", "b", "c"}

    def test_checkpoint_without_head_leaves_the_adapter_its_own(self, tmp_path, data):
        folder = save_model(tmp_path / "bare", kind="AutoModel")
        texts, y = data
        model = AdaptedEncoder(folder, quick()).fit(texts, y)
        assert model.score(texts, y) > 0.3
        bare = AdaptedEncoder(folder, Whitening()).fit(texts)
        assert bare.head_ is None
        assert not hasattr(bare, "predict")
        assert 0 < bare.score(texts) <= 1

    def test_without_labels_whitening_only_transforms(self, checkpoint, data):
        texts, _ = data
        model = AdaptedEncoder(checkpoint, Whitening()).fit(texts)
        assert model.transform(texts).shape == (60, 16)
        assert list(model.get_feature_names_out())[:1] == ["whitening0"]
        assert model.set_output(transform="pandas").transform(texts).shape == (60, 16)

    def test_clone_and_joblib(self, checkpoint, data, tmp_path):
        texts, y = data
        model = AdaptedEncoder(checkpoint, quick()).fit(texts, y)
        again = clone(model).fit(texts, y)
        np.testing.assert_array_equal(again.transform(texts), model.transform(texts))
        joblib.dump(model, tmp_path / "model.joblib")
        assert (tmp_path / "model.joblib").stat().st_size < 40_000
        loaded = joblib.load(tmp_path / "model.joblib")
        np.testing.assert_array_equal(loaded.predict(texts), model.predict(texts))

    def test_grid_search_over_both_parts(self, checkpoint, data):
        search = GridSearchCV(
            AdaptedEncoder(checkpoint, quick()),
            {"encoder__max_length": [4, 12], "adapter__alpha": [0.2, 1.0]},
            cv=2,
        ).fit(*data)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    def test_errors(self, checkpoint, data):
        texts, y = data
        with pytest.raises(ValueError, match="'encoder' parameter of AdaptedEncoder must be"):
            AdaptedEncoder(3).fit(texts, y)
        with pytest.raises(ValueError, match="labels unknown to the head"):
            AdaptedEncoder(checkpoint, quick()).fit(texts, y + 1)
        with pytest.raises(ValueError, match="requires y to be passed"):
            AdaptedEncoder(checkpoint, quick()).fit(texts)
        with pytest.raises(TypeError, match="None"):
            AdaptedEncoder(checkpoint, quick()).fit([*texts[:-1], None], y)


def test_text_pipeline_scores_are_the_same_for_any_number_of_jobs(checkpoint, data):
    encoder, head = load_checkpoint(checkpoint)
    pipeline = make_pipeline(encoder, quick(head=head))
    scores = [
        GridSearchCV(pipeline, {"isotropylayer__alpha": [0.2, 1.0]}, cv=2, n_jobs=n_jobs)
        .fit(*data)
        .cv_results_["mean_test_score"]
        for n_jobs in (1, 2)
    ]
    np.testing.assert_array_equal(*scores)


def test_class_names_survive_fine_tuning(checkpoint, data, tmp_path):
    from isoadapt.finetune import finetune_text_classifier

    texts, y = data
    names = np.array(["bad", "fair", "good"])[y]
    folder = finetune_text_classifier(
        checkpoint, texts, names, tmp_path / "named", epochs=1, max_length=16, random_state=0
    )
    model = AdaptedEncoder(folder, quick()).fit(texts, names)
    assert list(model.classes_) == ["bad", "fair", "good"]
    assert 0 <= model.score(texts, names) <= 1

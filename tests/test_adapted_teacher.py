"""AdaptedEncoder with a TeacherReadout: a classifier's pass learns another encoder's vectors."""

import os
import pickle
import shutil
import subprocess
import sys

import joblib
import numpy as np
import pytest
import transformers
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline

from isoadapt import (
    AdaptedEncoder,
    EmbeddingCache,
    LinearHead,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.model_selection import AdapterSearchCV
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_model

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))) for _ in range(120)]
Y = rng.integers(0, 3, 120)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The encoder that the classifier `checkpoint` is made of, without its head."""
    folder = tmp_path_factory.mktemp("teacher")
    make_model().bert.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def readout(head=None, **parameters):
    return TeacherReadout(head, **{"ridge": 0.01} | parameters)


@pytest.fixture(scope="module")
def model(checkpoint, teacher):
    return AdaptedEncoder(str(checkpoint), readout(), teacher=str(teacher)).fit(TEXTS)


class TestFit:
    def test_is_the_readout_of_its_parts(self, model, checkpoint, teacher):
        encoder, head = load_checkpoint(checkpoint, pooling="readout")
        X, T = encoder.transform(TEXTS), TransformerEncoder(teacher).transform(TEXTS)
        expected = readout(head).fit(X, T)
        np.testing.assert_array_equal(model.transform(TEXTS), expected.transform(X))
        assert model.pipeline_["adapter"].r2_ == expected.r2_ > 0.9
        auto = AdaptedEncoder(encoder, TeacherReadout(), teacher=teacher).fit(TEXTS)
        own = TeacherReadout().fit(X, T)
        np.testing.assert_array_equal(auto.transform(TEXTS), own.transform(X))
        cosines = np.sum(model.transform(TEXTS) * T, axis=1) / np.linalg.norm(T, axis=1)
        assert cosines.mean() > 0.95
        assert model.get_feature_names_out()[-1] == "teacherreadout15"
        assert model.set_output(transform="pandas").transform(TEXTS[:2]).shape == (2, 16)
        model.set_output(transform="default")

    @pytest.mark.parametrize("space", ["teacher", "head"])
    def test_predictions_are_those_of_the_checkpoint(self, space, checkpoint, teacher):
        encoder, head = load_checkpoint(checkpoint)
        h = encoder.transform(TEXTS)
        model = AdaptedEncoder(checkpoint, readout(space=space), teacher=teacher).fit(TEXTS)
        np.testing.assert_allclose(model.decision_function(TEXTS), head.outputs(h), atol=1e-5)
        np.testing.assert_array_equal(model.predict(TEXTS), head.predict(h))
        np.testing.assert_allclose(model.predict_proba(TEXTS), head.predict_proba(h), atol=1e-6)
        assert model.classes_.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("y", [Y, [f"kind {label}" for label in Y], np.eye(3)[Y]])
    def test_labels_are_not_needed_and_not_used(self, y, model, recwarn):
        labelled = clone(model).fit(TEXTS, y)
        np.testing.assert_array_equal(labelled.transform(TEXTS), model.transform(TEXTS))
        np.testing.assert_array_equal(labelled.head_.coef_, model.head_.coef_)
        assert not [each for each in recwarn if "label" in str(each.message)]

    def test_an_encoder_that_is_given_is_used_as_it_is(self, checkpoint, teacher):
        encoder = TransformerEncoder(checkpoint, pooling=[("head_input", -1), ("mean", 1)])
        model = AdaptedEncoder(encoder, readout(), teacher=teacher).fit(TEXTS)
        assert model.pipeline_["adapter"].n_features_in_ == 32
        assert model.head_ is not None
        encoder = TransformerEncoder(checkpoint, pooling="mean")
        model = AdaptedEncoder(encoder, readout(), teacher=teacher).fit(TEXTS)
        assert model.head_ is None
        assert not hasattr(model, "predict")
        assert not is_classifier(model)

    def test_the_teacher_may_be_an_encoder(self, checkpoint, teacher, model, tmp_path):
        taught = TransformerEncoder(teacher, max_length=4, cache=tmp_path)
        short = AdaptedEncoder(checkpoint, readout(), teacher=taught).fit(TEXTS)
        assert np.abs(short.transform(TEXTS) - model.transform(TEXTS)).max() > 1e-3
        assert EmbeddingCache(tmp_path).stats().rows == len(set(TEXTS))
        named = clone(model).set_params(teacher__max_length=4, encoder__cache=tmp_path).fit(TEXTS)
        np.testing.assert_array_equal(named.transform(TEXTS), short.transform(TEXTS))
        assert EmbeddingCache(tmp_path).stats().rows == 2 * len(set(TEXTS))

    def test_pairs(self, checkpoint, teacher):
        pairs = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
        model = AdaptedEncoder(checkpoint, readout(), teacher=teacher).fit(pairs)
        encoder, head = load_checkpoint(checkpoint)
        np.testing.assert_array_equal(model.predict(pairs), head.predict(encoder.transform(pairs)))

    def test_an_own_head_goes_before_the_checkpoints(self, checkpoint, teacher):
        _, head = load_checkpoint(checkpoint)
        other = LinearHead(head.coef_, head.intercept_, ["a", "b", "c"])
        model = AdaptedEncoder(checkpoint, readout(other), teacher=teacher).fit(TEXTS)
        assert set(model.predict(TEXTS)) <= {"a", "b", "c"}
        assert is_classifier(AdaptedEncoder(checkpoint, readout(other), teacher=teacher))

    @pytest.mark.parametrize(
        ("options", "kind"),
        [
            ({"problem_type": "multi_label_classification"}, "classifier"),
            ({"num_labels": 1}, "regressor"),
        ],
    )
    def test_heads_of_other_kinds(self, options, kind, teacher, tmp_path):
        folder = save_model(tmp_path / "model", **options)
        model = AdaptedEncoder(folder, readout(space="head"), teacher=teacher).fit(TEXTS)
        encoder, head = load_checkpoint(folder)
        wanted = head.outputs(encoder.transform(TEXTS))
        np.testing.assert_allclose(head.outputs(model.transform(TEXTS)), wanted, atol=1e-5)
        assert model.head_.multi_label_ == (kind == "classifier")
        assert is_regressor(model) == (kind == "regressor")
        if kind == "regressor":
            assert model.score(TEXTS, wanted[:, 0]) > 0.999

    def test_weights_and_groups_reach_the_readout(self, checkpoint, teacher, model):
        given = {"sample_weight": np.arange(120) % 3, "groups": np.arange(120) // 20}
        whole = clone(model).set_params(adapter__ridge="auto").fit(TEXTS, **given)
        X = model.pipeline_["encoder"].transform(TEXTS)
        T = TransformerEncoder(teacher).transform(TEXTS)
        expected = TeacherReadout(model.head_).fit(X, T, **given)
        np.testing.assert_array_equal(whole.transform(TEXTS), expected.transform(X))
        assert whole.pipeline_["adapter"].r2_ == expected.r2_
        with config_context(enable_metadata_routing=True):
            routed = clone(model).set_fit_request(sample_weight=True, groups=True)
            routed.set_score_request(sample_weight=False)
            search = GridSearchCV(routed, {"adapter__ridge": ["auto"]}, cv=GroupKFold(2))
            search.fit(TEXTS, Y, **given)
        np.testing.assert_array_equal(search.transform(TEXTS), whole.transform(TEXTS))

    def test_what_does_not_go_together_is_refused(self, checkpoint, teacher):
        without = AdaptedEncoder(checkpoint, readout())
        with pytest.raises(ValueError, match=r"teacher=None.*pass teacher="):
            without.fit(TEXTS)
        with pytest.raises(ValueError, match=r"teacher=None"):
            without.set_params(teacher__max_length=3)
        for adapter in (None, Whitening()):
            unused = AdaptedEncoder(checkpoint, adapter, teacher=str(teacher))
            with pytest.raises(ValueError, match=r"teacher='.*TeacherReadout\(\).*leave teacher"):
                unused.fit(TEXTS, Y)
        with pytest.raises(ValueError, match="'teacher' parameter of AdaptedEncoder must be"):
            AdaptedEncoder(checkpoint, readout(), teacher=3).fit(TEXTS)


class TestScoreAndTags:
    def test_score_is_the_accuracy_of_the_head(self, model):
        weights = np.arange(120) % 3
        assert model.score(TEXTS, Y) == accuracy_score(Y, model.predict(TEXTS))
        expected = accuracy_score(Y, model.predict(TEXTS), sample_weight=weights)
        assert model.score(TEXTS, Y, sample_weight=weights) == expected
        with pytest.raises(ValueError, match=r"y=None.*labels.*r2_"):
            model.score(TEXTS)

    def test_without_a_head_it_is_r2_of_the_vectors(self, checkpoint, teacher):
        encoder = TransformerEncoder(checkpoint, pooling=[("mean", -1), ("mean", 1)])
        model = AdaptedEncoder(encoder, readout(), teacher=teacher).fit(TEXTS)
        T = TransformerEncoder(teacher).transform(TEXTS)
        adapter = model.pipeline_["adapter"]
        assert model.score(TEXTS, T) == adapter.score(encoder.transform(TEXTS), T) > 0.9
        with pytest.raises(ValueError, match=r"teacher's vectors"):
            model.score(TEXTS)

    def test_tags_are_those_of_the_head(self, model, checkpoint):
        assert is_classifier(model)
        assert not is_classifier(model.pipeline_["adapter"])
        assert not is_classifier(clone(model))  # the head is found by fit
        with_head = clone(model).set_params(adapter__head=load_checkpoint(checkpoint)[1])
        assert is_classifier(with_head)

    def test_cross_validation_and_grid_search(self, model):
        scores = cross_validate(clone(model), TEXTS, Y, cv=2, scoring=["accuracy", "neg_log_loss"])
        assert scores["test_accuracy"].mean() == pytest.approx(model.score(TEXTS, Y))
        assert np.isfinite(scores["test_neg_log_loss"]).all()
        search = GridSearchCV(clone(model), {"adapter__ridge": [0.1, 1]}, cv=2).fit(TEXTS, Y)
        expected = [model.score(TEXTS, Y)] * 2  # that of the head, whatever the ridge and the fold
        np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected)
        assert search.transform(TEXTS).shape == (120, 16)

    @pytest.mark.slow
    def test_grid_search_in_two_processes(self, model):
        found = [
            GridSearchCV(clone(model), {"adapter__ridge": [0.1, 1]}, cv=2, n_jobs=n).fit(TEXTS, Y)
            for n in (1, 2)
        ]
        np.testing.assert_array_equal(*(each.transform(TEXTS) for each in found))

    def test_a_search_of_this_package_fits_the_whole(self, model):
        search = AdapterSearchCV(clone(model), {"adapter__ridge": [0.1, 1]}, cv=2)
        with pytest.warns(UserWarning, match="with a teacher"):
            search.fit(TEXTS, Y)
        expected = clone(model).set_params(**search.best_params_).fit(TEXTS)
        np.testing.assert_array_equal(search.transform(TEXTS), expected.transform(TEXTS))
        search = AdapterSearchCV(AdaptedEncoder(model.encoder), {"adapter": [readout()]}, cv=2)
        with pytest.raises(ValueError, match="teacher=None"):
            search.fit(TEXTS, Y)

    def test_inside_a_pipeline(self, model):
        whole = make_pipeline(clone(model)).fit(TEXTS, Y)
        np.testing.assert_array_equal(whole.transform(TEXTS), model.transform(TEXTS))
        assert whole.score(TEXTS, Y) == model.score(TEXTS, Y)


class TestParameters:
    def test_the_encoder_is_built_for_the_adapter_that_is_set(self, checkpoint, teacher):
        model = AdaptedEncoder(str(checkpoint))
        model.set_params(encoder__max_length=5, adapter=readout(), adapter__ridge=0.5)
        assert (model.encoder.pooling, model.encoder.max_length) == ("readout", 5)
        assert model.adapter.ridge == 0.5
        model = AdaptedEncoder(str(checkpoint), readout(), teacher=str(teacher))
        assert model.get_params()["teacher"] == str(teacher)
        model.set_params(encoder__max_length=5, adapter=None, adapter__alpha=0.5, teacher=None)
        assert (model.encoder.pooling, model.adapter.alpha) == ("auto", 0.5)

    def test_parameters_of_the_teacher(self, checkpoint, teacher):
        model = AdaptedEncoder(str(checkpoint), readout(), teacher=str(teacher))
        model.set_params(teacher__max_length=7)
        assert model.get_params()["teacher__max_length"] == 7
        assert clone(model).teacher.max_length == 7
        model.set_params(teacher=str(checkpoint), teacher__pooling="cls")
        assert (model.teacher.model, model.teacher.pooling) == (str(checkpoint), "cls")


def test_transform_predict_runs_the_classifier_once_and_no_teacher(model, monkeypatch):
    expected = model.transform(TEXTS), model.predict(TEXTS)
    texts, forward = [], transformers.BertModel.forward
    monkeypatch.setattr(
        transformers.BertModel,
        "forward",
        lambda self, input_ids, **k: (
            texts.append(len(input_ids)) or forward(self, input_ids=input_ids, **k)
        ),
    )
    vectors, predictions = model.transform_predict(TEXTS)
    assert sum(texts) == len(set(TEXTS))
    np.testing.assert_array_equal(vectors, expected[0])
    np.testing.assert_array_equal(predictions, expected[1])


class TestSaving:
    def test_a_loaded_model_needs_no_teacher(self, model, checkpoint, teacher, tmp_path):
        copy = shutil.copytree(teacher, tmp_path / "teacher")
        own = clone(model).set_params(teacher=str(copy)).fit(TEXTS)
        joblib.dump(own, tmp_path / "model.joblib")
        assert (tmp_path / "model.joblib").stat().st_size < 60_000
        joblib.dump((TEXTS, own.transform(TEXTS), own.predict(TEXTS)), tmp_path / "expected")
        shutil.rmtree(copy)
        code = (
            "import joblib, numpy as np\n"
            "texts, *expected = joblib.load('expected')\n"
            "model = joblib.load('model.joblib')\n"
            "for found, each in zip(model.transform_predict(texts), expected, strict=True):\n"
            "    np.testing.assert_array_equal(found, each)\n"
        )
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def test_a_live_teacher_is_not_pickled(self, model, teacher, checkpoint, tmp_path):
        live = TransformerEncoder((make_model().bert, make_tokenizer()))
        own = AdaptedEncoder(checkpoint, readout(), teacher=live).fit(TEXTS)
        np.testing.assert_array_equal(own.transform(TEXTS), model.transform(TEXTS))
        with pytest.raises(pickle.PicklingError, match="live model cannot be pickled"):
            joblib.dump(own, tmp_path / "live.joblib")
        joblib.dump(own.set_params(teacher=None), tmp_path / "model.joblib")
        loaded = joblib.load(tmp_path / "model.joblib")
        np.testing.assert_array_equal(loaded.transform(TEXTS), own.transform(TEXTS))

    @pytest.mark.parametrize("pooling", ["readout", [("head_input", -1), ("mean", 1)]])
    def test_a_safe_folder_holds_encoder_and_readout(self, pooling, checkpoint, teacher, tmp_path):
        encoder = TransformerEncoder(checkpoint, pooling=pooling)
        model = AdaptedEncoder(encoder, readout(), teacher=teacher).fit(TEXTS)
        loaded = load_adapter(save_adapter(model, tmp_path / "a"))
        np.testing.assert_array_equal(loaded.transform(TEXTS), model.transform(TEXTS))
        np.testing.assert_array_equal(loaded.predict(TEXTS), model.predict(TEXTS))

    def test_the_card_tells_which_columns_the_readout_needs(self, model, tmp_path):
        steps = model.pipeline_
        folder = save_adapter(steps["adapter"], tmp_path / "a", base_model=steps["encoder"])
        code = (folder / "README.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
        scope = {"texts": TEXTS}
        exec(code.replace("path/to/this/folder", str(folder)), scope)
        np.testing.assert_array_equal(scope["adapted"], model.transform(TEXTS))


def test_other_adapters_keep_their_encoder(checkpoint):
    model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(TEXTS)
    assert model.pipeline_["encoder"].pooling == "auto"

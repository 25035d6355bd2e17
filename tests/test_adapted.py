"""AdaptedEncoder, and text pipelines of any make."""

import copy
import json
import pickle
import re
import shutil
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from isoadapt import (
    AdaptedEncoder,
    EmbeddingCache,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    LinearHead,
    LogitPreservingWhitening,
    TeacherReadout,
    TransformerEncoder,
    Whitening,
    load_checkpoint,
)
from isoadapt.encoders import release
from isoadapt.interop import (
    export_onnx,
    load_adapter,
    merge_into_checkpoint,
    save_adapter,
    to_sentence_transformer,
)
from isoadapt.model_selection import AdapterSearchCV, compare_adapters
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
        whole, X = AdaptedEncoder(checkpoint, quick()).fit(texts, y), encoder.transform(texts)
        layer = quick(head=head).fit(X, y)
        for method in ("transform", "predict_proba", "predict_log_proba"):
            expected = getattr(layer, method)(X)
            np.testing.assert_array_equal(getattr(whole, method)(texts), expected)
        assert whole.score(texts, y) == layer.score(X, y)
        np.testing.assert_array_equal(whole.head_.coef_, head.coef_)
        assert list(whole.classes_) == [0, 1, 2]
        assert whole.decision_function(texts).shape == (60, 3)
        assert is_classifier(whole)

    def test_transform_predict_is_both_in_one_pass(self, checkpoint, data, monkeypatch):
        texts, y = data
        model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(texts, y)
        expected = model.transform(texts), model.predict(texts)
        encoded, transform = [], TransformerEncoder.transform
        noted = lambda self, X: encoded.append(len(X)) or transform(self, X)  # noqa: E731
        monkeypatch.setattr(TransformerEncoder, "transform", noted)
        vectors, predictions = model.transform_predict(texts)
        np.testing.assert_array_equal(vectors, expected[0])
        np.testing.assert_array_equal(predictions, expected[1])
        assert encoded == [60]

    def test_transform_predict_needs_a_head(self, tmp_path, data):
        folder = save_model(tmp_path / "encoder", kind="AutoModel")
        model = AdaptedEncoder(folder, Whitening()).fit(data[0])
        assert not hasattr(model, "transform_predict")

    def test_weights_and_groups_reach_the_adapter(self, checkpoint, data):
        texts, y = data
        encoder, head = load_checkpoint(checkpoint)
        given = {"sample_weight": np.arange(60) % 3, "groups": np.arange(60) // 4}
        whole = AdaptedEncoder(checkpoint, quick()).fit(texts, y, **given)
        embeddings = encoder.transform(texts)
        layer = quick(head=head).fit(embeddings, y, **given)
        np.testing.assert_array_equal(whole.transform(texts), layer.transform(embeddings))
        weights = given["sample_weight"]
        score = whole.score(texts, y, sample_weight=weights)
        assert score == accuracy_score(y, whole.predict(texts), sample_weight=weights)
        assert score != whole.score(texts, y)
        plain = quick(head=head).fit(embeddings, y)
        assert np.abs(plain.transform(embeddings) - whole.transform(texts)).max() > 1e-4
        with config_context(enable_metadata_routing=True):
            model = AdaptedEncoder(checkpoint, quick())
            model.set_fit_request(sample_weight=True, groups=True)
            model.set_score_request(sample_weight=True)
            search = GridSearchCV(model, {"adapter__alpha": [0.5]}, cv=GroupKFold(2))
            search.fit(texts, y, **given)
        np.testing.assert_array_equal(search.transform(texts), whole.transform(texts))

    def test_what_the_adapter_does_not_take_is_refused(self, checkpoint, data):
        texts, y = data
        model = AdaptedEncoder(checkpoint, Whitening())
        with pytest.raises(ValueError, match=r"groups was given, but Whitening\.fit does"):
            model.fit(texts, y, groups=np.arange(60))
        weighted = model.fit(texts, y, sample_weight=np.arange(60) % 3)
        embeddings = TransformerEncoder(checkpoint).transform(texts)
        expected = Whitening().fit(embeddings, sample_weight=np.arange(60) % 3)
        np.testing.assert_allclose(weighted.transform(texts), expected.transform(embeddings))

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

    @pytest.mark.parametrize(
        "adapter", [None, quick(), IsotropyLayer(head=None, max_epochs=1), Whitening()], ids=repr
    )
    def test_a_head_that_is_not_set_is_the_checkpoints(self, adapter, checkpoint, data, recwarn):
        texts, y = data
        _, head = load_checkpoint(checkpoint)
        model = AdaptedEncoder(checkpoint, adapter)
        if adapter is None:
            model.set_params(adapter__max_epochs=1)
        model.fit(texts, np.minimum(y, 1))  # fewer labels than the checkpoint knows
        np.testing.assert_array_equal(model.pipeline_["adapter"].head.coef_, head.coef_)
        if not isinstance(adapter, Whitening):  # which fits a new one of its kind
            np.testing.assert_array_equal(model.head_.coef_, head.coef_)
        assert not [warning for warning in recwarn if "checkpoint" in str(warning.message)]

    @pytest.mark.filterwarnings("ignore:this fit harms the task")
    @pytest.mark.parametrize("names", [["a", "b", "c"], [0, 1, 2]])
    def test_a_head_that_is_set_goes_before_the_checkpoints(self, names, checkpoint, data):
        texts, y = data[0], np.array(names)[data[1]]
        encoder, _ = load_checkpoint(checkpoint)
        X = encoder.transform(texts)
        model = LogisticRegression(C=0.5).fit(X.astype(np.float64), y)
        expected = LinearHead.from_estimator(model)
        for head in (LogisticRegression(C=0.5), FrozenEstimator(model), expected):
            whole = AdaptedEncoder(encoder, LogitPreservingWhitening(head)).fit(texts, y)
            np.testing.assert_allclose(whole.head_.coef_, expected.coef_, atol=1e-9)
            assert whole.classes_.tolist() == names
            assert whole.pipeline_["adapter"].head is not None
        frozen = {"head": "logistic", "head_training": "frozen"}
        whole = AdaptedEncoder(encoder, Whitening(**frozen)).fit(texts, y)
        np.testing.assert_array_equal(whole.head_.coef_, Whitening(**frozen).fit(X, y).head_.coef_)
        assert is_regressor(AdaptedEncoder(encoder, quick(head="ridge")).fit(texts, X[:, 0]))

    @pytest.mark.parametrize("labels", [["a", "b", "c"], [0, 1, 3]])
    def test_labels_unknown_to_the_checkpoint_are_learnt(self, labels, checkpoint, data):
        texts = data[0]
        X = TransformerEncoder(checkpoint).transform(texts)
        y = np.array(labels)[np.argsort(np.argsort(X[:, 0])) // 20]  # what can be learnt
        for adapter in (
            quick(),
            LogitPreservingWhitening(),
            quick(head=None),
            Whitening(),
            IsoBN(),
        ):
            model = AdaptedEncoder(checkpoint, adapter)
            wanted = r"unknown to the checkpoint's head: .*it knows \[0, 1, 2\].*\(head=Logistic"
            with pytest.warns(UserWarning, match=wanted) as caught:
                model.fit(texts, y)
            assert caught[0].filename == __file__
            assert model.classes_.tolist() == labels
            assert model.score(texts, y) > 0.6
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for explicit in (quick(), Whitening()):
                explicit.set_params(head=LogisticRegression())
                assert AdaptedEncoder(checkpoint, explicit).fit(texts, y).score(texts, y) > 0.6

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
        grid = {"encoder__max_length": [4, 12], "adapter__alpha": [0.2, 1.0]}
        search = GridSearchCV(AdaptedEncoder(checkpoint, quick()), grid, cv=2).fit(*data)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    def test_errors(self, checkpoint, data):
        texts, y = data
        with pytest.raises(ValueError, match="'encoder' parameter of AdaptedEncoder must be"):
            AdaptedEncoder(3).fit(texts, y)
        narrow = LinearHead(np.eye(3, 16), np.zeros(3), [0, 1, 2])
        with pytest.raises(ValueError, match="labels unknown to the head"):
            AdaptedEncoder(checkpoint, quick(head=narrow)).fit(texts, y + 1)
        with pytest.raises(ValueError, match="requires y to be passed"):
            AdaptedEncoder(checkpoint, quick()).fit(texts)
        with pytest.raises(TypeError, match="None"):
            AdaptedEncoder(checkpoint, quick()).fit([*texts[:-1], None], y)


@pytest.mark.slow
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


class TestAnotherWorkingDirectory:
    """A fitted model that was dumped finds the folders of relative paths that fit has seen."""

    MAKERS = {  # noqa: RUF012
        "folder": lambda: AdaptedEncoder("model", Whitening()),
        "cache": lambda: AdaptedEncoder(TransformerEncoder("model", cache="cache"), Whitening()),
        "pipeline": lambda: make_pipeline(
            TransformerEncoder(Path("model"), cache=EmbeddingCache("cache")), Whitening()
        ),
        "teacher": lambda: AdaptedEncoder("model", TeacherReadout(), teacher="base"),
    }

    @pytest.fixture
    def places(self, tmp_path, monkeypatch):
        """Two folders, the first the working directory, with two checkpoints in it."""
        here, there = tmp_path / "here", tmp_path / "there"
        there.mkdir()
        save_model(here / "model")
        save_model(here / "base", kind="AutoModel")
        monkeypatch.chdir(here)
        return here, there

    @pytest.mark.parametrize("name", MAKERS)
    def test_a_dumped_model_is_used_elsewhere(self, name, data, places, monkeypatch):
        texts, y = data
        key = joblib.hash(self.MAKERS[name]())
        model = self.MAKERS[name]().fit(texts, y)
        expected = model.transform(texts)
        joblib.dump(model, "model.joblib")
        save_adapter(model, "adapter")
        release()
        monkeypatch.chdir(places[1])
        for loaded in (
            joblib.load(places[0] / "model.joblib"),
            load_adapter(places[0] / "adapter"),
        ):
            np.testing.assert_allclose(loaded.transform(texts), expected, atol=1e-6)
        assert not list(places[1].iterdir())
        assert joblib.hash(self.MAKERS[name]()) == key == joblib.hash(clone(model))

    def test_parameters_count_for_a_new_fit_and_after_a_move(self, data, places, monkeypatch):
        texts, y = data
        model = AdaptedEncoder("model", Whitening()).fit(texts, y)
        expected = model.transform(texts)
        monkeypatch.chdir(places[1])
        with pytest.raises(OSError, match="model='model' is not a folder"):
            clone(model).fit(texts, y)
        save_model(Path("model"), "roberta")
        np.testing.assert_allclose(model.transform(texts), expected, atol=1e-6)
        other = clone(model).fit(texts, y).transform(texts)
        assert not np.allclose(other, expected)
        encoder = model.pipeline_["encoder"]
        assert encoder.set_params(model=Path("model")).transform(texts).shape == expected.shape
        encoder.set_params(model="model")
        places[0].rename(places[0].with_name("moved"))
        assert not np.allclose(model.transform(texts), expected)

    def test_a_model_that_moved_is_taken_only_if_it_is_the_same(self, data, places, monkeypatch):
        """Its name in the working directory may be that of another one."""
        here, there = places
        model = AdaptedEncoder("model", Whitening()).fit(*data)
        expected = model.transform(data[0])
        shutil.copytree("model", "copy")
        Path("model").rename("moved")
        with pytest.raises(FileNotFoundError, match=f"folder {here}/model in fit.*{here}/model is"):
            model.transform(data[0])
        monkeypatch.chdir(there)
        shutil.copytree(here / "base", "model")
        with pytest.raises(FileNotFoundError, match=f"{here}/model in fit.*{there}/model is not a"):
            pickle.loads(pickle.dumps(model)).transform(data[0])
        shutil.rmtree("model")
        (here / "copy").rename("model")
        np.testing.assert_allclose(model.transform(data[0]), expected, atol=1e-6)

    @pytest.mark.parametrize("cache", [None, "cache"])
    def test_a_parameter_that_is_set_again_is_found_again(self, cache, data, places, monkeypatch):
        encoder = TransformerEncoder("model", pooling="mean", cache=cache).fit(data[0])
        first = encoder.transform(data[0])
        monkeypatch.chdir(places[1])
        save_model(Path("model"), "roberta")
        twin = copy.copy(encoder)
        np.testing.assert_array_equal(encoder.set_params(verbose=0).transform(data[0]), first)
        assert not np.allclose(encoder.set_params(model="model").transform(data[0]), first)
        np.testing.assert_array_equal(twin.transform(data[0]), first)

    def test_an_export_finds_the_model(self, data, places, monkeypatch):
        pytest.importorskip("onnxscript")
        model = AdaptedEncoder("model", Whitening()).fit(*data)
        monkeypatch.chdir(places[1])
        assert export_onnx(model, "out/model.onnx").is_file()

    def test_a_model_in_memory_keeps_its_files(self, data, places, monkeypatch):
        """The pooling of sentence-transformers is read from the folder after the weights."""
        Path("base/1_Pooling").mkdir()
        Path("base/1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
        kind = "sentence_transformers.models."
        modules = [{"type": f"{kind}Transformer", "path": ""}]
        modules.append({"type": f"{kind}Pooling", "path": "1_Pooling"})
        Path("base/modules.json").write_text(json.dumps(modules))
        expected = TransformerEncoder("base").transform(data[0])
        monkeypatch.chdir(places[1])
        found = TransformerEncoder(places[0] / "base").transform(data[0])
        np.testing.assert_array_equal(found, expected)


@pytest.fixture(scope="module", params=["own names", "defaults", "fine-tuned on names"])
def named(request, tmp_path_factory):
    """A folder and its names, by id."""
    folder = tmp_path_factory.mktemp("named")
    if request.param == "defaults":
        return save_model(folder), ["LABEL_0", "LABEL_1", "LABEL_2"]
    options = {"isoadapt_label_names": True} if "tuned" in request.param else {}
    save_model(folder, id2label={0: "positive", 1: "negative", 2: "Neutral"}, **options)
    return folder, ["positive", "negative", "Neutral"]


@pytest.mark.filterwarnings("ignore:this fit harms the task")
@pytest.mark.usefixtures("fixed_penalty")
class TestNames:
    """Labels may be the names in id2label, which need not be sorted."""

    ADAPTERS = (
        quick(),
        quick(head_training="joint"),
        quick(head=None),
        LogitPreservingWhitening(),
        Whitening(),
        Whitening(head_training="frozen"),
        FlowAdapter(alpha=0.5, max_epochs=1, random_state=0),
    )

    @pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: repr(adapter)[:40])
    def test_names_give_what_ids_give(self, adapter, named, data, recwarn):
        (folder, names), (texts, ids) = named, data
        y, by_name = np.array(names)[ids], AdaptedEncoder(folder, adapter)
        by_id = clone(by_name).fit(texts, ids)
        by_name.fit(texts, y)
        assert by_name.classes_.tolist() == sorted(names)
        order = np.argsort(names)
        order, found = np.argsort(names), by_name.predict_proba(texts)
        # Training splits the rows of each class by the order of the classes.
        np.testing.assert_allclose(found, by_id.predict_proba(texts)[:, order], atol=0.02)
        predicted = by_name.predict(texts)
        np.testing.assert_array_equal(predicted, np.sort(names)[found.argmax(axis=1)])
        assert by_name.score(texts, y) == accuracy_score(y, predicted)
        assert not [each for each in recwarn if "unknown" in str(each.message)]

    def test_of_matrices(self, named, data):
        (folder, names), (texts, ids) = named, data
        encoder, head = load_checkpoint(folder)
        X, y = encoder.transform(texts), np.array(names)[ids]
        for labels in (y, y.astype(object), pd.Series(y, dtype="category"), y.tolist()):
            assert head.score(X, labels) == head.score(X, ids)
            for adapter in (quick(head=head), LogitPreservingWhitening(head)):
                scores = cross_val_score(adapter, X, labels, cv=2, scoring="accuracy")
                expected = cross_val_score(adapter, X, ids, cv=2, scoring="accuracy")
                np.testing.assert_allclose(scores, expected, atol=0.05)
        named_first = LogitPreservingWhitening(head).fit(X, y)
        assert named_first.score(X, ids) == head.score(X, ids)

    def test_in_a_search(self, named, data):
        (folder, names), (texts, ids) = named, data
        y, grid = np.array(names)[ids], {"adapter__alpha": [0.2, 1.0]}
        for kind, options in ((GridSearchCV, {"scoring": "accuracy"}), (AdapterSearchCV, {})):
            model = AdaptedEncoder(folder, quick())
            search = kind(model, grid, cv=2, **options).fit(texts, y)
            expected = kind(model, grid, cv=2, **options).fit(texts, ids)
            key = "mean_test_score"
            np.testing.assert_allclose(search.cv_results_[key], expected.cv_results_[key], 0, 0.05)
            assert set(search.predict(texts)) <= set(names)

    @pytest.mark.parametrize(
        "named",
        [
            "fine-tuned on names",
            *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("own names", "defaults")),
        ],
        indirect=True,
    )
    def test_in_a_comparison(self, named, data):
        (folder, names), (texts, ids) = named, data
        encoder, head = load_checkpoint(folder)
        X, options = encoder.transform(texts), {"encoder_saw": False, "random_state": 0}
        rows = [
            compare_adapters(X, y, ["LogitPreservingWhitening"], head=head, **options)
            for y in (ids, np.array(names)[ids])
        ]
        scores = [row.to_frame()[["use", "adapter", "score"]] for row in rows]
        pd.testing.assert_frame_equal(*scores)

    def test_a_merge_keeps_the_order_of_ids(self, named, data, tmp_path):
        (folder, names), (texts, ids) = named, data
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for number, adapter in enumerate((quick(), LogitPreservingWhitening())):
            model = AdaptedEncoder(folder, adapter).fit(texts, np.array(names)[ids])
            for write in (merge_into_checkpoint, to_sentence_transformer):
                out = write(model, folder, tmp_path / f"{write.__name__}{number}")
                merged = AutoModelForSequenceClassification.from_pretrained(out)
                logits = merged(**tokenizer(texts[:1], return_tensors="pt")).logits[0].detach()
                expected = model.decision_function(texts[:1])[0]
                np.testing.assert_allclose(logits[np.argsort(names)], expected, atol=1e-3)

    def test_other_labels_name_both(self, named, data):
        (folder, names), (texts, ids) = named, data
        encoder, head = load_checkpoint(folder)
        X, y = encoder.transform(texts), np.array(names, dtype=object)[ids]
        y[0], wrong = 1, np.full(60, names[0].swapcase())
        for labels in (y, wrong):
            if labels is wrong and head.classes_[0] != 0:
                assert head.score(X, labels) == 0  # strings that it does not predict
                continue
            for call in (head.score, quick(head=head).fit):
                if labels is y:
                    with pytest.raises(TypeError, match=r"several types \(int, str\)"):
                        call(X, labels)
                    continue
                with pytest.raises(ValueError, match="unknown to the head") as caught:
                    call(X, labels)
                assert re.search(r"\[(0, 1, 2|2, 1, 0)\]", str(caught.value))
                assert repr(names[0]) in str(caught.value)
            LogitPreservingWhitening(head).fit(X, labels)  # needs no labels

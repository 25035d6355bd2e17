"""AdaptedEncoder: an encoder, an adapter and the checkpoint's head as one estimator."""

import pickle
import shutil
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier, is_regressor
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.preprocessing import KBinsDiscretizer, StandardScaler, normalize
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from isoadapt import AdaptedEncoder, LinearHead, TransformerEncoder, adapters, load_checkpoint
from isoadapt._fit_rows import FitRows
from isoadapt.adapters import LogitPreservingWhitening, TeacherReadout, Whitening, _logit_preserving
from isoadapt.datasets import load_general_sentences
from isoadapt.encoders import EmbeddingCache, release
from isoadapt.interop import load_adapter, merge_into_checkpoint, save_adapter
from isoadapt.metrics import match_threshold
from isoadapt.metrics._points import FEWEST
from isoadapt.model_selection import AdapterSearchCV
from tests.refusals import refusals
from tests.small_blocks import small_blocks
from tests.tiny_models import WORDS, logits_of, make_model, make_tokenizer, save_model, save_pair

rng = np.random.default_rng(0)
TEXTS = [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))) for _ in range(60)]
Y = rng.integers(0, 3, 60)
FRESH = [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))) for _ in range(40)]
SPARSE = KBinsDiscretizer(2, quantile_method="averaged_inverted_cdf")
OTHERS = [StandardScaler(), PCA(3), SPARSE, SelectKBest(k=4)]
GIVEN = {"sample_weight": np.arange(60) % 3, "groups": np.arange(60) // 4}

pytestmark = [
    pytest.mark.filterwarnings("ignore:this fit harms the task"),
    pytest.mark.filterwarnings("ignore:the adapter's head is not the checkpoint's"),
    pytest.mark.filterwarnings("ignore:R² of the teacher's vectors"),
]


def quick(**parameters):
    return adapters.IsotropyLayer(max_epochs=2, random_state=0, **parameters)


POOLED = {"teacher_layers": 0, "general": None}
WHITENING = LogitPreservingWhitening()


def readout(head="auto", **parameters):
    return TeacherReadout(head, **{"ridge": 0.01} | parameters)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """The encoder that the classifier `checkpoint` is made of, without its head."""
    return save_pair(make_model().bert, make_tokenizer(), tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def split(checkpoint):
    """The checkpoint's head, and the embeddings of the texts."""
    encoder, head = load_checkpoint(checkpoint)
    return head, encoder.transform(TEXTS)


@pytest.fixture(scope="module")
def fitted(checkpoint):
    return AdaptedEncoder(str(checkpoint), quick()).fit(TEXTS, Y)


@pytest.fixture(scope="module")
def taught(checkpoint, teacher):
    model = AdaptedEncoder(str(checkpoint), readout(), str(teacher), **POOLED)
    return model.fit(TEXTS)


def test_too_few_texts_are_told(checkpoint):
    for n in (2, FEWEST - 1, FEWEST):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(TEXTS[:n])
        told = [str(each.message) for each in caught if f"fit it to {FEWEST} or more" in str(each)]
        assert len(told) == (n < FEWEST)
        assert all(f"fitted to {n} rows" in each for each in told)


class TestParts:
    def test_it_is_the_pipeline_of_its_parts(self, fitted, split):
        head, X = split
        layer = quick(head=head).fit(X, Y)
        for method in ("transform", "predict_proba", "predict_log_proba", "decision_function"):
            expected = getattr(layer, method)(X)
            np.testing.assert_array_equal(getattr(fitted, method)(TEXTS), expected)
        weights = GIVEN["sample_weight"]
        assert fitted.score(TEXTS, Y, sample_weight=weights) == layer.score(X, Y, weights)
        np.testing.assert_array_equal(fitted.head_.coef_, head.coef_)
        assert is_classifier(fitted)

    @pytest.mark.parametrize("kind", ["whitening", "readout"])
    def test_transform_predict_is_both_in_one_pass(self, kind, taught, checkpoint, spy):
        model = taught
        if kind == "whitening":
            model = AdaptedEncoder(checkpoint, LogitPreservingWhitening()).fit(TEXTS, Y)
        expected = model.transform(TEXTS), model.predict(TEXTS)
        encoded = spy(TransformerEncoder, "transform", lambda _, X: len(X))
        for found, wanted in zip(model.transform_predict(TEXTS), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
        assert encoded == [60]

    @pytest.mark.parametrize("kind", ["whitening", "readout"])
    def test_passthrough_appends_the_raw_vectors(self, kind, taught, split, monkeypatch, spy):
        model, (head, X) = taught, split
        if kind == "whitening":
            model = AdaptedEncoder(taught.encoder, LogitPreservingWhitening()).fit(TEXTS, Y)
        expected = np.hstack([normalize(Z) for Z in (model.transform(TEXTS), X)])
        monkeypatch.setattr(model, "passthrough", True)  # needs no other fit
        encoded = spy(TransformerEncoder, "transform", lambda _, X: len(X))
        vectors, labels = model.transform_predict(TEXTS)
        assert encoded == [60]
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        np.testing.assert_array_equal(vectors, model.transform(TEXTS))
        np.testing.assert_array_equal(labels, head.predict(X))
        names = model.get_feature_names_out()
        assert len(set(names)) == vectors.shape[1]
        assert names[-1] == f"raw{X.shape[1] - 1}"

    @pytest.mark.parametrize("teacher_layers", [0, 1])
    def test_passthrough_needs_a_head_or_an_encoder_of_one_pooling(self, teacher_layers, teacher):
        options = {"teacher_layers": teacher_layers, "general": None, "passthrough": True}
        model = AdaptedEncoder(teacher, readout(), teacher, **options)
        with pytest.raises(ValueError, match=r"without a head .*passthrough=False, or .*='mean'"):
            model.fit(TEXTS)
        model.set_params(passthrough=False).fit(TEXTS).set_params(passthrough=True)
        for call in (model.get_feature_names_out, lambda: model.transform(TEXTS[:3])):
            with pytest.raises(ValueError, match="without a head"):
                call()
        model.set_params(encoder__pooling="mean", teacher_layers=0).fit(TEXTS)
        raw = TransformerEncoder(teacher, pooling="mean").transform(TEXTS)
        found = model.transform(TEXTS)[:, -raw.shape[1] :]
        np.testing.assert_allclose(found, normalize(raw), atol=1e-6)

    @small_blocks(pairs=50)
    def test_a_match_threshold_is_that_of_the_adapted_vectors(self, fitted, monkeypatch):
        Z, transform, sizes = fitted.transform(TEXTS), fitted.transform, set()
        monkeypatch.setattr(fitted, "transform", lambda X: sizes.add(len(X)) or transform(X))
        for texts in (None, TEXTS[:20]):
            queries = None if texts is None else transform(texts)
            expected = match_threshold(Z, 0.01, queries)
            assert fitted.match_threshold(TEXTS, 0.01, texts) == pytest.approx(expected)
        assert sizes == {20, 50}  # of the 60 texts, those that are drawn are encoded

    def test_weights_and_groups_reach_the_adapter_and_the_score(self, taught, teacher):
        model, inner = clone(taught).set_params(adapter__ridge="auto"), TeacherReadout(taught.head_)
        X = taught.pipeline_["encoder"].transform(TEXTS)
        targets = TransformerEncoder(teacher).transform(TEXTS)
        whole = clone(model).fit(TEXTS, Y, **GIVEN)
        expected, plain = (clone(inner).fit(X, targets, **given) for given in (GIVEN, {}))
        np.testing.assert_array_equal(whole.transform(TEXTS), expected.transform(X))
        assert np.abs(plain.transform(X) - expected.transform(X)).max() > 1e-4
        weights = GIVEN["sample_weight"]
        score = whole.score(TEXTS, Y, sample_weight=weights)
        assert score == accuracy_score(Y, whole.predict(TEXTS), sample_weight=weights)
        assert score != whole.score(TEXTS, Y)
        with config_context(enable_metadata_routing=True):
            model.set_fit_request(sample_weight=True, groups=True)
            model.set_score_request(sample_weight=True)
            grid = {"adapter__ridge": ["auto"]}
            search = GridSearchCV(model, grid, cv=GroupKFold(2)).fit(TEXTS, Y, **GIVEN)
        np.testing.assert_array_equal(search.transform(TEXTS), whole.transform(TEXTS))

    def test_parameters_of_the_parts_and_the_default_adapter(self, checkpoint, teacher):
        model = AdaptedEncoder(str(checkpoint))
        model.set_params(encoder__max_length=5, adapter__alpha=0.3, adapter__max_epochs=1)
        assert (model.encoder.max_length, model.adapter.alpha) == (5, 0.3)
        assert model.fit(TEXTS, Y).pipeline_["encoder"].max_length == 5
        assert not hasattr(model.adapter, "map_")
        model = AdaptedEncoder(str(checkpoint), teacher=str(teacher))
        model.set_params(encoder__max_length=5, adapter=readout(), teacher__max_length=7)
        assert (model.encoder.pooling, model.encoder.max_length) == ("readout", 5)
        assert clone(model).teacher.max_length == model.get_params()["teacher__max_length"] == 7

    def test_without_a_head_it_transforms_only(self, bare):
        model = AdaptedEncoder(bare, Whitening()).fit(TEXTS)
        assert not hasattr(model, "predict")
        assert 0 < model.score(TEXTS) <= 1
        assert model.get_feature_names_out()[0] == "whitening0"
        assert AdaptedEncoder(bare, quick()).fit(TEXTS, Y).score(TEXTS, Y) > 0.3


def fit_changed(change, checkpoint):
    change = {"encoder": checkpoint, "adapter": quick(), "teacher": None} | change
    given = {"X": change.pop("texts", TEXTS), "y": change.pop("y", Y)}
    AdaptedEncoder(**change).fit(**given)


test_what_does_not_fit_is_refused = refusals(
    ({"encoder": 3}, "model is a int"),
    ({"teacher": 3}, "'teacher'"),
    ({"adapter": quick(head=LinearHead(np.eye(3, 16), np.zeros(3), [0, 1, 7]))}, "relabel y"),
    ({"y": None}, "y"),
    ({"texts": [*TEXTS[:-1], None]}, "None"),
    ({"adapter": readout()}, "teacher=None"),
    ({"teacher": "model"}, r"teacher='model'.*TeacherReadout\(\)"),
    call=fit_changed,
    errors=(TypeError, ValueError),
)


class TestHeads:
    @pytest.mark.parametrize("adapter", [None, Whitening()])
    def test_auto_is_the_checkpoints(self, adapter, checkpoint, split):
        model = AdaptedEncoder(checkpoint, adapter)
        if adapter is None:
            model.set_params(adapter__max_epochs=1)
        model.fit(TEXTS, np.minimum(Y, 1))  # fewer labels than the checkpoint knows
        np.testing.assert_array_equal(model.pipeline_["adapter"].head.coef_, split[0].coef_)
        if not isinstance(adapter, Whitening):  # which fits a new one of its kind
            np.testing.assert_array_equal(model.head_.coef_, split[0].coef_)

    def test_any_other_head_is_taken_literally(self, checkpoint, split):
        y, X = np.array(["a", "b", "c"])[Y], split[1]
        model = LogisticRegression(C=0.5).fit(X.astype(np.float64), y)
        expected = LinearHead.from_estimator(model)
        for head in (LogisticRegression(C=0.5), FrozenEstimator(model), expected):
            whole = AdaptedEncoder(checkpoint, LogitPreservingWhitening(head)).fit(TEXTS, y)
            np.testing.assert_allclose(whole.head_.coef_, expected.coef_, atol=1e-9)
            assert whole.classes_.tolist() == ["a", "b", "c"]
        assert is_regressor(AdaptedEncoder(checkpoint, quick(head="ridge")).fit(TEXTS, X[:, 0]))
        for labels in (Y, y):  # of the checkpoint's task or of another one
            new = AdaptedEncoder(checkpoint, quick(head="logistic")).fit(TEXTS, labels)
            assert np.abs(new.head_.coef_ - split[0].coef_).max() > 0.01
        for adapter in (quick(head=None), Whitening(head=None)):
            assert not hasattr(AdaptedEncoder(checkpoint, adapter).fit(TEXTS, y), "predict")

    @pytest.mark.parametrize("adapter", [quick(), Whitening(), LogitPreservingWhitening(), PCA(3)])
    @pytest.mark.parametrize("labels", [["a", "b", "c"], [0, 1, 3], [[0, 1], [1, 1], [1, 0]]])
    def test_other_labels_are_refused_before_texts_are_encoded(
        self, labels, adapter, checkpoint, monkeypatch
    ):
        monkeypatch.setattr(TransformerEncoder, "transform", None)
        model, y = AdaptedEncoder(checkpoint, adapter), np.array(labels)[Y]
        search = AdapterSearchCV(model, {"adapter": [adapter]}, cv=2)
        calls = [model.fit, search.fit, lambda texts, y: load_checkpoint(checkpoint, y=y)]
        for call in calls:
            with pytest.raises(
                ValueError, match=r"y holds .* \[.*\]( or, by .* ids, 0 to 2|, one .* column)\. "
            ) as caught:
                call(TEXTS, y)
            for way_out in ("head='logistic'", "--head logistic"):
                assert way_out in str(caught.value)
            for way_out in ("class_names={", "--class-names "):
                assert (way_out in str(caught.value)) == (y.ndim == 1)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A folder, and its names by id."""
    folder, names = tmp_path_factory.mktemp("named"), ["positive", "negative", "Neutral"]
    save_model(folder, id2label=dict(enumerate(names)))
    return folder, names


SPELLINGS = {
    "ids": lambda i, name: i,
    "ids as strings": lambda i, name: str(i),
    "names": lambda i, name: name,
}


@pytest.mark.usefixtures("fixed_penalty")
class TestNames:
    """Labels may be the names in id2label, which need not be sorted."""

    def test_names_give_what_ids_give(self, named):
        folder, names = named
        y, order = np.array(names)[Y], np.argsort(names)
        for adapter in (quick(), LogitPreservingWhitening(), Whitening()):
            by_name = AdaptedEncoder(folder, adapter).fit(TEXTS, y)
            by_id = AdaptedEncoder(folder, adapter).fit(TEXTS, Y)
            assert by_name.classes_.tolist() == sorted(names)
            found, wanted = by_name.predict_proba(TEXTS), by_id.predict_proba(TEXTS)[:, order]
            # Training splits the rows of each class by the order of the classes.
            np.testing.assert_allclose(found, wanted, atol=0.02)
            assert by_name.score(TEXTS, y) == accuracy_score(y, by_name.predict(TEXTS))

    @pytest.mark.parametrize("spelling", [None, *SPELLINGS])
    def test_predictions_are_spelled_as_the_labels_of_the_fit(self, spelling, named):
        """Without labels, they are the names, as in a pipeline of transformers."""
        folder, names = named
        labels = names if spelling is None else [SPELLINGS[spelling](i, names[i]) for i in range(3)]
        model = AdaptedEncoder(folder, LogitPreservingWhitening())
        model.fit(TEXTS, None if spelling is None else np.array(labels)[Y])
        outputs = logits_of(make_model(id2label=dict(enumerate(names))), TEXTS)
        assert model.predict(TEXTS).tolist() == [labels[i] for i in outputs.argmax(axis=1)]

    @pytest.mark.filterwarnings("ignore:2 of 2 fits could not be trained together")
    def test_class_names_map_own_labels_to_the_checkpoints(self, named, tmp_path):
        """Own labels are spoken everywhere but in what is written."""
        folder, names = named
        own = {"up": names[0], "down": names[1], "level": names[2]}
        y, plain = np.array(list(own))[Y], AdaptedEncoder(folder, LogitPreservingWhitening())
        model = AdaptedEncoder(folder, LogitPreservingWhitening(), class_names=own)
        expected = plain.fit(TEXTS, np.array(names)[Y])
        kinds, grid = (GridSearchCV, AdapterSearchCV), {"adapter__strength": [1.0]}
        found = [kind(model, grid, cv=2).fit(TEXTS, y).best_estimator_ for kind in kinds]
        for fitted in (model.fit(TEXTS), model.fit(TEXTS, y), *found):
            assert fitted.classes_.tolist() == sorted(own)
            predicted = fitted.predict(TEXTS).tolist()
            assert [own[label] for label in predicted] == expected.predict(TEXTS).tolist()
            assert fitted.score(TEXTS, y) == expected.score(TEXTS, np.array(names)[Y])
        refit = AdaptedEncoder(folder, Whitening(), class_names=own).fit(TEXTS, y)
        for fitted in (model, refit):
            loaded = load_adapter(save_adapter(fitted, tmp_path / "saved", overwrite=True))
            predicted = fitted.predict(TEXTS).tolist()
            assert loaded.predict(TEXTS).tolist() == [own[label] for label in predicted]
        merge_into_checkpoint(refit, folder, tmp_path / "merged")
        merged = load_checkpoint(tmp_path / "merged")[1]
        assert merged.classes_.tolist() == sorted(names)
        new = AdaptedEncoder(folder, LogitPreservingWhitening("logistic"), class_names=own)
        save_adapter(new.fit(TEXTS, y), tmp_path / "saved", overwrite=True)
        assert np.abs(new.head_.coef_ - model.head_.coef_).max() > 0.01
        assert load_adapter(tmp_path / "saved").classes_.tolist() == sorted(names)
        for wrong in ({**own, "up": names[1]}, {"up": names[0]}, {**own, "other": "x"}):
            with pytest.raises(ValueError, match="one to one, to all classes"):
                clone(model).set_params(class_names=wrong).fit(TEXTS, y)
        with pytest.raises(
            ValueError,
            match=r"\['positive'\], but class_names has the keys \['down', 'level', 'up'\]",
        ):
            model.fit(TEXTS, [names[0]] * 60)

    def test_of_matrices_and_in_searches(self, named):
        folder, names = named
        y, grid, key = np.array(names)[Y], {"alpha": [0.2, 1.0]}, "mean_test_score"
        encoder, by_id = load_checkpoint(folder, y=Y)
        X = encoder.transform(TEXTS)
        for labels in (y.astype(object), pd.Series(y, dtype="category"), y.tolist()):
            head = load_checkpoint(folder, y=labels)[1]
            assert head.score(X, labels) == by_id.score(X, Y)
        fitted = LogitPreservingWhitening(head).fit(X, y)
        assert fitted.score(X, y) == by_id.score(X, Y)
        with pytest.raises(ValueError, match=r"y holds .*, but the head predicts"):
            fitted.score(X, Y)
        found, wanted = (
            AdapterSearchCV(quick(head=each), grid, cv=2).fit(X, labels)
            for each, labels in ((head, y), (by_id, Y))
        )
        np.testing.assert_allclose(found.cv_results_[key], wanted.cv_results_[key], atol=0.05)
        assert set(found.predict(X)) <= set(names)


class Noise(TransformerMixin, BaseEstimator):
    """An encoder without a head, whose first column is as long as wanted."""

    def __init__(self, first=1.0):
        self.first = first

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.random.default_rng(0).normal(size=(len(X), 20)) * [self.first, *[1.0] * 19]

    def head(self, y=None):
        return None


class TestOwnParts:
    def test_live_models_as_the_encoder_takes_them(self, checkpoint, fitted):
        kinds = AutoModelForSequenceClassification, AutoTokenizer
        live = tuple(kind.from_pretrained(checkpoint) for kind in kinds)
        model = AdaptedEncoder(live, fitted.pipeline_["adapter"]).fit(TEXTS, Y)
        np.testing.assert_allclose(model.transform(TEXTS), fitted.transform(TEXTS), atol=1e-6)
        with pytest.raises(TypeError, match=r"model is a Bert.*tuple \(model") as caught:
            AdaptedEncoder(live[0], adapters.IsoBN()).fit(TEXTS)
        assert len(str(caught.value)) < 200  # and not the whole model

    def test_the_parameters_of_a_transformer_are_set_and_searched(self):
        search = GridSearchCV(AdaptedEncoder(Noise(), PCA()), {"adapter__n_components": [1, 4]})
        search.set_params(cv=2, scoring=lambda model, X, y: model.transform(X).shape[1])
        assert search.fit(TEXTS, Y).best_params_ == {"adapter__n_components": 4}

    def test_whitening_that_repairs_nothing_is_told(self):
        with pytest.raises(ValueError, match="keeps the predictions of a classifier, but"):
            AdaptedEncoder(Noise(), LogitPreservingWhitening()).fit(TEXTS)
        with pytest.warns(UserWarning, match=r"holds only \d+\.\d% of the variance"):
            AdaptedEncoder(Noise(), Whitening()).fit(TEXTS)
        with warnings.catch_warnings(action="error"):
            model = AdaptedEncoder(Noise(9.0), Whitening()).fit(np.eye(60))
        assert -1 < model.match_threshold(np.eye(60), 0.1).threshold < 1  # of what are no texts

    @pytest.mark.parametrize("adapter", OTHERS, ids=repr)
    def test_transformers_of_scikit_learn_with_a_head(self, adapter, checkpoint, split, tmp_path):
        _, X = split
        model = AdaptedEncoder(checkpoint, adapter).fit(TEXTS, Y)
        Z = clone(adapter).fit(X, Y).transform(X)
        Z = Z.toarray() if adapter is SPARSE else Z
        np.testing.assert_allclose(model.transform(TEXTS), Z, atol=1e-5)
        assert model.score(TEXTS, Y) == model.head_.score(Z, Y) > 0.4
        if adapter not in OTHERS[2:]:  # which hold a dtype and a function
            save_adapter(model, tmp_path / "own")
            saved = load_adapter(tmp_path / "own").predict(TEXTS)
            np.testing.assert_array_equal(saved, model.predict(TEXTS))
        with pytest.raises(ValueError, match="not an affine map"):
            merge_into_checkpoint(model, checkpoint, tmp_path / "merged")

    def test_a_given_affine_map_is_merged(self, checkpoint, split, tmp_path):
        head, X = split
        matrix, offset = Whitening().fit(X).to_affine()
        model = AdaptedEncoder(checkpoint, adapters.AffineAdapter(matrix, offset)).fit(TEXTS, Y)
        np.testing.assert_allclose(model.transform(TEXTS), X @ matrix.T + offset, atol=1e-4)
        frozen = adapters.AffineAdapter(2 * np.eye(16), head=head, head_training="frozen").fit(X)
        merge_into_checkpoint(frozen, checkpoint, tmp_path / "merged")
        merged = load_checkpoint(tmp_path / "merged")[1]
        np.testing.assert_allclose(merged.coef_, 2 * head.coef_, rtol=1e-6)
        for matrix, offset in ((np.eye(2), None), (None, [1.0]), (np.nan * np.eye(16), None)):
            with pytest.raises(ValueError, match="matrix"):
                adapters.AffineAdapter(matrix, offset).fit(X)


class TestWhiteningOfCollapsedVectors:
    """Where the logits explain nearly all of the variance, general sentences keep the classes."""

    def test_general_sentences_are_added(self, checkpoint, split, monkeypatch):
        head, X = split
        sentences = load_general_sentences(1000)
        rows = np.vstack([X, TransformerEncoder(checkpoint).transform(sentences)])
        weights = np.r_[np.ones(60), np.full(1000, 0.5)]
        added = LogitPreservingWhitening(head).fit(rows, sample_weight=weights)
        alone, model = LogitPreservingWhitening(head).fit(X), AdaptedEncoder(checkpoint, WHITENING)
        np.testing.assert_allclose(model.fit(TEXTS).transform(TEXTS), alone.transform(X), atol=1e-6)
        monkeypatch.setattr(_logit_preserving, "_LEFT", 1.0)  # as if they were
        found = clone(model).fit(TEXTS)
        np.testing.assert_allclose(found.transform(TEXTS), added.transform(X), atol=1e-6)
        assert (found.predict(TEXTS) == head.predict(X)).all()
        with pytest.warns(UserWarning, match="logits explain"):
            clone(model).set_params(general=None).fit(TEXTS)
        own = clone(model).set_params(general=sentences).fit(TEXTS)
        np.testing.assert_allclose(own.transform(TEXTS), found.transform(TEXTS), atol=1e-6)

    @pytest.mark.parametrize("adapter", [Whitening(), LogitPreservingWhitening("logistic")])
    def test_sentences_for_another_adapter_are_refused(self, adapter, checkpoint):
        with pytest.raises(ValueError, match=r"general=\['a'\] is for a TeacherReadout.*auto"):
            AdaptedEncoder(checkpoint, adapter, general=["a"]).fit(TEXTS, Y)


class TestTeacher:
    """A classifier's pass learns another encoder's vectors."""

    def test_is_the_readout_of_its_parts(self, taught, checkpoint, teacher):
        encoder, head = load_checkpoint(checkpoint, pooling="readout")
        X, T = encoder.transform(TEXTS), TransformerEncoder(teacher).transform(TEXTS)
        expected = readout(head).fit(X, T)
        np.testing.assert_array_equal(taught.transform(TEXTS), expected.transform(X))
        cosines = np.sum(taught.transform(TEXTS) * T, axis=1) / np.linalg.norm(T, axis=1)
        assert cosines.mean() > 0.95
        again = clone(taught).fit(TEXTS, np.array([f"kind {label}" for label in Y]))  # not used
        np.testing.assert_array_equal(again.transform(TEXTS), taught.transform(TEXTS))

    def test_encoders_that_are_given_are_used_as_they_are(self, checkpoint, teacher, tmp_path):
        encoder = TransformerEncoder(checkpoint, pooling=[("mean", -1), ("mean", 1)])
        short = TransformerEncoder(teacher, max_length=4, cache=tmp_path)
        model = AdaptedEncoder(encoder, readout(), short, **POOLED).fit(TEXTS)
        assert EmbeddingCache(tmp_path).stats().rows == len(set(TEXTS))
        assert model.head_ is None
        adapter, T = model.pipeline_["adapter"], short.transform(TEXTS)
        X, weights = encoder.transform(TEXTS), GIVEN["sample_weight"]
        assert model.score(TEXTS, T) == adapter.score(X, T) > 0.5
        assert model.score(TEXTS, T, weights) == adapter.score(X, T, weights)
        with pytest.raises(ValueError, match="requires y"):
            model.score(TEXTS)

    @pytest.fixture(scope="class")
    @classmethod
    def aligned(cls, checkpoint, teacher):
        return AdaptedEncoder(str(checkpoint), TeacherReadout(), str(teacher)).fit(TEXTS)

    def test_one_layer_of_the_teacher_is_closer_and_predictions_stay(
        self, aligned, checkpoint, teacher
    ):
        T = normalize(TransformerEncoder(teacher).transform(FRESH))
        pooled = clone(aligned).set_params(teacher_layers=0).fit(TEXTS)
        errors = [np.square(model.transform(FRESH) - T).sum() for model in (aligned, pooled)]
        assert errors[0] < 0.7 * errors[1]
        assert (aligned.teacher_layers_, pooled.teacher_layers_) == (1, 0)
        encoder, head = load_checkpoint(checkpoint)
        wanted = head.decision_function(encoder.transform(FRESH))
        np.testing.assert_array_equal(aligned.decision_function(FRESH), wanted)
        again = clone(aligned).fit(TEXTS, np.array([f"kind {label}" for label in Y]))  # not used
        np.testing.assert_array_equal(again.transform(FRESH), aligned.transform(FRESH))

    def test_one_vector_that_the_head_reads(self, aligned):
        model = clone(aligned).set_params(adapter__space="head", general=None).fit(TEXTS)
        Z = model.transform(FRESH)
        np.testing.assert_allclose(
            model.head_.outputs(Z), aligned.decision_function(FRESH), atol=1e-4
        )

    @pytest.mark.parametrize("layers", [0, "auto"])
    def test_r2_is_that_of_texts_like_those_of_the_fit(self, layers, aligned, teacher):
        model = clone(aligned).set_params(teacher_layers=layers).fit(TEXTS)
        T = TransformerEncoder(teacher).transform(FRESH)
        X = model.pipeline_["encoder"].transform(FRESH)
        assert model.r2_own_ == pytest.approx(model.pipeline_["adapter"].score(X, T), abs=0.1)
        assert model.r2_general_ > model.r2_own_ - 0.1
        assert np.isnan(clone(model).set_params(general=None).fit(TEXTS).r2_general_)

    @pytest.mark.parametrize("layers", [0, 1])
    @pytest.mark.parametrize("n", [2, 3, 6])
    def test_few_texts(self, n, layers, aligned):
        few = clone(aligned).set_params(teacher_layers=layers, general=None).fit(TEXTS[:n])
        assert np.isfinite(few.transform(FRESH)).all()
        assert np.isnan(few.r2_general_)

    def test_r2_leaves_whole_groups_out(self, aligned):
        texts = [f"{text} {word}" for text in TEXTS[:12] for word in WORDS[:6]]
        model = clone(aligned).set_params(general=None)
        by_row = model.fit(texts).r2_own_
        assert model.fit(texts, groups=np.arange(72) // 6).r2_own_ < by_row - 0.05
        assert not hasattr(model.set_params(adapter=WHITENING, teacher=None).fit(texts), "r2_own_")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"sample_weight": np.full(60, 1 / 60)}, "sample_weight sums to 1, but weights are"),
            ({"sample_weight": np.zeros(60)}, "sample_weight|Sample weights"),
            ({"sample_weight": np.ones(59)}, r"sample_weight.*\(59,\)"),
            ({"groups": np.arange(7)}, "inconsistent.*60, 7"),
            ({"general": [1, 2]}, r"general, .*X\[0\] is a int"),
        ],
    )
    def test_what_is_wrong_is_said_before_texts_are_encoded(
        self, change, message, aligned, monkeypatch
    ):
        model = clone(aligned)
        if "general" in change:
            model.set_params(general=change.pop("general"))
        monkeypatch.setattr(TransformerEncoder, "transform", None)
        with pytest.raises((TypeError, ValueError), match=message):
            model.fit(TEXTS, **change)

    def test_rows_with_a_weight_are_left_for_the_second_fit(self):
        targets = np.random.default_rng(0).normal(size=(60, 8))
        held = FitRows(TEXTS, [], {}, 0.5).held(targets)
        assert 0 < held.sum() < 30
        assert not FitRows(TEXTS, [], {"sample_weight": 1.0 * held}, 0.5).held(targets).any()

    def test_one_general_sentence_has_a_small_weight(self, aligned):
        alone, one = (
            clone(aligned).set_params(general=general).fit(TEXTS).r2_own_
            for general in (None, np.array(["the bird"]))
        )
        assert one > alone - 0.1

    def test_general_sentences_have_a_weight_and_may_be_given(self, checkpoint, teacher):
        parts = str(checkpoint), readout(), str(teacher)
        given = AdaptedEncoder(*parts, teacher_layers=0, general=FRESH)
        encoder = TransformerEncoder(checkpoint, pooling="readout")
        X, T = (each.transform([*TEXTS, *FRESH]) for each in (encoder, given._teacher()))
        weights = np.r_[np.ones(len(TEXTS)), np.full(len(FRESH), 5.0)]
        expected = readout(None).fit(X, T, weights)
        np.testing.assert_allclose(
            given.fit(TEXTS).transform(FRESH), expected.transform(X[len(TEXTS) :]), atol=1e-6
        )

    def test_english_sentences_are_not_added_to_other_texts(self, checkpoint, teacher):
        model = AdaptedEncoder(checkpoint, readout(), teacher, teacher_layers=0)
        texts = ["CC(=O)OC1=CC=CC=C1C(=O)O", "C1CCCCC1", "CCO", "c1ccccc1"] * 5
        with pytest.warns(UserWarning, match=r"general='auto' adds no English.*general=\["):
            model.fit(texts)
        assert np.isnan(model.r2_general_)

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"teacher_layers": 3}, "the teacher has only 2 layers"),
            ({"encoder__pooling": "mean"}, "the encoder has pooling='mean'"),
            ({"teacher__pooling": "readout"}, "last hidden state"),
        ],
    )
    def test_layers_that_cannot_be_had(self, change, reason, aligned):
        model = clone(aligned).set_params(teacher_layers=1, general=None).set_params(**change)
        with pytest.raises(ValueError, match=f"teacher_layers=.*{reason}.*choose 0"):
            model.fit(TEXTS)
        if "teacher_layers" not in change:
            with pytest.warns(UserWarning, match=f"pooled hidden states.*{reason}"):
                model.set_params(teacher_layers="auto").fit(TEXTS)
            assert model.teacher_layers_ == 0

    def test_tags_and_score_are_those_of_the_head(self, taught):
        assert is_classifier(taught)
        assert not is_classifier(clone(taught))  # the head is found by fit
        assert taught.score(TEXTS, Y) == accuracy_score(Y, taught.predict(TEXTS))
        with pytest.raises(ValueError, match="y=None, but the score of a head"):
            taught.score(TEXTS)


class TestAnotherWorkingDirectory:
    """A fitted model that was dumped finds the folder of a relative path that fit has seen."""

    MAKERS = {  # noqa: RUF012
        "plain": lambda: AdaptedEncoder("model", Whitening()),
        "teacher": lambda: AdaptedEncoder("model", TeacherReadout(), teacher="base"),
    }

    @pytest.fixture
    def places(self, tmp_path, monkeypatch, checkpoint, teacher):
        """Two folders, the first the working directory, with two checkpoints in it."""
        here, there = tmp_path / "here", tmp_path / "there"
        there.mkdir()
        shutil.copytree(checkpoint, here / "model")
        shutil.copytree(teacher, here / "base")
        monkeypatch.chdir(here)
        return here, there

    @pytest.mark.parametrize("name", MAKERS)
    def test_a_dumped_model_is_used_elsewhere(self, name, places, monkeypatch):
        key, model = joblib.hash(self.MAKERS[name]()), self.MAKERS[name]().fit(TEXTS, Y)
        expected = model.transform(TEXTS)
        joblib.dump(model, "model.joblib")
        assert Path("model.joblib").stat().st_size < 60_000  # without the models
        save_adapter(model, "adapter")
        release()
        monkeypatch.chdir(places[1])
        dumped, saved = places[0] / "model.joblib", places[0] / "adapter"
        for loaded in (joblib.load(dumped), load_adapter(saved)):
            np.testing.assert_allclose(loaded.transform(TEXTS), expected, atol=1e-6)
        assert not list(places[1].iterdir())
        assert joblib.hash(self.MAKERS[name]()) == key == joblib.hash(clone(model))

    def test_a_new_fit_and_a_folder_that_is_gone_are_looked_for_here(self, places, monkeypatch):
        here, there = places
        model = AdaptedEncoder("model", Whitening()).fit(TEXTS, Y)
        expected = model.transform(TEXTS)
        Path("model").rename("moved")
        monkeypatch.chdir(there)
        with pytest.raises(OSError, match="model='model' is not a folder"):
            clone(model).fit(TEXTS, Y)
        shutil.copytree(here / "moved", "model")
        loaded = pickle.loads(pickle.dumps(model))
        np.testing.assert_allclose(loaded.transform(TEXTS), expected, atol=1e-6)
        shutil.copytree(here / "base", here / "model")  # the noted folder is preferred
        assert not np.allclose(loaded.transform(TEXTS), expected)

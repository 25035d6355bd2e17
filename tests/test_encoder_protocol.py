"""Encoders of one's own: a SentenceTransformer and images, wrapped in classes."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline

from isoadapt import AdaptedEncoder, IsotropyLayer, LinearHead, LogitPreservingWhitening, Whitening
from isoadapt.interop import export_onnx, load_adapter, save_adapter
from isoadapt.metrics import match_threshold
from isoadapt.model_selection import AdapterSearchCV
from tests.cli.command_line import fail, succeed
from tests.tiny_models import WORDS, save_model

sentence_transformers = pytest.importorskip("sentence_transformers")
RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(36)]
Y = np.arange(36) % 3


class SentenceEncoder(TransformerMixin, BaseEstimator):
    """A folder that sentence-transformers encodes."""

    def __init__(self, folder, batch_size=32):
        self.folder = folder
        self.batch_size = batch_size

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        model = sentence_transformers.SentenceTransformer(str(self.folder), device="cpu")
        return model.encode(list(X), batch_size=self.batch_size, show_progress_bar=False)

    def head(self, y=None):
        return None


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(save_model(tmp_path_factory.mktemp("bare"), kind="AutoModel"))


def test_it_is_adapted_with_its_parameters(encoder):
    model = AdaptedEncoder(encoder, Whitening()).set_params(encoder__batch_size=4).fit(TEXTS)
    rows = encoder.transform(TEXTS)
    expected = Whitening().fit_transform(rows)
    np.testing.assert_allclose(model.transform(TEXTS), expected, atol=1e-4)
    assert clone(model).get_params()["encoder__batch_size"] == 4


def test_it_is_not_saved_but_its_adapter_is(encoder, tmp_path):
    model = AdaptedEncoder(encoder, Whitening()).fit(TEXTS)
    for write in (save_adapter, export_onnx):
        with pytest.raises(TypeError, match=r"SentenceEncoder\(.*only a Trans.*pipeline_\[1:\]"):
            write(model, tmp_path / "a")
    with pytest.raises(ValueError, match=r"its TransformerEncoder.* save_adapter and to_faiss"):
        export_onnx(model.pipeline_[1:], tmp_path / "model.onnx")
    with pytest.raises(TypeError, match="omit an encoder of your own"):
        save_adapter(model.pipeline_[1:], tmp_path / "a", base_model=encoder)
    loaded = load_adapter(save_adapter(model.pipeline_[1:], tmp_path / "a"))
    expected = model.transform(TEXTS)
    np.testing.assert_array_equal(loaded.transform(encoder.transform(TEXTS)), expected)


def test_its_head_is_taken(encoder):
    head = LogitPreservingWhitening("logistic").fit(encoder.transform(TEXTS), Y).head_

    class Classifier(SentenceEncoder):
        def head(self, y=None):
            return head

    model = AdaptedEncoder(Classifier(encoder.folder), LogitPreservingWhitening()).fit(TEXTS)
    np.testing.assert_array_equal(model.predict(TEXTS), head.predict(encoder.transform(TEXTS)))


def test_it_is_searched_and_encodes_once(encoder, spy):
    passes = spy(SentenceEncoder, "transform", lambda _, X: len(X))
    adapter = IsotropyLayer(max_epochs=1, random_state=0)
    search = AdapterSearchCV(AdaptedEncoder(encoder, adapter), {"adapter__alpha": [0.3, 0.7]}, cv=2)
    search.fit(TEXTS, Y)
    assert passes == [36]
    assert isinstance(search.best_estimator_, AdaptedEncoder)
    assert search.predict(TEXTS).shape == (36,)


class Images(TransformerMixin, BaseEstimator):
    """A linear classifier of images of 4 by 4 pixels, with 6 columns before its last layer."""

    def __init__(self, seed=0):
        self.seed = seed

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        weights = np.random.default_rng(self.seed).normal(size=(16, 6))
        return np.reshape(X, (len(X), 16)) @ weights + 5

    def head(self, y=None):
        return LinearHead(np.eye(3, 6), np.zeros(3), classes=["cat", "dog", "emu"])


IMAGES = RNG.normal(size=(36, 1, 4, 4))


@pytest.mark.parametrize("kind", [np.asarray, list])
def test_images_are_adapted_and_searched(kind):
    images, raw = kind(IMAGES), Images().transform(IMAGES)
    labels = Images().head().predict(raw)
    model = AdaptedEncoder(Images(), LogitPreservingWhitening()).fit(images)
    vectors, predicted = model.transform_predict(images)
    np.testing.assert_array_equal(predicted, labels)
    expected = LogitPreservingWhitening(Images().head()).fit_transform(raw)
    np.testing.assert_array_equal(vectors, expected)
    assert model.match_threshold(images, 0.1) == match_threshold(expected, 0.1)
    adapter = IsotropyLayer(max_epochs=1, random_state=0)
    search = AdapterSearchCV(AdaptedEncoder(Images(), adapter), {"encoder__seed": [0, 1]}, cv=2)
    assert search.fit(images, labels).best_params_ == {"encoder__seed": 0}  # whose labels they are


class Headless(TransformerMixin, BaseEstimator):
    """A transformer, but not an encoder."""

    head = None

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.reshape(X, (len(X), -1))


@pytest.mark.parametrize(
    ("encoder", "lacks"),
    [
        (Headless(), "head"),
        (make_pipeline(Headless(), PCA(2)), "head"),
        (Images().head(), "transform, head"),
        (type("Plain", (), {"transform": None})(), "fit, transform, head"),
    ],
)
def test_missing_methods_are_named(encoder, lacks):
    with pytest.raises(TypeError, match=f"encoder=.* lacks the methods {lacks}: .*head"):
        AdaptedEncoder(encoder, Whitening()).fit(IMAGES)
    assert type(encoder).__name__ in repr(AdaptedEncoder(encoder))


def test_its_tags_are_those_of_its_rows(encoder):
    assert AdaptedEncoder(encoder.folder).__sklearn_tags__().input_tags.string
    assert not AdaptedEncoder(Images()).__sklearn_tags__().input_tags.string


def test_a_sentence_transformer_is_still_a_live_model(encoder):
    live = sentence_transformers.SentenceTransformer(str(encoder.folder), device="cpu")
    found = AdaptedEncoder(live, Whitening()).fit(TEXTS).transform(TEXTS)
    expected = AdaptedEncoder(encoder, Whitening()).fit(TEXTS).transform(TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_commands_take_its_vectors_and_refuse_its_rows(encoder, tmp_path):
    np.save(tmp_path / "vectors.npy", Images().transform(IMAGES))
    folder = save_adapter(Whitening().fit(Images().transform(IMAGES)), tmp_path / "adapter")
    succeed("transform", folder, tmp_path / "vectors.npy", tmp_path / "adapted.npy")
    assert np.load(tmp_path / "adapted.npy").shape == (36, 6)
    (table := tmp_path / "texts.tsv").write_text("\n".join(["text", *TEXTS]))
    assert "matrix of its vectors" in fail("transform", folder, table, tmp_path / "z.npy")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((encoder.folder / name).read_bytes())
    assert "an encoder of your own" in fail("audit", tmp_path, table)

"""An encoder of another kind: a SentenceTransformer, wrapped in a class with three methods."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone

from isoadapt import AdaptedEncoder, IsotropyLayer, LogitPreservingWhitening, Whitening
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.model_selection import AdapterSearchCV
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

    def identity(self):
        return str(self.folder)

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
    with pytest.raises(TypeError, match=r"its pipeline_\[1:\]"):
        save_adapter(model, tmp_path / "a")
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


def test_it_is_searched_and_encodes_once(encoder, monkeypatch):
    passes, transform = [], SentenceEncoder.transform
    noted = lambda self, X: passes.append(len(X)) or transform(self, X)  # noqa: E731
    monkeypatch.setattr(SentenceEncoder, "transform", noted)
    adapter = IsotropyLayer(max_epochs=1, random_state=0)
    search = AdapterSearchCV(AdaptedEncoder(encoder, adapter), {"adapter__alpha": [0.3, 0.7]}, cv=2)
    search.fit(TEXTS, Y)
    assert passes == [36]
    assert isinstance(search.best_estimator_, AdaptedEncoder)
    assert search.predict(TEXTS).shape == (36,)

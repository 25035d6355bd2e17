"""The figures, the vectors and the texts of the table on classifiers."""

import numpy as np
import pytest

from benchmarks.quality import _checkpoints, dual_use
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    HEAD_INPUT,
    cached_vectors,
    layer_name,
    layer_vectors,
)
from benchmarks.quality._texts import evaluated_texts, own_texts, target_texts
from isoadapt import TransformerEncoder, load_checkpoint
from isoadapt.metrics import hubness, retrieval_report, similarity_correlation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_figures_equal_the_public_metrics(rng):
    A, B, scores = rng.normal(size=(60, 5)), rng.normal(size=(60, 5)), rng.random(60)
    assert dual_use.similarity(A, B, scores)[0] == similarity_correlation(A, B, scores)
    relevant = rng.integers(40, size=60)
    for k, figure in ((10, "mrr"), (1, "recall")):
        expected = getattr(retrieval_report(A, B[:40], relevant, k=k), figure)
        assert dual_use.reciprocal_rank(A, B[:40], relevant, k)[0] == pytest.approx(expected)
    assert dual_use.hubness(A)[0] == pytest.approx(hubness(A).skewness)


def test_separate_groups_are_found(rng):
    groups = np.repeat([0, 1], 30)
    X = np.eye(8)[groups] + 0.01 * rng.normal(size=(60, 8))
    assert dual_use.same_class(X, groups)[0] == 1
    assert dual_use.outliers(X[:20], X[30:50], X[20:30])[0] == 1
    assert dual_use.outliers(X[30:50], X[:20], X[20:30])[0] == 0


TEXTS = ["One text.", "Another text, which is longer.", "A third one"]


def test_layers_equal_those_of_the_encoder(checkpoint):
    vectors = layer_vectors(checkpoint, TEXTS)
    encoder, _ = load_checkpoint(checkpoint)
    np.testing.assert_allclose(vectors[HEAD_INPUT], encoder.transform(TEXTS), atol=1e-6)
    for layer in (0, 1):
        mean = TransformerEncoder(checkpoint, pooling="mean", layer=layer).transform(TEXTS)
        np.testing.assert_allclose(vectors[layer_name(layer)], mean, atol=1e-6)
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    joined = layer_vectors(checkpoint, pairs)[HEAD_INPUT]
    np.testing.assert_allclose(joined, encoder.transform(pairs), atol=1e-6)


def test_texts_are_encoded_once(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr(_checkpoints, "FOLDER", tmp_path)
    expected = layer_vectors(checkpoint, TEXTS)[HEAD_INPUT]
    first = cached_vectors(checkpoint, "tiny", TEXTS, HEAD_INPUT)
    np.testing.assert_allclose(first, expected, atol=1e-6)
    monkeypatch.delattr(_checkpoints, "layer_vectors")
    repeated = cached_vectors(checkpoint, "tiny", [*TEXTS[::-1], TEXTS[0]], HEAD_INPUT)
    np.testing.assert_array_equal(repeated, first[[2, 1, 0, 0]])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_no_map_is_fitted_on_an_evaluated_text(shared, name):
    own = own_texts(CHECKPOINTS[name].task)
    evaluated = evaluated_texts() | set(own.singles)
    assert len(own.fit) > 1000
    assert not evaluated & set(own.fit)
    assert not evaluated_texts() & set(target_texts())
    assert len(own.inputs) == len(own.labels)
    assert len(own.train_inputs) == len(own.train_labels)

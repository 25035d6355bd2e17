"""The figures, the vectors and the texts of the table on classifiers."""

import numpy as np
import pytest

from benchmarks.quality import _checkpoints, _figures as figures
from benchmarks.quality._checkpoints import CHECKPOINTS, HEAD_INPUT, Checkpoint
from benchmarks.quality._texts import evaluated_texts, more_texts, own_texts
from isoadapt import TransformerEncoder, load_checkpoint
from isoadapt.metrics import hubness, retrieval_report, similarity_correlation


def test_figures_equal_the_public_metrics():
    rng = np.random.default_rng(0)
    A, B, scores = rng.normal(size=(60, 5)), rng.normal(size=(60, 5)), rng.random(60)
    expected = similarity_correlation(A, B, scores)
    assert figures.similarity(A, B, scores)[0] == pytest.approx(expected, abs=1e-12)
    relevant = rng.integers(40, size=60)
    for k, figure in ((10, "mrr"), (1, "recall")):
        expected = getattr(retrieval_report(A, B[:40], relevant, k=k), figure)
        assert figures.reciprocal_rank(A, B[:40], relevant, k)[0] == pytest.approx(expected)
    assert figures.hubness(A)[0] == pytest.approx(hubness(A).skewness)


TEXTS = ["One text.", "Another text, which is longer.", "A third one"]


@pytest.fixture
def classifier(checkpoint, monkeypatch, tmp_path):
    """The tiny classifier in place of one of the table's, with a cache of its own."""
    monkeypatch.setattr(_checkpoints, "FOLDER", tmp_path)
    monkeypatch.setattr(_checkpoints, "MAX_LENGTH", 32)
    monkeypatch.setattr(Checkpoint, "folder", lambda self: checkpoint)
    return Checkpoint("tiny", "cola", layers=2)


def test_columns_are_those_of_the_encoder(classifier, checkpoint):
    encoder, _ = load_checkpoint(checkpoint)
    pairs = [(text, TEXTS[0]) for text in TEXTS]
    for inputs in (TEXTS, pairs):
        expected = encoder.transform(inputs)
        np.testing.assert_allclose(classifier.vectors(inputs), expected, atol=1e-6)
        np.testing.assert_allclose(classifier.head_inputs(inputs), expected, atol=1e-6)
    blocks = ["layer2_cls", "layer1_mean"]
    parts = [
        TransformerEncoder(checkpoint, pooling=pooling, layer=layer).transform(TEXTS)
        for pooling, layer in (("cls", 2), ("mean", 1))
    ]
    found = classifier.vectors(TEXTS, blocks)
    np.testing.assert_allclose(found, np.hstack(parts), atol=1e-6)
    readout = TransformerEncoder(checkpoint, pooling="readout").transform(TEXTS)
    found = classifier.vectors(TEXTS, classifier.readout_blocks())
    np.testing.assert_allclose(found, readout, atol=1e-6)
    assert classifier.readout_blocks()[0] == HEAD_INPUT


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_no_map_is_fitted_on_an_evaluated_text(shared, name):
    own = own_texts(CHECKPOINTS[name].task)
    evaluated = evaluated_texts() | set(own.singles)
    assert len(own.fit) > 1000
    assert not evaluated & set(own.fit)
    assert not evaluated & set(more_texts())
    assert len(own.inputs) == len(own.labels)
    assert len(own.train_inputs) == len(own.train_labels)

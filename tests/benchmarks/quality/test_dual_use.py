"""The figures, the heads and the texts of the table on classifiers."""

import numpy as np
import pytest

from benchmarks.quality import _figures as figures, dual_use
from benchmarks.quality._checkpoints import CHECKPOINTS
from benchmarks.quality._texts import evaluated_texts, own_texts, singles
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


def test_whitened_vectors_have_uncorrelated_columns_of_unit_variance():
    X = np.random.default_rng(0).normal(size=(90, 4)) @ np.diag([1, 2, 3, 4]) + 2
    whitened = dual_use._whitened(lambda rows: X[rows], range(80))(range(80))
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(4), atol=1e-9)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-9)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_no_map_is_fitted_on_an_evaluated_text(shared, name):
    own = own_texts(CHECKPOINTS[name].task)
    evaluated = evaluated_texts() | set(singles(own.inputs))
    assert len(own.fit) > 1000
    assert not evaluated & set(own.fit)
    assert len(own.inputs) == len(own.labels)
    assert len(own.train_inputs) == len(own.train_labels)

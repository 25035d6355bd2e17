"""Similarity, retrieval, hubness and overlap against their definitions and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.stats import skew, spearmanr
from sklearn.metrics import ndcg_score
from sklearn.metrics.pairwise import cosine_similarity, paired_cosine_distances
from sklearn.neighbors import NearestNeighbors

from isoadapt.metrics import hubness, neighbour_overlap, retrieval_report, similarity_correlation
from tests.refusals import refusals


def draw(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_similarity_is_spearmans_correlation_of_the_cosines():
    A, B, scores = draw(200, 6), draw(200, 6, 1), np.random.default_rng(2).integers(6, size=200)
    expected = spearmanr(1 - paired_cosine_distances(A, B), scores).statistic
    assert similarity_correlation(A, B, scores) == pytest.approx(expected, abs=1e-12)
    lengths = np.random.default_rng(3).uniform(0.1, 10, size=(200, 1))
    found = similarity_correlation(A * lengths, B, np.exp(scores))
    assert found == pytest.approx(expected, abs=1e-12)


def test_ndcg_is_that_of_scikit_learn_and_mrr_and_recall_are_counted():
    queries, documents = draw(40, 5), draw(100, 5, 1)
    rng = np.random.default_rng(2)
    relevant = [set(rng.choice(100, size=rng.integers(1, 15), replace=False)) for _ in queries]
    truth = np.array([[number in own for number in range(100)] for own in relevant])
    cosines = cosine_similarity(queries, documents)
    for k in (3, 10):
        report = retrieval_report(queries, documents, relevant, k)
        assert report.ndcg == pytest.approx(ndcg_score(truth, cosines, k=k))
        order = np.argsort(-cosines, axis=1)[:, :k]
        ranks = [
            [rank for rank, number in enumerate(row, 1) if number in own]
            for row, own in zip(order, relevant, strict=True)
        ]
        assert report.mrr == pytest.approx(np.mean([1 / own[0] if own else 0 for own in ranks]))
        shares = [len(own) / len(all_) for own, all_ in zip(ranks, relevant, strict=True)]
        assert report.recall == pytest.approx(np.mean(shares))


def test_documents_that_are_their_own_queries_are_found_and_of_equal_ones_the_first():
    X = draw(50, 4)
    assert retrieval_report(X, X, range(50), k=1) == (1, 1, 1)
    assert retrieval_report(X, X, np.arange(50), k=3, metric="euclidean").mrr == 1
    assert retrieval_report(draw(4, 6), np.ones((300, 6)), [0] * 4, k=3).mrr == 1


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_hubness_equals_its_definition(metric):
    X = draw(400, 50)
    near = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(X)
    counts = np.bincount(near.kneighbors(return_distance=False).ravel(), minlength=400)
    report = hubness(X, metric=metric)
    assert report.skewness == pytest.approx(skew(counts), rel=1e-9)
    assert report.robin_hood == pytest.approx(np.abs(counts - 10).sum() / 8000, rel=1e-9)
    assert report.antihub_share == (counts == 0).mean()
    assert report.max_occurrence == counts.max()
    assert hubness(torch.from_numpy(X), metric=metric) == report


def test_equal_cosines_share_a_rank_whatever_rounding_says():
    A = np.tile([1.0, 1.0, 1.0], (4, 1))
    B = np.array([[-2, 2, -1], [-2, -1, 2], [1, 1, 0], [1, 1, 1]]) / 10
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):
        found = similarity_correlation(A, B[order], [0, 1, 2, 3])
        assert found == pytest.approx(spearmanr([0, 0, 1, 2], range(4)).statistic, abs=1e-12)


def test_a_ring_has_no_hubs():
    angles = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    report = hubness(np.c_[np.cos(angles), np.sin(angles)], k=2)
    assert report[1:] == (0, 0, 2)
    assert np.isnan(report.skewness)


def test_overlap_counts_common_neighbours():
    X, Z = draw(300, 6), draw(300, 4, 1)
    near = NearestNeighbors(n_neighbors=5, metric="cosine")
    first, second = (near.fit(M).kneighbors(return_distance=False) for M in (X, Z))
    expected = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(first, second, strict=True)])
    assert neighbour_overlap(X, Z, k=5) == pytest.approx(expected)
    turn = np.linalg.qr(draw(6, 6, 1))[0]
    assert neighbour_overlap(X, 2 * X @ turn) == 1
    assert neighbour_overlap(X, X @ turn + 3, metric="euclidean") == 1


test_what_does_not_fit_is_refused = refusals(
    (lambda: similarity_correlation(draw(5, 3), draw(5, 4), [*range(5)]), "A has shape"),
    (lambda: similarity_correlation(draw(3, 3), draw(3, 3, 1), [0, 1, np.nan]), "scores"),
    (lambda: retrieval_report(draw(2, 3), draw(4, 3), [0, 1], 10), "k=10"),
    (lambda: retrieval_report(draw(2, 3), draw(4, 3), [0, []], 2), r"relevant\[1\]"),
    (lambda: retrieval_report(draw(2, 3), draw(4, 3), [0, 4], 2), r"relevant\[1\]"),
    (lambda: retrieval_report(draw(2, 3), draw(4, 2), [0, 1], 2), "queries"),
    (lambda: hubness(draw(10, 3)), "k=10"),
    (lambda: neighbour_overlap(draw(20, 3), draw(21, 3)), "X has 20 rows"),
    errors=(TypeError, ValueError),
)

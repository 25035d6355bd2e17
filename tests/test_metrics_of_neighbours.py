"""Similarity, retrieval, hubness and overlap against their definitions and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.stats import skew, spearmanr
from sklearn.metrics import ndcg_score
from sklearn.metrics.pairwise import cosine_similarity, paired_cosine_distances
from sklearn.neighbors import NearestNeighbors

from isoadapt.metrics import (
    hubness,
    neighbour_overlap,
    retrieval_report,
    similarity_correlation,
)


def draw(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


class TestSimilarityCorrelation:
    def test_is_spearmans_of_the_cosines(self):
        A, B, scores = draw(200, 6), draw(200, 6, 1), np.random.default_rng(2).integers(6, size=200)
        expected = spearmanr(1 - paired_cosine_distances(A, B), scores).statistic
        assert similarity_correlation(A, B, scores) == pytest.approx(expected, abs=1e-12)

    def test_scale_of_rows_and_of_scores_does_not_matter(self):
        A, B, scores = draw(50, 4), draw(50, 4, 1), draw(50, 1, 2).ravel()
        lengths = np.random.default_rng(3).uniform(0.1, 10, size=(50, 1))
        found = similarity_correlation(A * lengths, B, np.exp(scores))
        assert found == pytest.approx(similarity_correlation(A, B, scores), abs=1e-12)

    @pytest.mark.parametrize(
        ("A", "B", "scores", "message"),
        [
            (draw(5, 3), draw(5, 4), range(5), "A has shape"),
            (draw(5, 3), draw(5, 3), range(4), "inconsistent"),
            (draw(5, 3), draw(5, 3), [1] * 5, "all scores are 1"),
            (np.ones((5, 3)), np.ones((5, 3)), range(5), "all cosines are 1"),
            (draw(2, 3), draw(2, 3), range(2), "minimum of 3"),
            (draw(5, 3) * np.nan, draw(5, 3), range(5), "A contains NaN"),
            (draw(3, 3), draw(3, 3), [0, 1, np.nan], "scores contains NaN"),
        ],
    )
    def test_refuses(self, A, B, scores, message):
        with pytest.raises(ValueError, match=message):
            similarity_correlation(A, B, list(scores))

    def test_cosines_that_differ_by_rounding_only_are_equal(self):
        A = draw(100, 8)
        with pytest.raises(ValueError, match="all cosines are"):
            similarity_correlation(A, A, np.arange(100))

    def test_of_tensors_with_gradients(self):
        A, B, scores = (torch.from_numpy(draw(9, 4, seed)) for seed in range(3))
        expected = similarity_correlation(A, B, scores[:, 0])
        assert similarity_correlation(A, B, scores[:, 0].requires_grad_()) == expected


class TestRetrievalReport:
    def test_of_equal_documents_the_first_rows_are_found(self):
        documents = np.ones((300, 6))
        assert retrieval_report(draw(4, 6), documents, [0] * 4, k=3).mrr == 1.0

    @pytest.mark.parametrize("relevant", [np.eye(4, dtype=bool), [0.5] * 4, ["0"] * 4, {0: [1]}])
    def test_refuses_what_is_no_row_number(self, relevant):
        with pytest.raises(TypeError, match="relevant"):
            retrieval_report(draw(4, 6), draw(4, 6), relevant, k=2)

    def test_frozen_sets(self):
        X = draw(4, 6)
        assert retrieval_report(X, X, [frozenset({i}) for i in range(4)], k=2).mrr == 1.0

    def test_ndcg_is_that_of_scikit_learn(self):
        queries, documents = draw(40, 5), draw(100, 5, 1)
        rng = np.random.default_rng(2)
        relevant = [set(rng.choice(100, size=rng.integers(1, 15), replace=False)) for _ in queries]
        truth = np.array([[number in own for number in range(100)] for own in relevant])
        expected = ndcg_score(truth, cosine_similarity(queries, documents), k=10)
        assert retrieval_report(queries, documents, relevant).ndcg == pytest.approx(expected)

    def test_mrr_and_recall_by_counting(self):
        queries, documents = draw(40, 5), draw(60, 5, 1)
        relevant = [[i, i + 20] for i in range(40)]
        order = np.argsort(-cosine_similarity(queries, documents), axis=1)[:, :7]
        ranks = [
            [rank for rank, number in enumerate(row, 1) if number in own]
            for row, own in zip(order, relevant, strict=True)
        ]
        report = retrieval_report(queries, documents, relevant, k=7)
        assert report.mrr == pytest.approx(np.mean([1 / own[0] if own else 0 for own in ranks]))
        assert report.recall == pytest.approx(np.mean([len(own) / 2 for own in ranks]))

    def test_documents_that_are_their_own_queries_are_found(self):
        X = draw(50, 4)
        assert retrieval_report(X, X, range(50), k=1) == (1, 1, 1)
        assert retrieval_report(X, X, np.arange(50), k=3, metric="euclidean").mrr == 1

    @pytest.mark.parametrize(
        ("relevant", "k", "message"),
        [
            ([0, 1], 10, "k=10 must be an integer from 1 to 4"),
            ([0, 1], 0, "k=0 must"),
            ([0, 1], True, "k=True must"),
            ([0], 2, "relevant has 1 entries for 2 queries"),
            ([0, []], 2, r"relevant\[1\]=\[\] must name at least one"),
            ([0, 4], 2, r"relevant\[1\]=\[4\] must"),
        ],
    )
    def test_refuses(self, relevant, k, message):
        with pytest.raises(ValueError, match=message):
            retrieval_report(draw(2, 3), draw(4, 3), relevant, k)

    def test_refuses_other_widths(self):
        with pytest.raises(ValueError, match="queries have 3 features and documents 2"):
            retrieval_report(draw(2, 3), draw(4, 2), [0, 1], 2)


class TestHubness:
    @pytest.mark.parametrize("metric", ["cosine", "euclidean"])
    def test_equals_its_definition(self, metric):
        X = draw(800, 50)
        near = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(X)
        counts = np.bincount(near.kneighbors(return_distance=False).ravel(), minlength=800)
        report = hubness(X, metric=metric)
        assert report.skewness == pytest.approx(skew(counts), rel=1e-9)
        assert report.robin_hood == pytest.approx(np.abs(counts - 10).sum() / 16_000, rel=1e-9)
        assert report.antihub_share == (counts == 0).mean()
        assert report.max_occurrence == counts.max()

    def test_a_ring_has_none(self):
        angles = np.linspace(0, 2 * np.pi, 100, endpoint=False)
        report = hubness(np.c_[np.cos(angles), np.sin(angles)], k=2)
        assert report[1:] == (0, 0, 2)
        assert np.isnan(report.skewness)

    def test_of_a_tensor(self):
        X = draw(60, 4)
        assert hubness(torch.from_numpy(X)) == hubness(X)

    def test_refuses(self):
        with pytest.raises(ValueError, match="k=10 must be an integer from 1 to 9"):
            hubness(draw(10, 3))
        with pytest.raises(ValueError, match="metric='dot' must be one of 'cosine', 'euclidean'"):
            hubness(draw(20, 3), metric="dot")


class TestNeighbourOverlap:
    def test_counts_common_neighbours(self):
        X, Z = draw(300, 6), draw(300, 4, 1)
        first, second = (
            NearestNeighbors(n_neighbors=5, metric="cosine")
            .fit(M)
            .kneighbors(return_distance=False)
            for M in (X, Z)
        )
        expected = np.mean([len(set(a) & set(b)) / 5 for a, b in zip(first, second, strict=True)])
        assert neighbour_overlap(X, Z, k=5) == pytest.approx(expected)

    def test_a_rotation_changes_no_neighbour(self):
        X = draw(200, 7)
        turn = np.linalg.qr(draw(7, 7, 1))[0]
        assert neighbour_overlap(X, 2 * X @ turn) == 1
        assert neighbour_overlap(X, X @ turn + 3, metric="euclidean") == 1

    def test_refuses_other_rows(self):
        with pytest.raises(ValueError, match="X has 20 rows and Z 21"):
            neighbour_overlap(draw(20, 3), draw(21, 3))

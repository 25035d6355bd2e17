"""Nearest neighbours against scikit-learn's brute force and against all distances in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy.spatial.distance import cdist
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from isoadapt.geometry._neighbours import nearest_neighbours

METRICS = ("cosine", "euclidean")


def draw(n, d, seed=0, centre=0.0):
    return np.random.default_rng(seed).normal(size=(n, d)) + centre


def search(X, k, metric="cosine", queries=None):
    queries = None if queries is None else torch.from_numpy(queries)
    return [part.numpy() for part in nearest_neighbours(torch.from_numpy(X), k, metric, queries)]


def by_definition(X, k, metric):
    """All distances, sorted by distance and then by number."""
    distances = pairwise_distances(X, metric=metric)
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("metric", METRICS)
class TestNearestNeighbours:
    @pytest.mark.parametrize(
        ("n", "d", "n_queries"), [(5000, 4, None), (60, 3, None), (300, 500, None), (700, 12, 90)]
    )
    def test_equals_scikit_learn(self, metric, n, d, n_queries):
        X, queries = draw(n, d), n_queries and draw(n_queries, d, seed=1)
        distances, numbers = search(X, 10, metric, queries)
        expected = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(X)
        their_distances, their_numbers = expected.kneighbors(queries)
        np.testing.assert_array_equal(numbers, their_numbers)
        np.testing.assert_allclose(distances, their_distances, rtol=1e-9, atol=1e-12)

    def test_equal_rows_in_several_blocks(self, metric):
        X = np.tile(draw(2000, 3), (3, 1))
        numbers = search(X, 2, metric)[1]
        own = np.arange(6000)[:, None]
        copies = np.stack([(own[:, 0] + shift) % 6000 for shift in (2000, 4000)], axis=1)
        np.testing.assert_array_equal(numbers, np.sort(copies, axis=1))

    def test_nearest_last(self, metric):
        X = draw(6000, 3)
        order = np.argsort(-np.linalg.norm(X, axis=1))
        numbers = search(X[order], 3, metric, X[:50])[1]
        np.testing.assert_array_equal(order[numbers], search(X, 3, metric, X[:50])[1])
        among = search(X[order], 3, metric)[1]
        np.testing.assert_array_equal(order[among], search(X, 3, metric)[1][order])

    def test_in_a_narrow_cone_rounding_to_float32_decides_nothing(self, metric):
        X = draw(400, 16) * 1e-4 + 1.0
        np.testing.assert_array_equal(search(X, 7, metric)[1], by_definition(X, 7, metric))

    @pytest.mark.parametrize("exponent", [-150, 150])
    def test_scale(self, metric, exponent):
        X = draw(200, 8, centre=1.0)
        distances, numbers = search(X * 10.0**exponent, 4, metric)
        expected, their_numbers = search(X, 4, metric)
        np.testing.assert_array_equal(numbers, their_numbers)
        unit = 1.0 if metric == "cosine" else 10.0**exponent
        np.testing.assert_allclose(distances, expected * unit, rtol=1e-9)

    def test_of_equal_distances_the_smaller_number_comes_first(self, metric):
        X = np.repeat(np.eye(4), 3, axis=0)
        numbers = search(X, 2, metric)[1]
        assert numbers[0].tolist() == [1, 2]
        assert numbers[1].tolist() == [0, 2]
        assert numbers[11].tolist() == [9, 10]

    @given(n=st.integers(3, 150), d=st.integers(1, 6), seed=st.integers(0, 99))
    def test_any_size(self, metric, n, d, seed):
        X = draw(n, d, seed)
        k = min(n - 1, 4)
        distances, numbers = search(X, k, metric)
        exact = np.take_along_axis(cdist(X, X, metric), numbers, axis=1)
        np.testing.assert_allclose(distances, exact, rtol=1e-7, atol=1e-12)
        smallest = np.sort(cdist(X, X, metric) + np.diag([np.inf] * n), axis=1)
        np.testing.assert_allclose(distances, smallest[:, :k], rtol=1e-7, atol=1e-12)


def test_a_zero_row_is_at_distance_one_from_every_other():
    X = np.vstack([np.zeros(3), draw(20, 3)])
    np.testing.assert_allclose(search(X, 3)[0][0], 1)


def test_distances_of_the_largest_numbers_that_float64_holds():
    X = draw(20, 3)
    largest = X * (np.finfo(np.float64).max / 2 / np.abs(X).max()) * 1.9
    np.testing.assert_array_equal(search(largest, 3, "euclidean")[1], search(X, 3, "euclidean")[1])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("d", [3, 100])
def test_copies_of_a_row_are_ordered_by_index_whatever_rounding_says(metric, d):
    copies = np.tile(draw(1, d), (503, 1))  # products with the same row can differ in a last digit
    copies[:5] += draw(5, d, seed=9)
    numbers = search(copies, 3, metric)[1]
    np.testing.assert_array_equal(numbers[8:], np.tile([5, 6, 7], (495, 1)))


@pytest.mark.parametrize("metric", METRICS)
def test_copies_far_from_the_query_are_ordered_by_index_too(metric):
    row = draw(1, 100)
    X = np.concatenate([np.tile(row, (251, 1)), np.tile(-row, (251, 1))])
    queries = 0.2 * draw(400, 100, seed=1)
    numbers = search(X, 3, metric, queries)[1]
    first = np.where(queries @ row[0] > 0, 0, 251)
    np.testing.assert_array_equal(numbers, first[:, None] + np.arange(3))


@pytest.mark.parametrize("k", [2, 4, 6, 10, 20, 340])
@pytest.mark.parametrize("n_queries", [1, 2, 5])
def test_copies_are_ordered_by_index_for_any_number_of_queries(k, n_queries):
    points = draw(1000, 384)
    points[999] = points[0]
    for seed in range(6):
        queries = points[:1] + 0.3 * draw(n_queries, 384, seed=seed)
        for metric in METRICS:
            assert (search(points, k, metric, queries)[1][:, :2] == [0, 999]).all()


@given(
    n=st.integers(2, 80),
    d=st.integers(1, 5),
    k=st.integers(1, 20),
    shift=st.sampled_from([0, 1, -7, 1000, 10**6]),
    seed=st.integers(0, 999),
)
def test_equal_distances_of_integers_are_ordered_by_index(n, d, k, shift, seed):
    rng = np.random.default_rng(seed)
    X, queries = (rng.integers(-2, 3, size=(rows, d)) + shift for rows in (n, 5))
    squares = np.square(X[:, None] - X).sum(-1) + np.diag([10**9] * n)
    expected = np.argsort(squares, axis=1, kind="stable")[:, : min(k, n - 1)]
    found = search(X.astype(float), min(k, n - 1), "euclidean")[1]
    np.testing.assert_array_equal(found, expected)
    squares = np.square(queries[:, None] - X).sum(-1)
    expected = np.argsort(squares, axis=1, kind="stable")[:, : min(k, n)]
    found = search(X.astype(float), min(k, n), "euclidean", queries.astype(float))[1]
    np.testing.assert_array_equal(found, expected)

"""Nearest neighbours and TwoNN against scikit-learn, scikit-dimension and all distances."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from isoadapt import metrics
from isoadapt.geometry._neighbours import nearest_neighbours, two_nn
from tests.geometry.examples import cloud
from tests.refusals import refusals
from tests.small_blocks import small_blocks

METRICS = ("cosine", "euclidean")
SETTINGS = settings(deadline=None, derandomize=True)


def draw(n, d, seed=0, centre=0.0):
    return np.random.default_rng(seed).normal(size=(n, d)) + centre


def search(X, k, metric="cosine", queries=None):
    queries = None if queries is None else torch.from_numpy(queries)
    return [part.numpy() for part in nearest_neighbours(torch.from_numpy(X), k, metric, queries)]


def by_definition(X, k, metric="euclidean", queries=None):
    """All distances, sorted, and the numbers of the points."""
    distances = cdist(X if queries is None else queries, X, metric)
    if queries is None:
        np.fill_diagonal(distances, np.inf)
    numbers = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, numbers, axis=1), numbers


@pytest.mark.parametrize("metric", METRICS)
class TestNearestNeighbours:
    @pytest.mark.parametrize(
        ("n", "d", "n_queries", "scores"),
        [
            (700, 4, None, 2**14),
            (60, 3, None, 2**24),
            (300, 500, None, 2**24),
            (700, 12, 90, 2**14),
        ],
    )
    def test_equals_scikit_learn(self, metric, n, d, n_queries, scores):
        X, queries = draw(n, d), n_queries and draw(n_queries, d, seed=1)
        with small_blocks(neighbours=scores):
            distances, numbers = search(X, 10, metric, queries)
        expected = NearestNeighbors(n_neighbors=10, metric=metric, algorithm="brute").fit(X)
        their_distances, their_numbers = expected.kneighbors(queries)
        np.testing.assert_array_equal(numbers, their_numbers)
        np.testing.assert_allclose(distances, their_distances, rtol=1e-9, atol=1e-12)

    def test_blocks_and_the_order_of_the_rows_do_not_matter(self, metric):
        X = draw(600, 3)
        expected = [search(X, 3, metric, queries)[1] for queries in (None, X[:50])]
        order = np.argsort(-np.linalg.norm(X, axis=1))  # the nearest of many come last
        with small_blocks(neighbours=2**12):
            found = [search(X[order], 3, metric, queries)[1] for queries in (None, X[:50])]
            copies = search(np.tile(X[:200], (3, 1)), 2, metric)[1]
        np.testing.assert_array_equal(order[found[0]], expected[0][order])
        np.testing.assert_array_equal(order[found[1]], expected[1])
        own = np.arange(600)
        others = np.stack([(own + shift) % 600 for shift in (200, 400)], axis=1)
        np.testing.assert_array_equal(copies, np.sort(others, axis=1))

    def test_in_a_narrow_cone_rounding_to_float32_decides_nothing(self, metric):
        X = draw(400, 16) * 1e-4 + 1.0
        np.testing.assert_array_equal(search(X, 7, metric)[1], by_definition(X, 7, metric)[1])

    @pytest.mark.parametrize("exponent", [-150, 150])
    def test_scale(self, metric, exponent):
        X = draw(200, 8, centre=1.0)
        distances, numbers = search(X * 10.0**exponent, 4, metric)
        expected, their_numbers = search(X, 4, metric)
        np.testing.assert_array_equal(numbers, their_numbers)
        unit = 1.0 if metric == "cosine" else 10.0**exponent
        np.testing.assert_allclose(distances, expected * unit, rtol=1e-9)

    @pytest.mark.parametrize("d", [3, 100])
    def test_copies_of_a_row_are_ordered_by_index_whatever_rounding_says(self, metric, d):
        copies = np.tile(draw(1, d), (503, 1))  # products with the same row can differ slightly
        copies[:5] += draw(5, d, seed=9)
        numbers = search(copies, 3, metric)[1]
        np.testing.assert_array_equal(numbers[8:], np.tile([5, 6, 7], (495, 1)))

    @pytest.mark.parametrize(
        "draw_integers",
        [
            lambda rng, n: rng.integers(-2, 3, (n, 3)),
            lambda rng, n: rng.integers(0, 2, (n, 32)),
            lambda rng, n: rng.integers(-8, 9, (n, 5)) * 17,
        ],
    )
    def test_equal_cosines_and_distances_of_integers_are_ties(self, metric, draw_integers):
        rng = np.random.default_rng(0)
        points, queries = draw_integers(rng, 300), draw_integers(rng, 60)
        numbers = search(points / 10, 12, metric, queries / 10)[1]
        for query, found in zip(queries, numbers, strict=True):
            products, squares = points @ query, (points**2).sum(axis=1)
            keys = [Fraction(int(each)) for each in squares - 2 * products]
            if metric == "cosine":  # in the order of the cosines
                pairs = zip(products.tolist(), squares.tolist(), strict=True)
                keys = [Fraction(-a * abs(a), max(b, 1)) for a, b in pairs]
            assert found.tolist() == sorted(range(300), key=keys.__getitem__)[:12]

    @pytest.mark.parametrize(("k", "n_queries"), [(2, 1), (4, 5), (10, 2), (340, 1)])
    def test_copies_are_ordered_by_index_for_any_number_of_queries(self, metric, k, n_queries):
        points = draw(1000, 384)
        points[999] = points[0]
        for seed in range(2):
            queries = points[:1] + 0.3 * draw(n_queries, 384, seed=seed)
            assert (search(points, k, metric, queries)[1][:, :2] == [0, 999]).all()


def test_a_zero_row_is_at_distance_one_from_every_other():
    X = np.vstack([np.zeros(3), draw(20, 3)])
    np.testing.assert_allclose(search(X, 3)[0][0], 1)


def test_distances_of_the_largest_numbers_that_float64_holds():
    X = draw(20, 3)
    largest = X * (np.finfo(np.float64).max / 2 / np.abs(X).max()) * 1.9
    np.testing.assert_array_equal(search(largest, 3, "euclidean")[1], search(X, 3, "euclidean")[1])


# TwoNN.


def dimension(X, **options):
    return float(two_nn(torch.tensor(X), **options))


def dimension_by_definition(X, discard=0.1):
    """The estimate from all differences, without any cancellation."""
    first, second = by_definition(X, 2)[0].T
    kept = int(len(X) * (1 - discard))
    x = np.sort(np.log(second / first))[:kept]
    y = -np.log(1 - np.arange(1, kept + 1) / len(X))
    return (x @ y) / (x @ x)


@pytest.mark.parametrize(
    ("shape", "discard"), [((301, 7), 0.1), ((50, 200), 0.25), ((20, 3), 0.4), ((4, 2), 0.1)]
)
def test_two_nn_equals_scikit_dimension(shape, discard):
    from skdim.id import TwoNN  # takes seconds

    X = cloud(*shape)
    theirs = TwoNN(discard_fraction=discard).fit(X).dimension_
    assert metrics.two_nn(X, discard=discard) == pytest.approx(theirs, rel=1e-6)
    assert metrics.two_nn(X) == metrics.two_nn(X, discard=0.1)


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(8, 60),
    d=st.integers(2, 9),
    scale=st.sampled_from([1e-150, 1e-9, 0.3, 1e9, 1e150]),
    copies=st.integers(1, 40),
)
def test_no_motion_scale_order_or_exact_duplicate_matters(seed, n, d, scale, copies):
    X, rng = cloud(n, d, seed=seed), np.random.default_rng(seed)
    wanted = dimension(X)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    for other in (X @ turn, X + 10 * rng.normal(size=d), X * scale, rng.permutation(X)):
        assert dimension(other) == pytest.approx(wanted, rel=1e-8)
    X[0, 0] = 0.0
    again = X[rng.integers(0, n, copies)]
    again[again == 0] = -0.0
    assert dimension(np.concatenate([again, X])) == dimension(X)


def test_of_near_duplicates_the_first_is_kept():
    X = np.unique(np.concatenate([cloud(60, 4)] * 2) + 1e-8 * draw(120, 4, seed=1), axis=0)
    radius = X.std(0).dot(X.std(0)) ** 0.5
    for tolerance in (1e-9, 1e-2, 0.1):
        near = np.tril(cdist(X, X) <= tolerance * radius, -1).any(1)
        assert dimension(X, tolerance=tolerance) == pytest.approx(dimension(X[~near]), rel=1e-9)


def test_offsets_distances_and_small_clusters_cost_no_digits():
    X = cloud(90, 5)
    clusters = np.repeat(np.eye(5)[:3], 30, axis=0)
    for size in (1e3, 1e6, 1e9):
        for other in (np.round(X, 9) + min(size, 1e6), X + size * clusters):
            wanted = dimension_by_definition(other)
            assert dimension(other) == pytest.approx(wanted, rel=1e-9), size
    for scale in (1e-4, 1e-6):
        other = np.concatenate([X, scale * X + 100])
        assert dimension(other) == pytest.approx(dimension_by_definition(other), rel=1e-7), scale


def test_differences_that_underflow_count_as_duplicates():
    X = cloud(30, 4)
    X[:10, 0] = 0.0
    twins = X[:10] + np.array([1e-200, 0, 0, 0])
    assert np.isfinite(dimension(np.concatenate([X, twins])))


@pytest.mark.parametrize("entries", [1, 300, 1000])
def test_chunks_do_not_matter(entries):
    X = np.concatenate([cloud(60, 4), cloud(30, 4) + 1e-8])
    wanted = [dimension(X), dimension(X, tolerance=1e-5)]
    with small_blocks(dimension=entries):
        assert [dimension(X), dimension(X, tolerance=1e-5)] == pytest.approx(wanted, rel=1e-9)


NEARLY_EQUAL = np.tile(cloud(3, 3), (4, 1)) + 1e-9 * draw(12, 3)
test_points_without_a_dimension_are_refused = refusals(
    (lambda: dimension(np.repeat(cloud(3, 3), 5, axis=0)), "3 distinct rows"),
    (lambda: dimension(NEARLY_EQUAL, tolerance=1e-5), "3 distinct rows"),
    (lambda: dimension(cloud(10, 3), discard=0.85), "discard"),
    (lambda: dimension(1e-3 * np.eye(6) + 7), "equally far"),
)

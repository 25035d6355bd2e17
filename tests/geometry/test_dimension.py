"""TwoNN: against scikit-dimension, invariances, near duplicates, cancellation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from isoadapt import metrics
from isoadapt.geometry import _neighbours as module
from isoadapt.geometry._neighbours import two_nn

SETTINGS = settings(max_examples=30, deadline=None, derandomize=True)
SHAPES = [(300, 2), (300, 7), (301, 26), (50, 200), (20, 3), (4, 2)]


def cloud(n, d, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.arange(1, d + 1) ** -0.7
    return X @ np.linalg.qr(rng.normal(size=(d, d)))[0] + rng.normal(size=d)


def oracle(X, discard=0.1):
    from skdim.id import TwoNN  # takes seconds

    return TwoNN(discard_fraction=discard).fit(X).dimension_


def dimension(X, **options):
    return float(two_nn(torch.tensor(X), **options))


def every_pair(X, discard=0.1):
    """The definition over all differences, without any cancellation."""
    D = np.linalg.norm(X[:, None] - X, axis=2)
    np.fill_diagonal(D, np.inf)
    first, second = np.sort(D, axis=1)[:, :2].T
    kept = int(len(X) * (1 - discard))
    x = np.sort(np.log(second / first))[:kept]
    y = -np.log(1 - np.arange(1, kept + 1) / len(X))
    return (x @ y) / (x @ x)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("discard", [0.1, 0.25, 0.4])
def test_equals_scikit_dimension(shape, discard):
    X = cloud(*shape)
    assert metrics.two_nn(X, discard=discard) == pytest.approx(oracle(X, discard), rel=1e-6)
    assert metrics.two_nn(X) == metrics.two_nn(X, discard=0.1)


@pytest.mark.parametrize("task", ["cola", "mrpc"])
def test_equals_scikit_dimension_on_real_embeddings(task, shared):
    X = np.load(shared / "embeddings" / f"{task}.npz")["E_dev"][:400]
    distinct = np.unique(X.astype(np.float64), axis=0)
    assert metrics.two_nn(X) == pytest.approx(oracle(distinct), rel=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_finds_the_dimension_of_flat_and_curved_manifolds(k):
    rng = np.random.default_rng(0)
    flat = rng.uniform(size=(2500, k)) @ rng.normal(size=(k, 20))
    sphere = rng.normal(size=(2500, k + 1))
    sphere /= np.linalg.norm(sphere, axis=1, keepdims=True)
    assert dimension(flat) == pytest.approx(k, rel=0.1)
    assert dimension(sphere) == pytest.approx(k, rel=0.1)


@SETTINGS
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(8, 60),
    d=st.integers(2, 9),
    scale=st.sampled_from([1e-150, 1e-9, 0.3, 1e9, 1e150]),
)
def test_no_rotation_translation_scale_or_order_matters(seed, n, d, scale):
    X = cloud(n, d, seed)
    rng = np.random.default_rng(seed)
    wanted = dimension(X)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    for other in (X @ turn, X + 10 * rng.normal(size=d), X * scale, rng.permutation(X)):
        assert dimension(other) == pytest.approx(wanted, rel=1e-8)


@SETTINGS
@given(seed=st.integers(0, 10**6), copies=st.integers(1, 40))
def test_exact_duplicates_are_dropped(seed, copies):
    X = cloud(30, 4, seed)
    X[0, 0] = 0.0
    again = X[np.random.default_rng(seed).integers(0, 30, copies)]
    again[again == 0] = -0.0
    assert dimension(np.concatenate([again, X])) == dimension(X)


# Near duplicates.


def test_of_near_duplicates_one_is_kept():
    X = cloud(60, 4)
    rng = np.random.default_rng(1)
    copies = np.concatenate([X, X, X[:20]]) + 1e-8 * rng.normal(size=(140, 4))
    assert dimension(copies, tolerance=1e-5) == pytest.approx(dimension(X), rel=1e-5)
    assert abs(dimension(copies) - dimension(X)) > 0.5


def test_a_tolerance_changes_nothing_without_near_duplicates():
    X = cloud(60, 4)
    assert dimension(X, tolerance=1e-9) == dimension(X)


# Numerics.


def test_offsets_distances_and_small_clusters_cost_no_digits():
    for offset in (1e3, 1e6):
        X = np.round(cloud(100, 5), 9) + offset
        assert dimension(X) == pytest.approx(every_pair(X), rel=1e-12), offset
    for distance in (1e3, 1e6, 1e8, 1e9):
        X = cloud(90, 5) + distance * np.repeat(np.eye(5)[:3], 30, axis=0)
        assert dimension(X) == pytest.approx(every_pair(X), rel=1e-9), distance
    for scale in (1e-4, 1e-5, 1e-6):
        X = np.concatenate([cloud(90, 5), scale * cloud(90, 5) + 100])
        assert dimension(X) == pytest.approx(every_pair(X), rel=1e-7), scale


def test_differences_that_underflow_count_as_duplicates():
    X = cloud(30, 4)
    twin = np.concatenate([X, X[:1]])
    twin[0] = [0.0, 0.0, 0.0, 0.0]
    twin[-1] = [1e-200, 0.0, 0.0, 0.0]
    assert np.isfinite(dimension(twin))


# Chunks.


@pytest.mark.parametrize("entries", [1, 300, 1000, 10**9])
def test_chunks_do_not_matter(monkeypatch, entries):
    X = np.concatenate([cloud(60, 4), cloud(30, 4) + 1e-8])
    wanted = [dimension(X), dimension(X, tolerance=1e-5)]
    monkeypatch.setattr(module, "_ENTRIES", entries)
    assert [dimension(X), dimension(X, tolerance=1e-5)] == pytest.approx(wanted, rel=1e-9)


# What is refused.


@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_distinct_points_are_refused(n):
    X = np.repeat(cloud(n, 3), 5, axis=0)
    with pytest.raises(ValueError, match=f"X has {n} distinct rows.*use more rows"):
        dimension(X)
    with pytest.raises(ValueError, match="distinct rows"):
        dimension(X, tolerance=1e-5)


def test_points_that_fall_together_are_refused():
    X = np.concatenate([cloud(3, 3)] * 4) + 1e-9 * cloud(12, 3)
    with pytest.raises(ValueError, match="X has 3 distinct rows"):
        dimension(X, tolerance=1e-5)


def test_too_few_ratios_are_refused():
    with pytest.raises(ValueError, match=r"discard=0.85 leaves 1 ratios"):
        metrics.two_nn(cloud(10, 3), discard=0.85)


@pytest.mark.parametrize("X", [np.eye(6), 1e-3 * np.eye(6) + 7])
def test_equally_far_neighbours_are_refused(X):
    with pytest.raises(ValueError, match="equally far away"):
        dimension(X)


@pytest.mark.parametrize("discard", [0, 1, -0.1, 1.1, np.nan])
def test_bad_discard_is_refused(discard):
    with pytest.raises(ValueError, match=r"discard=.* must lie between 0 and 1"):
        metrics.two_nn(cloud(10, 3), discard=discard)

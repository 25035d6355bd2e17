"""Near-duplicates among many rows: against all pairs by NumPy, and how many are false."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize

from isoadapt.metrics import find_duplicates
from tests.refusals import refusals
from tests.small_blocks import small_blocks

SPECTRUM = np.arange(1, 49) ** -0.2


def rows(kind, n, seed):
    """Unrelated rows as an encoder, a repaired classifier and a raw one give them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 48)) * (1 if kind == "base" else SPECTRUM)
    if kind != "raw":
        return X
    axis, centre = np.random.default_rng(99).normal(size=(2, 48))
    scores = rng.choice([-1, 1], size=n) + 0.5 * rng.normal(size=n)
    return 3 * centre + 3 * scores[:, None] * axis + 0.5 * X


def with_duplicates(kind, n, n_planted, seed):
    """Rows, the first of which have a near-duplicate after the others."""
    X, other = rows(kind, n, seed), rows(kind, n_planted, 1000 + seed)
    return np.vstack([X, X[:n_planted] + 0.02 * (other - X[:n_planted])])


@pytest.mark.parametrize("kind", ["base", "repaired"])
@small_blocks(duplicates=64)
def test_pairs_above_a_threshold_are_those_of_numpy(kind):
    X = rows(kind, 300, 0)
    cosines = np.triu(cosine_similarity(X), 1)
    threshold = float(np.quantile(cosines[cosines != 0], 0.98))
    found = find_duplicates(X, threshold=threshold)
    first, second = np.nonzero(cosines > threshold)
    order = np.argsort(-cosines[first, second])
    np.testing.assert_array_equal(found.pairs, np.column_stack([first, second])[order])
    np.testing.assert_allclose(found.cosines, cosines[first, second][order], atol=1e-6)
    assert found[2:] == (threshold, threshold, threshold, 0)
    assert find_duplicates(X, threshold=1).pairs.shape == (0, 2)


def test_copies_form_no_pairs_and_lengths_rotations_and_containers_do_not_matter():
    X = with_duplicates("repaired", 300, 5, 0).astype(np.float32)
    expected = find_duplicates(X)
    assert {(i, 300 + i) for i in range(5)} <= set(map(tuple, expected.pairs.tolist()))
    copies = find_duplicates(np.vstack([X, X[3:10], 2 * X[:1]]))
    assert copies.n_copies == 8
    later = find_duplicates(np.vstack([X[:1], X])).pairs  # its second row is the copy
    np.testing.assert_array_equal(later, expected.pairs + (expected.pairs > 0))
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(48, 48)))[0]
    lengths = np.random.default_rng(2).uniform(0.1, 10, size=(305, 1))
    for each in (lengths * X @ turn, pd.DataFrame(X), torch.from_numpy(X), X.tolist()):
        found = find_duplicates(each)
        np.testing.assert_array_equal(found.pairs, expected.pairs)
        assert found[2:] == pytest.approx(expected[2:], abs=1e-5)
    np.testing.assert_array_equal(copies.pairs, expected.pairs)
    assert copies[2:5] == pytest.approx(expected[2:5], abs=1e-5)


@pytest.fixture(scope="module")
def population():
    """The largest cosines of all pairs of many rows of each kind, in ascending order."""
    found = {}
    for kind in ("base", "repaired", "raw"):
        units, largest = normalize(rows(kind, 8000, 10)).astype(np.float32), []
        for start in range(0, 8000, 500):
            cosines = units[start : start + 500] @ units[start:].T
            cosines[np.tril_indices(500)] = -1
            largest.append(np.partition(cosines.ravel(), -50_000)[-50_000:])
        found[kind] = np.sort(np.concatenate(largest))[-50_000:]
    return found


def expected_above(threshold, cosines, n):
    """Number of pairs of n rows that are expected above a threshold."""
    return np.sum(cosines > threshold) * (n * (n - 1)) / (8000 * 7999)


@pytest.mark.parametrize("n_planted", [0, 120])
@pytest.mark.parametrize(("kind", "factor"), [("base", 3), ("repaired", 3), ("raw", 6)])
def test_as_many_false_pairs_as_asked_for_are_found_with_and_without_duplicates(
    population, kind, factor, n_planted
):
    X = [with_duplicates(kind, 2000, n_planted, seed) for seed in range(3)]
    for asked in (1, 10, 100):
        found = [find_duplicates(each, false_pairs=asked) for each in X]
        false = [expected_above(each.threshold, population[kind], len(X[0])) for each in found]
        assert asked / factor < np.mean(false) < factor * asked
        n_found = [np.sum(each.pairs[:, 1] - each.pairs[:, 0] == 2000) for each in found]
        assert np.mean(n_found) >= 0.9 * n_planted


def test_the_interval_holds_the_threshold_of_other_rows(population):
    found = [find_duplicates(rows("base", 400, seed), false_pairs=10) for seed in range(25)]
    middle, low, high = np.transpose(
        [[expected_above(x, population["base"], 400) > 10 for x in each[2:5]] for each in found]
    )
    assert np.sum(low & ~high) >= 21
    assert 5 <= np.sum(middle) <= 20


test_what_does_not_fit_is_refused = refusals(
    (lambda: find_duplicates(np.eye(30)), "30 different rows: at least 50"),
    (lambda: find_duplicates(np.eye(60), false_pairs=451), "at most 450; or pass a thresh"),
    (lambda: find_duplicates(np.eye(60), false_pairs=0), r"'false_pairs' .* Got 0"),
    (lambda: find_duplicates(np.eye(60), threshold=1.1), r"'threshold' .* Got 1.1"),
    (lambda: find_duplicates([[np.nan, 1.0]] * 3), "NaN"),
)

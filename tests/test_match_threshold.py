"""The cosine that a share of random pairs exceeds, against NumPy's quantile over all pairs."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from isoadapt.metrics import match_threshold
from tests.refusals import refusals
from tests.small_blocks import small_blocks


def cone(n, d, seed=0):
    """Rows about a common direction, in clusters as texts of several subjects are."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(40, d))
    return 2 + centres[rng.integers(40, size=n)] + rng.normal(size=(n, d))


def quantile(cosines, rate):
    return pytest.approx(np.quantile(cosines, 1 - rate, method="inverted_cdf"), abs=1e-12)


@pytest.mark.parametrize("rate", [0.003, 0.03, 0.5])
def test_it_is_the_quantile_over_all_pairs(rate):
    X, Q = cone(151, 6), cone(90, 6, seed=1)
    cosines = cosine_similarity(X)[np.triu_indices(151, 1)]
    assert match_threshold(X, rate).threshold == quantile(cosines, rate)
    found = match_threshold(X, rate, queries=Q)
    assert found.threshold == quantile(cosine_similarity(Q, X), rate)
    assert found.ci_low < found.threshold < found.ci_high <= 1


def test_lengths_rotations_copies_and_containers_do_not_matter():
    X = cone(151, 6).astype(np.float32)
    expected = match_threshold(X, 0.01)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    lengths = np.random.default_rng(2).uniform(0.1, 10, size=(151, 1))
    copies = np.vstack([X, X[:70], X[:1].repeat(9, axis=0)])
    for rows in (lengths * X @ turn, copies, pd.DataFrame(X), torch.from_numpy(X), X.tolist()):
        assert match_threshold(rows, 0.01) == pytest.approx(expected, abs=1e-6)
    queries = match_threshold(X, 0.01, queries=X)  # no query forms a pair with its copy
    assert queries.threshold == pytest.approx(expected.threshold, abs=1e-12)


def test_of_many_rows_a_sample_is_used():
    X = cone(900, 6)
    whole = match_threshold(X, 0.01)
    with small_blocks(pairs=300):
        found = match_threshold(X, 0.01)
        assert found == match_threshold(X, 0.01) != whole
    assert found.ci_low < whole.threshold < found.ci_high
    assert found.ci_high - found.ci_low > 1.3 * (whole.ci_high - whole.ci_low)


@pytest.mark.parametrize("with_queries", [False, True])
def test_intervals_hold_the_true_threshold(with_queries):
    """Pairs depend on each other: intervals of independent pairs would be a third as wide."""
    population, rate = cone(4000, 6), 0.01
    truth = match_threshold(population, rate).threshold
    held = 0
    for seed in range(100):
        X, Q = cone(200, 6, seed=2 * seed), cone(200, 6, seed=2 * seed + 1)
        low, high = match_threshold(X, rate, Q if with_queries else None)[1:]
        held += low <= truth <= high
    assert 88 <= held <= 100


test_what_does_not_fit_is_refused = refusals(
    (lambda: match_threshold(cone(50, 3), "0.1"), "'rate' parameter .* Got '0.1'"),
    (lambda: match_threshold(cone(50, 3), 1), r"in the range \(0.0, 1.0\). Got 1"),
    (lambda: match_threshold(cone(40, 3)), "of the 780 pairs .*a larger rate"),
    (lambda: match_threshold(np.ones((50, 3))), "all rows of X are equal"),
    (lambda: match_threshold(cone(50, 3), queries=np.ones((2, 3))), "all rows of queries"),
    (lambda: match_threshold(cone(50, 3), queries=cone(50, 4)), "mismatch"),
    (lambda: match_threshold([[np.nan, 1.0]] * 3), "NaN"),
)

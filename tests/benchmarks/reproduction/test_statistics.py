"""Intervals, p-values, power and the bootstrap against what they are defined by."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from sklearn.metrics import accuracy_score, matthews_corrcoef

from benchmarks.reproduction._statistics import (
    bootstrap,
    p_above,
    pack,
    t_interval,
    unpack,
)

STEPS = [0.02, -0.01, 0.03, 0.01, 0.015]


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_interval_is_that_of_the_t_test(level):
    theirs = ttest_1samp(STEPS, 0.0).confidence_interval(1 - level)
    mean, low, high = t_interval(STEPS, level)
    assert (mean, low, high) == pytest.approx((np.mean(STEPS), theirs.low, theirs.high))


def test_p_is_at_most_the_level_where_the_interval_lies_above():
    one_sided = ttest_1samp(STEPS, 0.0, alternative="greater").pvalue
    p = p_above(STEPS)
    assert p == pytest.approx(2 * one_sided)
    assert t_interval(STEPS, p).low == pytest.approx(0, abs=1e-12)
    assert p_above(STEPS, bound=0.005) > p
    assert p_above([-step for step in STEPS]) == 1.0


@pytest.fixture
def predictions():
    rng = np.random.default_rng(1)
    labels = rng.random(301) < 0.7

    def noisy(share):
        return labels, labels ^ (rng.random(301) < share)

    return noisy


def test_predictions_survive_packing(predictions):
    labels, predicted = predictions(0.2)
    packed = pack(labels.astype(int), predicted.astype(int))
    for found, expected in zip(unpack(packed), (labels, predicted), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "score"), [("accuracy", accuracy_score), ("matthews", matthews_corrcoef)]
)
def test_the_bootstrap_draws_the_same_rows_for_both_sides(predictions, name, score):
    before = [predictions(0.3), predictions(0.35)]
    after = [predictions(0.2), predictions(0.25)]
    n_draws = 40
    draws = np.random.default_rng(0).multinomial(301, np.full(301, 1 / 301), size=n_draws)
    steps = [
        np.mean(
            [
                score(np.repeat(y, draw), np.repeat(second, draw))
                - score(np.repeat(y, draw), np.repeat(first, draw))
                for (y, first), (_, second) in zip(before, after, strict=True)
            ]
        )
        for draw in draws
    ]
    found = bootstrap(before, after, name, n_draws=n_draws)
    assert found == pytest.approx(np.quantile(steps, [0.025, 0.975]))
    assert bootstrap(before, before, name) == (0.0, 0.0)

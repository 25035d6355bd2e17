"""Intervals, p-values and the bootstrap against what they are defined by."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from sklearn.metrics import accuracy_score, matthews_corrcoef

from benchmarks.reproduction._statistics import bootstrap, p_above, t_interval

STEPS = [0.02, -0.01, 0.03, 0.01, 0.015]


def test_interval_and_p_are_those_of_the_t_test():
    theirs = ttest_1samp(STEPS, 0.0).confidence_interval(0.99)
    expected = np.mean(STEPS), theirs.low, theirs.high
    assert t_interval(STEPS, 0.01) == pytest.approx(expected)
    p = p_above(STEPS)
    assert p == pytest.approx(2 * ttest_1samp(STEPS, 0.0, alternative="greater").pvalue)
    assert t_interval(STEPS, p).low == pytest.approx(0, abs=1e-12)
    assert p_above(STEPS, bound=0.005) > p
    assert p_above([-step for step in STEPS]) == 1.0


def predictions(rng, share):
    """Labels, always the same, and predictions of which this share is wrong."""
    labels = np.random.default_rng(1).random(301) < 0.7
    return labels, labels ^ (rng.random(301) < share)


@pytest.mark.parametrize(
    ("name", "score"), [("accuracy", accuracy_score), ("matthews", matthews_corrcoef)]
)
def test_the_bootstrap_draws_the_same_rows_for_both_sides(name, score):
    rng = np.random.default_rng(1)
    before = [predictions(rng, share) for share in (0.3, 0.35)]
    after = [predictions(rng, share) for share in (0.2, 0.25)]
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

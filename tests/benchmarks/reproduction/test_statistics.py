"""Intervals, p-values, power and the bootstrap against what they are defined by."""

import numpy as np
import pytest
from scipy.stats import chi2, ttest_1samp
from sklearn.metrics import accuracy_score, matthews_corrcoef

from benchmarks._data import load_embeddings, shared_folder
from benchmarks.reproduction._choice import PUBLISHED
from benchmarks.reproduction._statistics import (
    bootstrap,
    needed,
    p_above,
    pack,
    power,
    power_range,
    t_interval,
    unpack,
)

STEPS = [0.02, -0.01, 0.03, 0.01, 0.015]


@pytest.mark.parametrize("level", [0.05, 0.01])
def test_the_interval_is_that_of_the_t_test(level):
    theirs = ttest_1samp(STEPS, 0.0).confidence_interval(1 - level)
    mean, low, high = t_interval(STEPS, level)
    assert (mean, low, high) == pytest.approx((np.mean(STEPS), theirs.low, theirs.high))


@pytest.mark.parametrize("steps", [[0.1, 0.1, 0.1], [0.8 - 0.7, 0.1, 0.3 - 0.2], [-0.1, -0.1]])
def test_equal_differences_have_no_width_and_tell_nothing(steps):
    mean, low, high = t_interval(steps)
    assert low == mean == high == pytest.approx(steps[1])
    assert p_above(steps) == 1.0


def test_p_is_at_most_the_level_where_the_interval_lies_above():
    one_sided = ttest_1samp(STEPS, 0.0, alternative="greater").pvalue
    p = p_above(STEPS)
    assert p == pytest.approx(2 * one_sided)
    assert t_interval(STEPS, p).low == pytest.approx(0, abs=1e-12)
    assert p_above(STEPS, bound=0.005) > p
    assert p_above([-step for step in STEPS]) == 1.0


def test_power_is_the_share_of_intervals_above_0():
    rng = np.random.default_rng(0)
    draws = rng.normal(1.0, 1.0, size=(20_000, 5))
    low = draws.mean(1) - 2.7764 * draws.std(1, ddof=1) / np.sqrt(5)
    assert power(1.0, 5) == pytest.approx((low > 0).mean(), abs=0.012)
    assert power(0.0, 5) == pytest.approx(0.025)
    assert power(1.0, 3) < power(1.0, 5) < power(2.0, 5)


def test_the_range_of_power_covers_the_interval_of_the_standard_deviation():
    rng = np.random.default_rng(0)
    sd = rng.normal(size=(20_000, 5)).std(1, ddof=1)
    bounds = sd[:, None] * np.sqrt(4 / chi2.ppf([0.975, 0.025], 4))
    covered = (bounds[:, 0] <= 1) & (bounds[:, 1] >= 1)
    assert covered.mean() == pytest.approx(0.95, abs=0.005)
    low, high = power_range(STEPS, -0.01)
    own = np.std(STEPS, ddof=1) * np.sqrt(4 / chi2.ppf([0.025, 0.975], 4))
    assert (low, high) == pytest.approx([power(0.01 / bound, 5) for bound in own])
    assert low < power(0.01 / np.std(STEPS, ddof=1), 5) < high


@pytest.mark.parametrize("n", [3, 5])
def test_a_mean_of_the_needed_size_has_the_p_value_of_holms_first_step(n):
    steps = np.linspace(-1, 1, n)
    steps += needed(n, 31) * steps.std(ddof=1)
    assert p_above(steps.tolist()) == pytest.approx(0.05 / 31)


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


@pytest.mark.skipif(
    not (shared_folder() / "embeddings" / "cola.npz").exists(), reason="needs stored embeddings"
)
def test_the_published_figure_of_cola_is_that_of_the_stored_embeddings():
    data = load_embeddings("cola")
    predicted = data.head.predict(data.X_test)
    published = PUBLISHED["cola"]
    assert matthews_corrcoef(data.y_test, predicted) == pytest.approx(published.value, abs=5e-5)
    labels = data.y_test.astype(bool)
    low, high = bootstrap([(labels, labels)], [(labels, predicted.astype(bool))], "matthews")
    assert (high - low) / 3.92 == pytest.approx(published.error, rel=0.05)

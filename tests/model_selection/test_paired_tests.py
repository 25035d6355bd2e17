"""Tests of differences against formulas, other implementations and simulations."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr
from sklearn.metrics import r2_score, roc_auc_score

from isoadapt.model_selection._compare._measure import placements, same_class_shares
from isoadapt.model_selection._compare._paired_tests import (
    BootstrapUse,
    Determination,
    Mean,
    RankCorrelation,
    TwoMeans,
    Units,
    corrected_t,
    holm,
    sign_flip_p,
)

rng = np.random.default_rng(0)


class TestCorrectedT:
    def test_hand_example(self):
        # mean 0.02, variance 2e-4 / 3, corrected by 1/4 + 1/4: t = 2 * sqrt(3) on 3 degrees
        effect = corrected_t(np.array([0.02, 0.01, 0.03, 0.02]), ratio=0.25)
        t = 2 * math.sqrt(3)
        tail = 0.5 - (math.atan(t / math.sqrt(3)) + t / math.sqrt(3) / (1 + t * t / 3)) / math.pi
        assert effect.estimate == pytest.approx(0.02)
        assert effect.p_value == pytest.approx(2 * tail)
        assert effect.low == pytest.approx(0.02 - 3.1824463 * 0.02 / t)

    def test_interval_excludes_zero_exactly_if_p_is_below_the_level(self):
        for _ in range(200):
            effect = corrected_t(rng.normal(0.5, 1.0, size=15), ratio=0.25)
            assert (effect.p_value < 0.05) == (effect.low > 0 or effect.high < 0)

    def test_no_difference(self):
        assert corrected_t(np.full(15, 1e-15), 0.25) == (0.0, 0.0, 0.0, 1.0)

    def test_equal_differences_are_no_evidence(self):
        assert corrected_t(np.full(2, 0.01), 0.25).p_value == 1.0

    def test_few_false_positives_in_repeated_cross_validation(self):
        """Nearest centroids of two subsets of noise: no difference in truth."""
        found = [_cross_validated_p(np.random.default_rng(seed)) <= 0.05 for seed in range(300)]
        assert binomtest(sum(found), 300, 0.05, "greater").pvalue > 0.001


def _cross_validated_p(generator):
    X, y = generator.normal(size=(100, 6)), generator.integers(0, 2, size=100)
    steps = []
    for _ in range(3):
        order = generator.permutation(100)
        for test in np.array_split(order, 5):
            train = np.setdiff1d(order, test)
            right = [_centroid_accuracy(X[:, part], y, train, test) for part in ([0, 1], [2, 3])]
            steps.append(right[1] - right[0])
    return corrected_t(np.array(steps), 0.25).p_value


def _centroid_accuracy(X, y, train, test):
    centres = [X[train][y[train] == label].mean(axis=0) for label in (0, 1)]
    distances = [np.linalg.norm(X[test] - centre, axis=1) for centre in centres]
    return np.mean((distances[1] < distances[0]) == y[test])


class TestHolm:
    def test_hand_example(self):
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])

    def test_undefined_values_are_no_part_of_the_family(self):
        adjusted = holm([math.nan, 0.02, 0.5])
        assert math.isnan(adjusted[0])
        assert adjusted[1:] == pytest.approx([0.04, 0.5])
        assert holm([0.9, 0.8]) == [1.0, 1.0]


class TestSignFlips:
    @pytest.mark.parametrize(("up", "down"), [(4, 0), (9, 3), (300, 250), (0, 1)])
    def test_accuracies_are_compared_by_the_exact_mcnemar_test(self, up, down):
        steps = np.concatenate([np.ones(up), -np.ones(down), np.zeros(50)])
        expected = binomtest(up, up + down, 0.5).pvalue
        assert sign_flip_p(steps, 0) == pytest.approx(expected)

    def test_all_signs_of_a_few_differences(self):
        steps = np.array([0.5, 0.2, 0.9, -0.1, 0.3, 0.7, 0.4])
        signs = np.array([*itertools.product([-1, 1], repeat=7)])
        expected = np.mean(np.abs(signs @ np.abs(steps)) >= steps.sum() - 1e-12)
        assert sign_flip_p(steps, 0) == pytest.approx(expected, abs=0.005)

    def test_many_differences(self):
        steps = rng.normal(0.1, 1, size=400)
        expected = sign_flip_p(steps[:200], 0)
        signs = rng.integers(0, 2, size=(20_000, 200)) * 2 - 1
        simulated = np.mean(np.abs(signs @ steps[:200]) >= abs(steps[:200].sum()))
        assert expected == pytest.approx(simulated, abs=0.02)
        signs = rng.integers(0, 2, size=(20_000, 400)) * 2 - 1
        simulated = np.mean(np.abs(signs @ steps) >= abs(steps.sum()))
        assert sign_flip_p(steps, 0) == pytest.approx(simulated, abs=0.02)

    def test_no_difference(self):
        assert sign_flip_p(np.full(9, 1e-12), 0) == 1.0


def repeated(values, counts):
    return np.repeat(values, counts.astype(int), axis=0)


class TestStatistics:
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=5).astype(float)

    def test_rank_correlation_with_ties(self):
        first, second = rng.normal(size=30).round(1), rng.integers(0, 5, size=30).astype(float)
        evidence = RankCorrelation(first, second)
        assert evidence.score() == pytest.approx(spearmanr(first, second).statistic)
        expected = [
            spearmanr(repeated(first, row), repeated(second, row)).statistic for row in self.counts
        ]
        assert evidence.draws(self.counts) == pytest.approx(expected)

    def test_determination_of_several_outputs(self):
        targets, predictions = rng.normal(size=(30, 2)) + 50, rng.normal(size=(30, 2)) + 50
        evidence = Determination(targets, predictions)
        assert evidence.score() == pytest.approx(r2_score(targets, predictions))
        expected = [r2_score(targets, predictions, sample_weight=row) for row in self.counts]
        assert evidence.draws(self.counts) == pytest.approx(expected)

    def test_placements_are_the_area_under_the_curve(self):
        inner, outer = rng.normal(size=20).round(1), rng.normal(0.5, size=10).round(1)
        inside, outside = placements(inner, outer)
        expected = roc_auc_score([0] * 20 + [1] * 10, np.concatenate([inner, outer]))
        assert inside.mean() == pytest.approx(expected)
        assert outside.mean() == pytest.approx(expected)

    def test_shares_of_neighbours_have_the_mean_of_the_precision(self):
        Z, y = rng.normal(size=(40, 3)), rng.integers(0, 2, size=40)
        unit = Z / np.linalg.norm(Z, axis=1)[:, None]
        cosines = unit @ unit.T - 9 * np.eye(40)
        nearest = np.argsort(-cosines, axis=1)[:, :10]
        assert same_class_shares(Z, y).mean() == pytest.approx(np.mean(y[nearest] == y[:, None]))

    def test_few_false_positives_among_neighbours_of_noise(self):
        found = 0
        for seed in range(300):
            generator = np.random.default_rng(seed)
            Z, y = generator.normal(size=(2, 60, 4)), generator.integers(0, 2, size=60)
            shares = [same_class_shares(part, y) for part in Z]
            found += sign_flip_p(shares[1] - shares[0], seed) <= 0.05
        assert binomtest(found, 300, 0.05, "greater").pvalue > 0.001

    def test_draws_of_the_area_vary_like_those_of_a_plain_bootstrap(self):
        inner, outer = rng.normal(size=200), rng.normal(0.8, size=100)
        units = Units.rows(200, 100)
        use = BootstrapUse({"a": TwoMeans(*placements(inner, outer))}, units, 0)
        plain = [
            placements(rng.choice(inner, 200), rng.choice(outer, 100))[0].mean()
            for _ in range(2000)
        ]
        assert np.std(use.drawn["a"]) == pytest.approx(np.std(plain), rel=0.1)
        assert use.interval("a").estimate == pytest.approx(np.mean(plain), abs=0.01)


class TestBootstrap:
    def test_interval_of_a_mean_is_that_of_the_normal_distribution(self):
        values = rng.normal(size=400)
        use = BootstrapUse({"a": Mean(values)}, Units.rows(400), 0)
        low, high = use.interval("a")[1:3]
        half = 1.96 * values.std() / 20
        assert low == pytest.approx(values.mean() - half, abs=0.01)
        assert high == pytest.approx(values.mean() + half, abs=0.01)

    def test_equal_methods_do_not_differ(self):
        values = rng.normal(size=(2, 50))
        same = RankCorrelation(values[0], values[1])
        use = BootstrapUse({"a": same, "b": same}, Units.rows(50), 0)
        assert use.difference("a", "b") == (0.0, 0.0, 0.0, 1.0)

    def test_rows_of_a_group_are_drawn_together(self):
        groups = np.repeat(np.arange(20), 5)
        counts = np.concatenate([*Units(groups, (20,)).counts(0, 30)])
        assert (counts.reshape(30, 20, 5) == counts.reshape(30, 20, 5)[:, :, :1]).all()
        assert (counts.sum(axis=1) == 100).all()

    @pytest.mark.parametrize("sizes", [(60, 1), (60, 3), (60, 20), (4,)])
    def test_few_false_positives_among_few_outliers_or_rows_of_a_regression(self, sizes):
        units, found = Units.rows(*sizes), 0
        for _ in range(100):
            common = rng.normal(size=(sum(sizes), 1))
            noisy = {name: common + rng.normal(size=common.shape) for name in "ab"}
            evidence = {
                name: TwoMeans(*placements(values[:60, 0], values[60:, 0]))
                if len(sizes) == 2
                else Determination(common, values)
                for name, values in noisy.items()
            }
            found += BootstrapUse(evidence, units, 0).difference("a", "b").p_value <= 0.05
        assert binomtest(found, 100, 0.05, "greater").pvalue > 0.001

    def test_outliers_that_all_move_alike(self):
        evidence = {
            "a": TwoMeans(np.ones(60), np.ones(20)),
            "b": TwoMeans(np.zeros(60), np.zeros(20)),
        }
        use = BootstrapUse(evidence, Units.rows(60, 20), 0)
        assert use.difference("a", "b").p_value == pytest.approx(2 * 0.5**20)

    def test_draws_of_equal_values_are_left_out(self):
        targets = np.array([[5.0], [5.0], *[[0.1]] * 28])
        evidence = {"a": Determination(targets, targets / 2)}
        effect = BootstrapUse(evidence, Units.rows(30), 0).interval("a")
        assert -100 < effect.low < effect.estimate < effect.high < 1

    def test_copies_in_a_group_do_not_narrow_the_interval(self):
        values = rng.normal(size=40)
        plain = BootstrapUse({"a": Mean(values)}, Units.rows(40), 0).interval("a")
        copied = BootstrapUse(
            {"a": Mean(np.repeat(values, 5))},
            Units(np.repeat(np.arange(40), 5), (40,)),
            0,
        ).interval("a")
        assert copied == pytest.approx(plain)

    def test_strata_keep_their_sizes(self):
        counts = np.concatenate([*Units.rows(30, 10).counts(0, 20)])
        assert (counts[:, :30].sum(axis=1) == 30).all()
        assert (counts[:, 30:].sum(axis=1) == 10).all()

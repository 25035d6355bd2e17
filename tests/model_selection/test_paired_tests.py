"""Tests of differences against formulas, other implementations and simulations."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr, t as student_t
from sklearn.metrics import r2_score, roc_auc_score

from isoadapt.model_selection._compare._measure import placements, same_class_shares
from isoadapt.model_selection._compare._paired_tests import (
    BootstrapUse,
    Determination,
    LinkedUse,
    Mean,
    RankCorrelation,
    TwoMeans,
    Units,
    bootstrap_effect,
    corrected_t,
    holm,
    joined,
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
        opposite = corrected_t(-np.array([0.02, 0.01, 0.03, 0.02]), ratio=0.25)
        assert opposite == pytest.approx((-0.02, -effect.high, -effect.low, effect.p_value))

    def test_equal_differences_are_no_evidence(self):
        assert corrected_t(np.full(15, 1e-15), 0.25) == (0.0, 0.0, 0.0, 1.0)
        assert corrected_t(np.full(2, 0.01), 0.25).p_value == 1.0


def test_holm_adjusts_defined_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([math.nan, 0.02, 0.5]) == pytest.approx([math.nan, 0.04, 0.5], nan_ok=True)


class TestSignFlips:
    @pytest.mark.parametrize(("up", "down"), [(4, 0), (9, 3), (300, 250)])
    def test_accuracies_are_compared_by_the_exact_mcnemar_test(self, up, down):
        steps = np.concatenate([np.ones(up), -np.ones(down), np.zeros(50)])
        expected = binomtest(up, up + down, 0.5).pvalue
        assert sign_flip_p(steps, 0) == pytest.approx(expected)

    def test_all_signs_of_a_few_differences(self):
        steps = np.array([0.5, 0.2, 0.9, -0.1, 0.3, 0.7, 0.4])
        signs = np.array([*itertools.product([-1, 1], repeat=7)])
        expected = np.mean(np.abs(signs @ np.abs(steps)) >= steps.sum() - 1e-12)
        for sign in (1, -1):
            assert sign_flip_p(sign * steps, 0) == pytest.approx(expected, abs=0.005)

    @pytest.mark.parametrize("n", [200, 400])  # by random flips, and by the normal distribution
    def test_many_differences(self, n):
        steps = np.random.default_rng(n).normal(0.05, 1, size=n)
        signs = rng.integers(0, 2, size=(10_000, n)) * 2 - 1
        simulated = np.mean(np.abs(signs @ steps) >= abs(steps.sum()))
        assert sign_flip_p(steps, 0) == pytest.approx(simulated, abs=0.02)

    def test_extremes(self):
        """With random flips, the given signs are one more of the equally likely ones."""
        assert sign_flip_p(rng.uniform(1, 2, size=100), 0) == 1 / 10_000
        assert sign_flip_p(np.full(9, 1e-12), 0) == 1.0


class TestStatistics:
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=5).astype(float)

    def test_rank_correlation_with_ties(self):
        first, second = rng.normal(size=30).round(1), rng.integers(0, 5, size=30).astype(float)
        evidence = RankCorrelation(first, second)
        assert evidence.score() == pytest.approx(spearmanr(first, second).statistic)
        drawn = [np.repeat(np.arange(30), row.astype(int)) for row in self.counts]
        expected = [spearmanr(first[rows], second[rows]).statistic for rows in drawn]
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
        assert [inside.mean(), outside.mean()] == pytest.approx([expected] * 2)

    def test_rows_share_in_the_precision_as_centres_and_as_neighbours(self):
        Z, y = rng.normal(size=(40, 3)), rng.integers(0, 2, size=40)
        unit = Z / np.linalg.norm(Z, axis=1)[:, None]
        nearest = np.argsort(9 * np.eye(40) - unit @ unit.T, axis=1)[:, :10]
        precision = np.mean(y[nearest] == y[:, None])
        expected = np.full(40, precision)
        for centre, neighbour in ((i, j) for i in range(40) for j in nearest[i]):
            excess = float(y[centre] == y[neighbour]) - precision
            expected[[centre, neighbour]] += excess / 10
        assert same_class_shares(Z, y) == pytest.approx(expected)
        assert expected.mean() == pytest.approx(precision)

    def test_area_of_drawn_inliers_and_outliers(self):
        """Its error is the sum of those of the two means, as in the variance of DeLong."""
        inside, outside = placements(rng.normal(size=20), rng.normal(0.8, size=10))
        counts = self.counts[:, :30]
        found = TwoMeans(inside, outside).draws(counts)
        parts = [counts[:, :20] @ inside / counts[:, :20].sum(axis=1)]
        parts += [counts[:, 20:] @ outside / counts[:, 20:].sum(axis=1)]
        assert found == pytest.approx(sum(parts) - inside.mean())


class TestBootstrap:
    def test_interval_of_a_mean_is_that_of_the_normal_distribution(self):
        values = rng.normal(size=400)
        low, high = BootstrapUse({"a": Mean(values)}, Units.rows(400), 0).interval("a")[1:3]
        half = 1.96 * values.std() / 20
        assert [low, high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.01)

    @pytest.mark.parametrize("draws", [np.full(99, 2.0), np.full(99, -2.0)])
    def test_p_value_is_twice_the_smaller_share_and_never_zero(self, draws):
        assert bootstrap_effect(2.0, draws).p_value == 2 / 100
        draws[:4] *= -1
        assert bootstrap_effect(2.0, draws).p_value == 2 * 5 / 100
        assert bootstrap_effect(0.0, 0 * draws).p_value == 1.0

    def test_differences_are_paired(self):
        """What two methods have in common, item by item, does not widen the interval."""
        common = 9 * rng.normal(size=100)
        values = {"a": Mean(common + 1 + 0.1 * rng.normal(size=100)), "b": Mean(common)}
        effect = BootstrapUse(values, Units.rows(100), 0).difference("a", "b")
        assert 0.9 < effect.low < effect.estimate < effect.high < 1.1

    def test_items_of_a_cluster_are_drawn_together_and_strata_keep_their_sizes(self):
        units = Units.clusters(np.repeat(np.arange(20), 5))
        counts = np.concatenate([*units.counts(0, 30)]).reshape(30, 20, 5)
        assert (counts == counts[:, :, :1]).all()
        assert (counts.sum(axis=(1, 2)) == 100).all()
        values, copies = rng.normal(size=40), np.repeat(np.arange(40), 5)
        plain = BootstrapUse({"a": Mean(values)}, Units.rows(40), 0)
        copied = BootstrapUse({"a": Mean(values[copies])}, Units.clusters(copies), 0)
        assert copied.interval("a") == pytest.approx(plain.interval("a"))
        counts = np.concatenate([*Units.rows(30, 10).counts(0, 20)])
        assert (counts[:, :30].sum(axis=1) == 30).all()
        assert (counts[:, 30:].sum(axis=1) == 10).all()

    def test_regressions_are_tested_by_the_gain_of_each_row(self):
        targets, after, before = rng.normal(size=(3, 20, 2))
        gains = ((targets - before) ** 2 - (targets - after) ** 2) / targets.var(axis=0)
        evidence = Determination(targets, after), Determination(targets, before)
        assert evidence[0].p_value(evidence[1], Units.rows(20), 0) == pytest.approx(
            sign_flip_p(gains.mean(axis=1), 0)
        )

    def test_outliers_are_tested_by_welch(self):
        """Differences that are drawn anew in each stratum have the variance of their sum."""
        rng = np.random.default_rng(1)
        inside, outside = rng.normal(size=6), rng.normal(size=3)
        inside, outside = (each - each.mean() + 0.5 for each in (inside, outside))
        first = TwoMeans(inside, outside)
        p_value = first.p_value(TwoMeans(0 * inside, 0 * outside), Units.rows(6, 3), 0)
        parts = [each.var(ddof=1) / len(each) for each in (inside, outside)]
        degrees = sum(parts) ** 2 / (parts[0] ** 2 / 5 + parts[1] ** 2 / 2)
        assert p_value == pytest.approx(
            2 * student_t.sf(first.score() / sum(parts) ** 0.5, degrees)
        )
        # all move alike
        evidence = [TwoMeans(np.full(60, area), np.full(20, area)) for area in (1.0, 0.0)]
        p_value = evidence[0].p_value(evidence[1], Units.rows(60, 20), 0)
        assert p_value == pytest.approx(2 * 0.5**20)

    def test_draws_of_equal_values_are_left_out(self):
        targets = np.array([[5.0], [5.0], *[[0.1]] * 28])
        evidence = {"a": Determination(targets, targets / 2)}
        effect = BootstrapUse(evidence, Units.rows(30), 0).interval("a")
        assert -100 < effect.low < effect.estimate < effect.high < 1


def test_groups_and_equal_rows_are_joined():
    groups = np.array([5, 5, 1, 1, 7, 8])
    hashes = np.array([10, 20, 20, 30, 40, 10])
    assert joined(groups, hashes).tolist() == [0, 0, 0, 0, 1, 0]
    assert joined(groups, np.arange(6)).tolist() == [1, 1, 0, 0, 2, 3]


class TestLinkedPairs:
    def test_variance_is_the_sum_over_pairs_that_share_an_end(self):
        ends = np.array([[0, 1], [0, 2], [2, 0], [3, 3], [3, 4], [5, 6], [7, 7], [8, 9], [8, 9]]).T
        evidence = RankCorrelation(
            np.array([5.0, 5, 6, 4, 4, 0, 2, -1, -1]), np.array([5.0, 6, 7, 0, 1, 1, 2, -2, -1])
        )
        use = LinkedUse({"a": evidence}, ends)
        shared = [[bool({*p} & {*q}) for p in ends.T] for q in ends.T]
        errors = evidence.errors()
        assert use.n_units == 5  # texts 0 and 3; pairs (5, 6), (7, 7) and (8, 9)
        variance = errors @ np.array(shared) @ errors * 5 / 4
        effect = use.interval("a")
        assert variance > errors @ errors * 5 / 4
        assert effect.high - effect.estimate == pytest.approx(2.776445 * variance**0.5)

    def test_errors_are_those_of_the_bootstrap(self):
        scores = rng.integers(0, 6, size=400).astype(float)
        evidence = RankCorrelation((scores + 2 * rng.normal(size=400)).round(1), scores)
        use = BootstrapUse({"a": evidence}, Units.rows(400), 0)
        assert np.linalg.norm(evidence.errors()) == pytest.approx(use.drawn["a"].std(), rel=0.05)

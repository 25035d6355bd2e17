"""Tests of differences against formulas, other implementations and simulations."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import binomtest, rankdata, spearmanr, t as student_t, ttest_rel
from sklearn.metrics import r2_score, roc_auc_score

from isoadapt.model_selection._compare._paired_tests import (
    Evidence,
    Tests as Judged,
    cluster_t,
    clusters,
    corrected_t,
    determination,
    holm,
    joined,
    linked,
    mcnemar,
    mean,
    rank_correlation,
    rests_on_few,
    two_means,
)
from isoadapt.model_selection._compare._uses import placements, same_class_shares

rng = np.random.default_rng(0)


def units(n):
    """Units of n independent items."""
    return clusters(np.arange(n))


class TestCorrectedT:
    def test_hand_example(self):
        # mean 0.02, variance 2e-4 / 3, corrected by 1/4 + 1/4: t = 2 * sqrt(3) on 3 degrees
        effect = corrected_t(mean(np.array([0.02, 0.01, 0.03, 0.02])), ratio=0.25)
        t = 2 * math.sqrt(3)
        tail = 0.5 - (math.atan(t / math.sqrt(3)) + t / math.sqrt(3) / (1 + t * t / 3)) / math.pi
        assert effect.estimate == pytest.approx(0.02)
        assert effect.p_value == pytest.approx(2 * tail)
        assert effect.low == pytest.approx(0.02 - 3.1824463 * 0.02 / t)
        opposite = corrected_t(mean(-np.array([0.02, 0.01, 0.03, 0.02])), ratio=0.25)
        assert opposite == pytest.approx((-0.02, -effect.high, -effect.low, effect.p_value))

    def test_equal_differences_are_no_evidence(self):
        assert corrected_t(mean(np.full(15, 1e-15)), 0.25) == pytest.approx((0, 0, 0, 1))
        assert corrected_t(mean(np.full(2, 0.01)), 0.25).p_value == 1.0


def test_holm_adjusts_defined_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([math.nan, 0.02, 0.5]) == pytest.approx([math.nan, 0.04, 0.5], nan_ok=True)


class TestInfluence:
    """Scores are those of other implementations; influences are those of leaving out an item."""

    @staticmethod
    def check(make, *columns, score):
        """Check the score and, by a jackknife, the influence of each of the items."""
        found, n = make(*columns), len(columns[0])
        assert found.score == pytest.approx(score(*columns))
        left_out = [score(*(np.delete(c, i, axis=0) for c in columns)) for i in range(n)]
        expected = (np.mean(left_out) - left_out) * (n - 1) / n
        assert found.influence.sum() == pytest.approx(0, abs=1e-12)
        assert found.influence == pytest.approx(expected, abs=0.05 * np.abs(expected).max())

    @pytest.mark.parametrize("n_grades", [3, 300])  # with and without ties
    def test_of_a_rank_correlation(self, n_grades):
        grades = rankdata(rng.normal(size=300), "ordinal") * n_grades // 301
        noisy = np.sin(grades / n_grades) + 0.2 * rng.normal(size=300)
        self.check(rank_correlation, noisy, grades, score=lambda a, b: spearmanr(a, b).statistic)
        assert rank_correlation(np.ones(9), np.arange(9)).score == 0

    def test_of_r2_with_several_outputs(self):
        targets, predictions = rng.normal(size=(2, 300, 2)) + 50
        self.check(determination, targets, 0.5 * targets + 0.5 * predictions, score=r2_score)

    def test_of_the_area_under_the_curve(self):
        inner, outer = rng.normal(size=200).round(1), rng.normal(0.5, size=100).round(1)

        def area(inner, outer=outer):
            labels = [0] * len(inner) + [1] * len(outer)
            return roc_auc_score(labels, np.concatenate([inner, outer]))

        found, expected = two_means(*placements(inner, outer)), area(inner)
        assert found.score == pytest.approx(expected)
        assert placements(inner, outer)[1].mean() == pytest.approx(expected)
        left_out = [area(np.delete(inner, i)) for i in range(200)]
        left_out += [area(inner, np.delete(outer, i)) for i in range(100)]
        sizes = np.repeat([200, 100], [200, 100])
        steps = (expected - np.array(left_out)) * (sizes - 1) / sizes
        assert found.influence == pytest.approx(steps, abs=1e-12)

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


class TestClusterT:
    def test_independent_items_of_a_normal_distribution(self):
        """The t test of pairs, with no more degrees of freedom than it has."""
        first, second = rng.normal(size=(2, 4000))
        effect = cluster_t(mean(first).minus(mean(second)), units(4000))
        assert effect.p_value == pytest.approx(ttest_rel(first, second).pvalue, rel=1e-3)
        half = 1.96 * (first - second).std() / 4000**0.5
        assert effect.high - effect.low == pytest.approx(2 * half, rel=1e-3)

    def test_copies_count_once(self):
        values, copies = rng.normal(size=40), np.repeat(np.arange(40), 5)
        once = cluster_t(mean(values), units(40))
        assert cluster_t(mean(values[copies]), clusters(copies)) == pytest.approx(once)
        assert cluster_t(mean(values[copies]), units(200)).low > once.low

    def test_the_smaller_of_two_samples_has_the_degrees_of_freedom(self):
        """As in Welch's test, if its variance is the larger one."""
        own = np.random.default_rng(0)  # the degrees depend on the draw
        few, many = own.normal(size=12), 0.01 * own.normal(size=4000)
        influence = np.concatenate([mean(each).influence for each in (few, many)])
        effect = cluster_t(Evidence(0.8, influence), clusters(np.arange(12), np.arange(4000)))
        steps = few - few.mean()
        degrees = 3 * ((steps**2).sum() ** 2 / (steps**4).sum() - 1)
        assert 8 < degrees < 20
        p_value = 2 * student_t.sf(0.8 / (steps.std() / 12**0.5), degrees)
        assert effect.p_value == pytest.approx(p_value, rel=1e-2)

    @pytest.mark.parametrize("n", [35, 60])
    def test_skewed_differences_without_an_effect(self, n):
        """Where a t test with n - 1 degrees of freedom rejects up to 10 %."""
        draws = np.random.default_rng(n).choice([-0.05, 0.45], p=[0.9, 0.1], size=(2000, n))
        found = [cluster_t(mean(each), units(n)).p_value <= 0.05 for each in draws]
        assert np.mean(found) <= 0.05

    @pytest.mark.parametrize(("n", "n_changed"), [(30, 15), (60, 15), (1000, 20), (1000, 40)])
    def test_a_difference_that_rests_on_few_units_is_not_tested(self, n, n_changed):
        """Where a test would reject in 13 to 23 % without an effect, unless enough units change."""
        draws = np.random.default_rng(n).choice([-0.05, 0.45], p=[0.9, 0.1], size=(1000, n))
        draws *= np.arange(n) < n_changed
        base = mean(np.zeros(n))
        for each in draws[:2]:
            made = Judged({"a": mean(each), "b": base}, partial(cluster_t, units=units(n)), n)
            tests = made._replace(is_untested=partial(rests_on_few, units=units(n)))
            assert np.isnan(tests.difference("a", "b").p_value) == (n_changed < 30)
            assert tests.difference("b", "b").p_value == 1
        found = np.mean([cluster_t(mean(each), units(n)).p_value <= 0.05 for each in draws])
        assert (found > 0.1) == (n_changed < 30)

    def test_no_estimate_of_the_error_is_no_evidence(self):
        assert cluster_t(mean(np.full(20, -0.05)), units(20)).p_value == 1
        assert cluster_t(mean(np.full(20, 1e-13)), units(20)).p_value == 1
        alone = cluster_t(mean(rng.normal(size=9)), clusters(np.zeros(9)))
        assert np.isnan(alone[1:]).all()


class TestMcNemar:
    @pytest.mark.parametrize(("up", "down"), [(4, 0), (8, 1), (0, 6), (0, 0)])
    def test_few_changes_are_compared_exactly(self, up, down):
        steps = mean(np.concatenate([np.ones(up), -np.ones(down), np.zeros(50)]))
        expected = binomtest(up, up + down).pvalue if up + down else 1
        assert mcnemar(steps, units(50 + up + down)).p_value == pytest.approx(expected)

    def test_many_changes_nearly_so_and_changes_of_all_rows(self):
        steps = mean(np.concatenate([np.ones(300), -np.ones(240), np.zeros(5000)]))
        expected = binomtest(300, 540).pvalue
        assert mcnemar(steps, units(5540)).p_value == pytest.approx(expected, abs=0.003)
        assert mcnemar(mean(np.ones(20)), units(20)).p_value == pytest.approx(2 * 0.5**20)

    def test_a_group_changes_once(self):
        steps = mean(np.repeat([1.0, 1, 1, 1, 1, 1, -1, 0], 5))
        found = mcnemar(steps, clusters(np.repeat(np.arange(8), 5))).p_value
        assert found == pytest.approx(binomtest(6, 7).pvalue)


def test_groups_and_equal_rows_are_joined():
    groups = np.array([5, 5, 1, 1, 7, 8])
    hashes = np.array([10, 20, 20, 30, 40, 10])
    assert joined(groups, hashes).tolist() == [0, 0, 0, 0, 1, 0]
    assert joined(groups, np.arange(6)).tolist() == [1, 1, 0, 0, 2, 3]


def half_width(squares, variance):
    """Half of the width of an interval, by squared sums of the units and the variance."""
    degrees = 3 * (np.sum(squares) ** 2 / np.sum(np.square(squares)) - 1)
    return student_t.ppf(0.975, np.clip(degrees, 1, len(squares) - 1)) * variance**0.5


def test_the_variance_of_pairs_is_the_sum_over_those_that_share_an_end():
    ends = np.array([[0, 1], [0, 2], [2, 0], [3, 3], [3, 4], [5, 6], [7, 7], [8, 9], [8, 9]]).T
    influence = rng.normal(size=9)
    shared = [[bool({*p} & {*q}) for p in ends.T] for q in ends.T]
    own, numbers = linked(ends)
    # texts 0 and 3; pairs (5, 6), (7, 7) and (8, 9)
    parts = [influence[:3], influence[3:5], influence[5], influence[6], influence[7:]]
    squares = np.array([np.sum(part) for part in parts]) ** 2
    assert influence @ np.array(shared) @ influence == pytest.approx(squares.sum())
    squares /= 1 - np.array([2, 2, 1, 1, 1]) / 7  # shares of the seven different pairs
    effect = cluster_t(Evidence(0.2, np.bincount(numbers, influence)), own)
    assert effect.high - 0.2 == pytest.approx(half_width(squares, squares.sum()))
    assert effect.low + effect.high == pytest.approx(0.4)


def test_pairs_that_share_both_ends_count_once():
    """All pairs of a triangle depend on each other."""
    own, numbers = linked(np.array([[0, 1], [1, 2], [2, 0]]).T)
    influence = np.array([3.0, 1.0, 2.0])
    squares = np.array([5.0, 4.0, 3.0]) ** 2 / (1 - 1 / 3)
    effect = cluster_t(Evidence(1.0, np.bincount(numbers, influence)), own)
    variance = squares.sum() - influence @ influence
    assert effect.high - 1 == pytest.approx(half_width(squares, variance))

"""Comparisons on rows, pairs and queries that depend on each other, or that are in both parts."""

import itertools
import warnings

import numpy as np
import pytest
from scipy.stats import binom, spearmanr
from sklearn.base import BaseEstimator, TransformerMixin

from isoadapt import Whitening
from isoadapt.metrics._neighbours import reciprocal_ranks
from isoadapt.model_selection import compare_adapters
from isoadapt.model_selection._compare._paired_tests import (
    BootstrapUse,
    LinkedUse,
    Mean,
    RankCorrelation,
    Units,
    joined,
    sign_flip_p,
)

D = 6
TRIALS = 200


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=n)
    X = rng.normal(size=(n, D)) * [1, 1, 6, 1, 1, 1]
    X[:, 0] -= 1.2 * (y - 0.5)
    return X, y


X, y = make_rows(90, 0)
X_TEST, Y_TEST = make_rows(60, 1)
TEST = {"X_test": X_TEST, "y_test": Y_TEST, "encoder_saw": True, "random_state": 0}
CV = {"encoder_saw": False, "cv": 5, "random_state": 0}
COPIES = np.repeat(np.arange(60), 4)
NEAR = X_TEST[COPIES] + 1e-9 * np.random.default_rng(2).normal(size=(240, D))


def row_of(comparison, use, adapter="Whitening"):
    (row,) = [r for r in comparison.rows if (r["use"], r["adapter"]) == (use, adapter)]
    return row


def at_the_level(p_values):
    """Whether the number of p-values up to 0.05 is what 0.05 of them may be, but for 1 in 500."""
    low, high = binom.ppf([0.001, 0.999], len(p_values), 0.05)
    return low <= sum(p <= 0.05 for p in p_values) <= high


class RandomFeatures(TransformerMixin, BaseEstimator):
    """Features that are neither better nor worse for labels that are drawn."""

    def __init__(self, seed):
        self.seed = seed

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        rng = np.random.default_rng(self.seed)
        return np.cos(X @ rng.normal(size=(X.shape[1], 12)) + rng.uniform(0, 6, 12))


def p_of_near_copies(seed, *, grouped):
    """P-value of an adapter without effect, on 40 texts with 10 copies each."""
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(200, 10)), rng.integers(0, 2, 200)
    texts, text_labels = rng.normal(size=(40, 10)), rng.integers(0, 2, 40)
    of_text = np.repeat(np.arange(40), 10)
    comparison = compare_adapters(
        rows,
        labels,
        {"features": RandomFeatures(seed)},
        X_test=texts[of_text] + 0.01 * rng.normal(size=(400, 10)),
        y_test=text_labels[of_text],
        groups_test=of_text if grouped else None,
        encoder_saw=False,
        random_state=seed,
    )
    return row_of(comparison, "classify", "features")["p_value"]


class TestRows:
    @pytest.mark.slow
    def test_near_copies_in_groups_give_no_false_gains(self):
        assert at_the_level([p_of_near_copies(seed, grouped=True) for seed in range(TRIALS)])
        assert not at_the_level([p_of_near_copies(seed, grouped=False) for seed in range(40)])

    @pytest.mark.parametrize(
        ("rows", "groups"), [(NEAR, COPIES), (NEAR, COPIES.astype(str)), (X_TEST[COPIES], None)]
    )
    def test_copies_count_once(self, rows, groups):
        """In the tests of labels: the neighbours of a row are its copies."""
        copied = {"X_test": rows, "y_test": Y_TEST[COPIES], "groups_test": groups}
        found = row_of(compare_adapters(X, y, "Whitening", **TEST | copied), "classify")
        plain = row_of(compare_adapters(X, y, "Whitening", **TEST), "classify")
        assert found["n_units"] == plain["n_units"] == 60
        for name in ("score", "difference", "p_value"):
            assert found[name] == pytest.approx(plain[name])
        assert found["ci_low"] == pytest.approx(plain["ci_low"], abs=0.02)

    def test_groups_and_equal_rows_are_joined(self):
        groups = np.array([5, 5, 1, 1, 7, 8])
        hashes = np.array([10, 20, 20, 30, 40, 10])
        assert joined(groups, hashes).tolist() == [0, 0, 0, 0, 1, 0]
        assert joined(groups, np.arange(6)).tolist() == [1, 1, 0, 0, 2, 3]

    def test_equal_foreign_rows_count_once(self):
        foreign = np.repeat(X_TEST[:12] + 3, 5, axis=0)
        found = row_of(compare_adapters(X, y, "Whitening", foreign=foreign, **TEST), "outliers")
        assert found["n_units"] == 60 + 12

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"groups_test": COPIES}, r"groups_test has shape \(240,\), X_test has 60 rows"),
            ({"groups": COPIES[:90].reshape(45, 2)}, r"groups has shape \(45, 2\), X has 90 rows"),
            (
                {"groups": [None, *"ab" * 40, *"cdefghijk"]},
                "groups contains NaN or None .* row 0: leave these",
            ),
            ({"groups_test": np.r_[np.nan, 1:60]}, "groups_test contains NaN or None"),
            (
                {"groups_test": COPIES[:90], "X_test": None, "y_test": None},
                "groups_test was given without X_test",
            ),
        ],
    )
    def test_wrong_groups(self, options, message):
        with pytest.raises(ValueError, match=message):
            compare_adapters(X, y, "Whitening", **TEST | options)

    @pytest.mark.parametrize(("n_groups", "warned"), [(9, True), (10, False)])
    def test_few_groups_are_too_few_for_an_interval(self, n_groups, warned):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compare_adapters(X, y, "IsoBN", groups_test=np.arange(60) % n_groups, **TEST)
        said = [str(each.message) for each in caught if "too narrow" in str(each.message)]
        assert bool(said) == warned
        assert all("60 items in 9 clusters" in message for message in said)

    @pytest.mark.slow
    def test_intervals_of_few_groups(self):
        """From 10 groups on, they hold the mean in nearly 9 of 10 cases, but not with 5."""
        shares = {}
        for n_groups in (5, 10):
            held = 0
            groups = np.repeat(np.arange(n_groups), 10)
            for seed in range(TRIALS):
                rng = np.random.default_rng(seed)
                values = rng.normal(size=n_groups)[groups] + 0.5 * rng.normal(size=len(groups))
                use = BootstrapUse({"a": Mean(values)}, Units.clusters(groups), 0)
                effect = use.interval("a")
                held += effect.low <= 0 <= effect.high
            shares[n_groups] = held / TRIALS
        assert shares[5] < 0.88 < shares[10]

    def test_groups_of_several_types(self):
        with pytest.raises(TypeError, match=r"groups holds .*pass list\(map\(str, values\)\)"):
            compare_adapters(X, y, "IsoBN", **TEST, groups=np.array([1, "a", 2] * 30, object))


class TestFolds:
    rng = np.random.default_rng(0)
    twins = np.repeat(rng.normal(size=(40, 12)), 2, axis=0)
    labels = np.repeat(rng.integers(0, 2, size=40), 2)

    def test_equal_rows_share_a_fold(self):
        """Labels are noise: only the twin of a row, which has its label, could tell it."""
        found = compare_adapters(self.twins, self.labels, "IsoBN", **CV | {"cv": 3})
        assert row_of(found, "classify", "IsoBN")["score"] < 0.6
        assert row_of(found, "classify", "IsoBN")["n_units"] == 40
        assert "grouped splits" in found.protocol

    def test_equal_rows_join_the_groups(self):
        """Here a row and the first twin of the next one are in one group."""
        groups = np.roll(np.repeat(np.arange(40), 2), 1)
        groups[[0, 40, 60]] = 100, 101, 102
        values = self.labels + self.twins[:, 0]
        options = CV | {"cv": 2, "head": "ridge", "groups": groups}
        found = compare_adapters(self.twins, values, "IsoBN", **options)
        assert row_of(found, "regress", "IsoBN")["n_units"] == 3

    def test_more_folds_than_groups(self):
        with pytest.raises(ValueError, match=r"cv=5 folds, but X has 4 different .* use fewer"):
            compare_adapters(self.twins[:8], self.labels[:8], "IsoBN", **CV)


class TestRowsInBothParts:
    def test_they_are_not_judged(self):
        both = {"X_test": np.r_[X_TEST, X[:7]], "y_test": np.r_[Y_TEST, y[:7]]}
        with pytest.warns(UserWarning, match="7 of the 67 rows to judge on equal rows that are"):
            found = compare_adapters(X, y, "Whitening", **TEST | both)
        plain = compare_adapters(X, y, "Whitening", **TEST)
        assert "judged on 60 test rows" in found.protocol
        for use in ("classify", "neighbours"):
            for name in ("score", "ci_low", "ci_high", "difference", "p_value"):
                assert row_of(found, use)[name] == row_of(plain, use)[name]

    def test_of_a_mask(self):
        rows, labels = np.r_[X, X[:5]], np.r_[y, y[:5]]
        saw = np.arange(95) < 50
        with pytest.warns(UserWarning, match="5 of the 45 rows to judge on equal rows"):
            found = compare_adapters(rows, labels, "Whitening", encoder_saw=saw, random_state=0)
        assert "judged on 40 rows" in found.protocol

    def test_nothing_is_left(self):
        known = {"X_test": X[:20], "y_test": y[:20]}
        with pytest.raises(
            ValueError, match=r"20 of the 20 rows to judge on equal rows .* so 0 are left"
        ):
            compare_adapters(X, y, "Whitening", **TEST | known)

    @pytest.mark.parametrize(
        ("values", "known", "message"),
        [
            (
                y,
                np.full(5, 7),
                r"the rows to judge on have the labels \[7\], none of which occurs in y",
            ),
            (X[:, 1], np.zeros(5), "the rows to judge on have equal values only"),
        ],
    )
    def test_what_is_left_cannot_be_judged(self, values, known, message):
        test = {"X_test": np.r_[X_TEST[:5], X[:20]], "y_test": np.r_[known, values[:20]]}
        head = "logistic" if values is y else "ridge"
        with pytest.raises(ValueError, match=message):
            compare_adapters(X, values, "Whitening", **TEST | test, head=head)


# --- pairs and queries ----------------------------------------------------------------------------


def linked_ends(kind, rng):
    """Numbers (2, n) of the texts of pairs: 40 with 10 partners each, or 400 pairs of 40 texts."""
    if kind == "partners":
        return np.stack([np.repeat(np.arange(40), 10), 40 + np.arange(400)])
    ends = np.array([*itertools.combinations(range(40), 2)]).T
    return ends[:, rng.choice(ends.shape[1], 400, replace=False)]


def linked_evidence(kind, seed):
    """Two methods that move the vectors of texts at random, those in several pairs farther."""
    rng = np.random.default_rng(seed)
    ends = linked_ends(kind, rng)
    vectors = rng.normal(size=(ends.max() + 1, 8))
    size = np.where(np.bincount(ends.ravel()) > 1, 1.5, 0.1)[:, None]

    def cosines(Z):
        unit = Z / np.linalg.norm(Z, axis=1)[:, None]
        return (unit[ends[0]] * unit[ends[1]]).sum(axis=1)

    scores = cosines(vectors) + 0.2 * rng.normal(size=ends.shape[1])
    moved = {name: vectors + size * rng.normal(size=vectors.shape) for name in "ab"}
    return {name: RankCorrelation(cosines(Z), scores) for name, Z in moved.items()}, ends


class TestPairs:
    @pytest.mark.parametrize(
        ("kind", "n_trials"),
        [
            ("partners", 50),
            pytest.param("partners", TRIALS, marks=pytest.mark.slow),
            pytest.param("any", TRIALS, marks=pytest.mark.slow),
        ],
    )
    def test_shared_texts_give_no_false_gains(self, kind, n_trials):
        trials = (linked_evidence(kind, seed) for seed in range(n_trials))
        assert at_the_level([LinkedUse(*trial).difference("a", "b").p_value for trial in trials])

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["partners", "any"])
    def test_tests_of_independent_pairs_would(self, kind):
        apart = np.arange(800).reshape(2, 400)
        trials = (LinkedUse(linked_evidence(kind, seed)[0], apart) for seed in range(TRIALS))
        assert not at_the_level([each.difference("a", "b").p_value for each in trials])

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
        rng = np.random.default_rng(0)
        scores = rng.integers(0, 6, size=400).astype(float)
        evidence = RankCorrelation((scores + 2 * rng.normal(size=400)).round(1), scores)
        use = BootstrapUse({"a": evidence}, Units.rows(400), 0)
        assert np.linalg.norm(evidence.errors()) == pytest.approx(use.drawn["a"].std(), rel=0.05)

    @pytest.mark.parametrize("as_texts", [False, True])
    def test_pairs_of_one_text(self, as_texts):
        """They are recognised by equal vectors or by equal texts, in either place of a pair."""
        names = [f"text {number}" for number in range(60)]
        vectors = dict(zip(names, np.random.default_rng(5).normal(size=(60, D)), strict=True))

        class Encoder:
            def transform(self, texts):
                calls.append(len(texts))
                return np.stack([vectors[text] for text in texts]) * (1 + 1e-6 * len(calls))

        calls = []
        left = [names[0]] * 10 + names[11:30]
        right = [*names[1:11], names[0], *names[31:49]]
        parts = (left, right)
        if not as_texts:
            parts = [[vectors[text] for text in part] for part in parts]
        options = {"pairs": (*parts, np.arange(29) % 6), "encoder": Encoder()}
        found = compare_adapters(X, y, "Whitening", **TEST, **options)
        assert row_of(found, "similarity")["n_units"] == 1 + 18
        assert calls == [58] * as_texts
        assert "Spearman correlation, 19 independent units" in str(found)

    def test_equal_methods_do_not_differ(self):
        evidence, ends = linked_evidence("partners", 0)
        use = LinkedUse({"a": evidence["a"], "b": evidence["a"]}, ends)
        assert use.difference("a", "b") == (0.0, 0.0, 0.0, 1.0)

    def test_all_pairs_of_one_text_tell_nothing(self):
        A, B = np.tile(X[0], (20, 1)), X[1:21]
        found = compare_adapters(X, y, "Whitening", pairs=(A, B, np.arange(20) % 6), **TEST)
        row = row_of(found, "similarity")
        assert row["n_units"] == 1
        assert np.isnan([row["p_value"], row["p_holm"], row["difference_low"]]).all()
        assert "no adapter is shown to change" in found.verdict("similarity")


class TestQueries:
    @staticmethod
    def p_values(seed):
        """With and without clusters, of documents that two methods move at random."""
        rng = np.random.default_rng(seed)
        documents = rng.normal(size=(40, 8))
        wanted = np.repeat(np.arange(40), 10)
        queries = documents[wanted] + 0.5 * rng.normal(size=(400, 8))
        moved = [documents + 0.7 * rng.normal(size=(40, 8)) for _ in "ab"]
        after, before = (reciprocal_ranks(queries, each, wanted.tolist()) for each in moved)
        units = Units.clusters(wanted), Units.rows(400)
        return [sign_flip_p(each.sums(after - before), seed) for each in units]

    @pytest.mark.slow
    def test_clusters_give_no_false_gains(self):
        clustered, plain = zip(*(self.p_values(seed) for seed in range(TRIALS)), strict=True)
        assert at_the_level(clustered)
        assert not at_the_level(plain)

    @pytest.mark.filterwarnings("ignore:12 items in 7 clusters")
    def test_queries_of_the_same_documents_are_one_unit(self):
        documents = np.r_[X[:20], X[:5]]  # the last are copies
        queries = np.r_[X[:8], X[:4]] + 0.1
        relevant = [0, 1, [2, 3], [3, 2], 4, 5, {6}, 7, 10, 21, [22, 23], 19]
        found = compare_adapters(
            X, y, "Whitening", queries=queries, documents=documents, relevant=relevant, **TEST
        )
        # 8 to 11 are of the vectors of 0 to 3; 3 and 10 are of the documents of 2, and 9 of 1
        assert row_of(found, "search")["n_units"] == 12 - 5


class TestDigits:
    """A mean of 1e5 times the spread: cosines differ in the tenth digit."""

    mean = 1e5 * np.random.default_rng(7).normal(size=D)

    def test_similarity(self):
        rng = np.random.default_rng(8)
        A = rng.normal(size=(80, D))
        B = A + rng.normal(size=(80, D)) * np.linspace(0.05, 1, 80)[:, None]
        unit = self.mean / np.linalg.norm(self.mean)
        across = (A - B) - np.outer((A - B) @ unit, unit)
        scores = -np.linalg.norm(across, axis=1)
        pairs = A + self.mean, B + self.mean, scores
        found = compare_adapters(X, y, "Whitening", pairs=pairs, **TEST)
        assert row_of(found, "similarity", "no adapter")["score"] > 0.9999

    def test_equal_pairs_have_equal_ranks(self):
        """Whatever their place is, and in both orders of their texts."""
        first = np.r_[X[:30], X[:10], X[30:40], X[:15]] + self.mean
        second = np.r_[X[30:60], X[30:40], X[:10], X[:15]] + self.mean
        scores = np.r_[np.arange(30), np.arange(20), np.full(15, 40)] * 1.0
        found = compare_adapters(X, y, "Whitening", pairs=(first, second, scores), **TEST)
        adapter = found.estimators["Whitening"]
        Z, W = (adapter.transform(part[:30]) for part in (first, second))
        unit = [part / np.linalg.norm(part, axis=1)[:, None] for part in (Z, W)]
        near = (unit[0] * unit[1]).sum(axis=1)
        expected = spearmanr(np.r_[near, near[:10], near[:10], np.ones(15)], scores).statistic
        assert row_of(found, "similarity")["score"] == pytest.approx(expected, abs=1e-12)

    def test_outliers(self):
        rng = np.random.default_rng(9)
        rows, test, foreign = (self.mean + rng.normal(size=(60, D)) * s for s in (1, 1, 4))
        options = TEST | {"X_test": test, "foreign": foreign}
        found = compare_adapters(rows, y[:60], "Whitening", **options)
        unit = self.mean / np.linalg.norm(self.mean)
        across = [part - np.outer(part @ unit, unit) for part in (rows, test, foreign)]
        squares = [((part[:, None] - across[0]) ** 2).sum(axis=2) for part in across[1:]]
        inner, outer = (np.sort(each, axis=1)[:, :10].mean(axis=1) for each in squares)
        expected = (inner[:, None] < outer).mean()
        assert row_of(found, "outliers", "no adapter")["score"] == pytest.approx(
            expected, abs=0.002
        )


@pytest.mark.parametrize(("adapters", "said"), [(1, False), (3, True)])
def test_the_gain_of_the_best_of_several_is_too_large(adapters, said):
    class Planted(RandomFeatures):
        def transform(self, X):
            return np.column_stack([X, 3 * X[:, 3] * X[:, 4]])

    rows = np.random.default_rng(0).normal(size=(600, D))
    labels = (rows[:, 0] + rows[:, 3] * rows[:, 4] > 0).astype(int)
    some = {"planted": Planted(0), "a": Whitening(), "b": RandomFeatures(1)}
    found = compare_adapters(
        rows[:300],
        labels[:300],
        dict([*some.items()][:adapters]),
        **TEST | {"X_test": rows[300:], "y_test": labels[300:]},
    )
    sentence = "planted is the best of 3 adapters on these rows: expect a smaller gain"
    assert "planted raises the accuracy from" in found.verdict("classify")
    assert (sentence in found.verdict("classify")) == said

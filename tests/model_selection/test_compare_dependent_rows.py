"""Comparisons on rows, pairs and queries that depend on each other, or that are in both parts."""

import warnings

import numpy as np
import pytest
from scipy.stats import spearmanr

from isoadapt.model_selection import compare_adapters
from tests.model_selection.comparisons import CV, TEST, X_TEST, Y_TEST, D, X, row_of, y

pytestmark = pytest.mark.usefixtures("fixed_penalties")
COPIES = np.repeat(np.arange(60), 4)
NEAR = X_TEST[COPIES] + 1e-9 * np.random.default_rng(2).normal(size=(240, D))


class TestRows:
    @pytest.mark.parametrize(
        ("rows", "groups"), [(NEAR, COPIES.astype(str)), (X_TEST[COPIES], None)]
    )
    def test_copies_count_once(self, plain, rows, groups):
        """In the tests of labels: the neighbours of a row are its copies."""
        copied = {"X_test": rows, "y_test": Y_TEST[COPIES], "groups_test": groups}
        found = row_of(compare_adapters(X, y, "Whitening", **TEST | copied), "classify")
        expected = row_of(plain, "classify")
        assert found["n_units"] == expected["n_units"] == 60
        for name in ("score", "difference", "p_value"):
            assert found[name] == pytest.approx(expected[name])
        assert found["ci_low"] == pytest.approx(expected["ci_low"], abs=0.02)

    def test_masked_rows_of_a_group_are_one_unit_of_the_task(self, plain):
        rows = np.r_[np.arange(90), np.repeat(np.arange(90, 150), 5)]
        options = {"encoder_saw": np.arange(390) < 90, "groups": rows, "random_state": 0}
        given = np.r_[X, X_TEST][rows], np.r_[y, Y_TEST][rows]
        found = row_of(compare_adapters(*given, "Whitening", **options), "classify")
        for name in ("ci_low", "ci_high"):
            assert found[name] == pytest.approx(row_of(plain, "classify")[name])

    def test_equal_foreign_rows_count_once(self):
        foreign = np.repeat(X_TEST[:12] + 3, 5, axis=0)
        found = compare_adapters(X, y, "Whitening", foreign=foreign, **TEST)
        assert row_of(found, "outliers")["n_units"] == 60 + 12

    @pytest.mark.parametrize(("n_groups", "warned"), [(9, True), (10, False)])
    def test_few_groups_are_too_few_for_an_interval(self, n_groups, warned):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compare_adapters(X, y, "IsoBN", groups_test=np.arange(60) % n_groups, **TEST)
        assert any("too narrow" in str(each.message) for each in caught) == warned

    def test_groups_of_several_types(self):
        with pytest.raises(TypeError, match="groups"):
            compare_adapters(X, y, "IsoBN", **TEST, groups=np.array([1, "a", 2] * 30, object))


class TestFolds:
    rng = np.random.default_rng(0)
    twins = np.repeat(rng.normal(size=(40, 12)), 2, axis=0)
    labels = np.repeat(rng.integers(0, 2, size=40), 2)

    @pytest.mark.parametrize("noise", [0, 1e-6])
    def test_equal_rows_and_groups_share_a_fold(self, noise):
        """Labels are noise: only the twin of a row, which has its label, could tell it."""
        twins = self.twins + noise * np.random.default_rng(1).normal(size=self.twins.shape)
        groups = np.repeat(np.arange(40), 2) if noise else None
        found = compare_adapters(twins, self.labels, "IsoBN", groups=groups, **CV | {"cv": 3})
        assert row_of(found, "classify", "IsoBN")["score"] < 0.6
        assert row_of(found, "classify", "IsoBN")["n_units"] == 40
        assert "grouped splits" in found.protocol

    def test_equal_rows_join_the_groups(self):
        """Here a row and the first twin of the next one are in one group."""
        groups = np.roll(np.repeat(np.arange(40), 2), 1)
        groups[[0, 40, 60]] = 100, 101, 102
        values = self.labels + self.twins[:, 0]
        found = compare_adapters(self.twins, values, "IsoBN", head="ridge", groups=groups, **CV)
        assert row_of(found, "regress", "IsoBN")["n_units"] == 3


class TestRowsInBothParts:
    def test_they_are_not_judged(self, plain):
        both = {"X_test": np.r_[X_TEST, X[:7]], "y_test": np.r_[Y_TEST, y[:7]]}
        with pytest.warns(UserWarning, match="7 of the 67 rows to judge on equal rows that are"):
            found = compare_adapters(X, y, "Whitening", **TEST | both)
        for use in ("classify", "neighbours"):
            for name in ("score", "ci_low", "ci_high", "difference", "p_value"):
                assert row_of(found, use)[name] == row_of(plain, use)[name]

    def test_of_a_mask(self):
        rows, labels = np.r_[X, X[:5]], np.r_[y, y[:5]]
        saw = np.arange(95) < 50
        with pytest.warns(UserWarning, match="5 of the 45 rows to judge on equal rows"):
            found = compare_adapters(rows, labels, "Whitening", encoder_saw=saw, random_state=0)
        assert row_of(found, "classify")["n_predictions"] == 40

    @pytest.mark.parametrize(("values", "known"), [(y, np.full(5, 7)), (X[:, 1], np.zeros(5))])
    def test_what_is_left_cannot_be_judged(self, values, known):
        test = {"X_test": np.r_[X_TEST[:5], X[:20]], "y_test": np.r_[known, values[:20]]}
        head = "logistic" if values is y else "ridge"
        with pytest.raises(ValueError, match=r"the rows to judge on have the labels \[7\]|equal"):
            compare_adapters(X, values, "Whitening", **TEST | test, head=head)


class TestPairs:
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
        embedded = [[vectors[text] for text in part] for part in (left, right)]
        scores = np.arange(29) % 6
        pairs = (left, right, scores) if as_texts else (*embedded, scores)
        found = compare_adapters(X, y, "Whitening", **TEST, pairs=pairs, encoder=Encoder())
        row = row_of(found, "similarity")
        assert row["n_units"] == 1 + 18
        assert calls == [58] * as_texts
        Z, W = (found.estimators["Whitening"].transform(part) for part in embedded)
        cosines = (Z * W).sum(axis=1) / np.linalg.norm(Z, axis=1) / np.linalg.norm(W, axis=1)
        assert row["score"] == pytest.approx(spearmanr(cosines, scores).statistic)

    def test_all_pairs_of_one_text_tell_nothing(self):
        A, B = np.tile(X[0], (20, 1)), X[1:21]
        found = compare_adapters(X, y, "Whitening", pairs=(A, B, np.arange(20) % 6), **TEST)
        row = row_of(found, "similarity")
        assert row["n_units"] == 1
        assert np.isnan([row["p_value"], row["p_holm"], row["difference_low"]]).all()
        assert "no adapter is shown to change" in found.verdict("similarity")


@pytest.mark.filterwarnings("ignore:12 items in 7 clusters")
def test_queries_of_the_same_documents_are_one_unit():
    documents = np.r_[X[:20], X[:5]]  # the last are copies
    queries = np.r_[X[:8], X[:4]] + 0.1
    relevant = [0, 1, [2, 3], [3, 2], 4, 5, {6}, 7, 10, 21, [22, 23], 19]
    search = {"queries": queries, "documents": documents, "relevant": relevant}
    found = compare_adapters(X, y, "Whitening", **search, **TEST)
    # 8 to 11 are of the vectors of 0 to 3; 3 and 10 are of the documents of 2, and 9 of 1
    assert row_of(found, "search")["n_units"] == 12 - 5


def test_equal_pairs_have_equal_ranks():
    """Whatever their place is, and in both orders, though cosines differ in the tenth digit."""
    mean = 1e5 * np.random.default_rng(7).normal(size=D)
    first = np.r_[X[:30], X[:10], X[30:40], X[:15]] + mean
    second = np.r_[X[30:60], X[30:40], X[:10], X[:15]] + mean
    scores = np.r_[np.arange(30), np.arange(20), np.full(15, 40)] * 1.0
    found = compare_adapters(X, y, "Whitening", pairs=(first, second, scores), **TEST)
    adapter = found.estimators["Whitening"]
    Z, W = (adapter.transform(part[:30]) for part in (first, second))
    near = (Z * W).sum(axis=1) / np.linalg.norm(Z, axis=1) / np.linalg.norm(W, axis=1)
    expected = spearmanr(np.r_[near, near[:10], near[:10], np.ones(15)], scores).statistic
    assert row_of(found, "similarity")["score"] == pytest.approx(expected, abs=1e-12)

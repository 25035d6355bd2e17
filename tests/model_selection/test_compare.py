"""Comparisons of adapters: protocols, uses, controls, dependent rows, and runs that stop."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import IsotropyLayer, IStarAdapter, LinearHead, Whitening, adapters
from isoadapt.metrics import isoscore, neighbour_overlap, similarity_correlation
from isoadapt.model_selection import Comparison, Outliers, Search, Similarity, compare_adapters
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._methods import (
    HEAD_REFIT,
    ComparedMethod,
    make_methods,
    seeded,
)
from isoadapt.model_selection._compare._paired_tests import Effect
from isoadapt.model_selection._compare._plan import make_plan
from isoadapt.model_selection._compare._table import _hardest
from tests.refusals import refusals

pytestmark = pytest.mark.usefixtures("fixed_penalties")
D = 6


def make_rows(n, seed):
    """Rows whose first coordinate tells the class, and whose third hides something similar."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=n)
    X = rng.normal(size=(n, D)) * [1, 1, 6, 1, 1, 1]
    X[:, 0] -= 1.2 * (y - 0.5)
    return X, y


X, y = make_rows(90, 0)
X_TEST, Y_TEST = make_rows(60, 1)
TEST = {"X_test": X_TEST, "y_test": Y_TEST, "encoder_saw": True, "random_state": 0}
CV = {"encoder_saw": False, "cv": 2, "random_state": 0}


def row_of(comparison, use, adapter="Whitening"):
    (row,) = [r for r in comparison.rows if (r["use"], r["adapter"]) == (use, adapter)]
    return row


def assert_same_rows(first, second):
    """The tables hold the same rows, in any order, but for the seconds."""
    frames = [
        each.to_frame().filter(regex="^(?!.*seconds)").set_index(["use", "adapter"]).sort_index()
        for each in (first, second)
    ]
    pd.testing.assert_frame_equal(*frames, rtol=1e-6)


HALVES = [(np.arange(45), np.arange(45, 90)), (np.arange(45, 90), np.arange(45))]
HEAD = LinearHead(np.eye(2, D), [0.0, 0.2], classes=[0, 1])
CLOSED = ["Whitening", "LogitPreservingWhitening"]


def make_pairs(n=80):
    """Pairs that are as similar as their coordinates other than the third, which is noise."""
    rng = np.random.default_rng(2)
    A = rng.normal(size=(n, D))
    B = A + rng.normal(size=(n, D)) * np.linspace(0.1, 3, n)[:, None]
    A[:, 2], B[:, 2] = 6 * rng.normal(size=(2, n))
    return A, B, np.linspace(5, 0, n)


RNG = np.random.default_rng(3)
DOCUMENTS = RNG.normal(size=(40, D)) * [1, 1, 9, 1, 1, 1]
QUERIES = DOCUMENTS[:30] + 0.3 * RNG.normal(size=(30, D))
USES = [Similarity(*make_pairs()), Search(QUERIES, DOCUMENTS, range(30)), Outliers(X[:30] - 4)]


@pytest.fixture(scope="module")
def plain(fixed_penalties):
    """A comparison of Whitening, judged on other rows."""
    return compare_adapters(X, y, "Whitening", **TEST)


@pytest.fixture(scope="module")
def judged_elsewhere(fixed_penalties):
    """All uses, judged on other rows."""
    return compare_adapters(X, y, CLOSED, head=HEAD, uses=USES, **TEST)


@pytest.fixture(scope="module")
def crossed(fixed_penalties):
    """Rows judged by a cross-validation, with a use that is judged on each of its splits."""
    return compare_adapters(X, y, "Whitening", uses=[Outliers(X[:9] - 4)], **CV | {"cv": HALVES})


def outlier_score(splits, foreign):
    """AUROC of cosine distances to a training row; placements are averaged over the splits."""

    def distances(rows, reference):
        nearest = NearestNeighbors(n_neighbors=1, metric="cosine").fit(reference)
        return nearest.kneighbors(rows)[0].mean(axis=1)

    scores = []
    for train, test in splits:
        ranked = np.concatenate([distances(test, train), distances(foreign, train)])
        scores.append(roc_auc_score([0] * len(test) + [1] * len(foreign), ranked))
    return np.mean(scores)


class TestOtherRows:
    def test_scores_are_those_of_the_metrics(self, judged_elsewhere):
        expected = ["classify", "similarity", "search", "neighbours", "outliers"]
        assert judged_elsewhere.uses == expected
        A, B, scores = make_pairs()
        for name in CLOSED:
            adapter = judged_elsewhere.estimators[name]
            row = row_of(judged_elsewhere, "classify", name)
            assert row["score"] == pytest.approx(adapter.score(X_TEST, Y_TEST))
            Z = adapter.transform(X_TEST)
            assert row["isoscore"] == pytest.approx(isoscore(Z))
            assert row["neighbour_overlap"] == pytest.approx(neighbour_overlap(X_TEST, Z))
            expected = similarity_correlation(adapter.transform(A), adapter.transform(B), scores)
            assert row_of(judged_elsewhere, "similarity", name)["score"] == pytest.approx(expected)
        score = row_of(judged_elsewhere, "outliers", "no adapter")["score"]
        assert score == pytest.approx(outlier_score([(X, X_TEST)], X[:30] - 4))

    def test_differences_are_those_of_the_scores_and_a_gain_is_said(self, judged_elsewhere):
        for row in judged_elsewhere.rows:
            if row["kind"] != "baseline":
                base = row_of(judged_elsewhere, row["use"], "no adapter")
                assert row["difference"] == pytest.approx(row["score"] - base["score"])
                assert row["difference_low"] <= row["difference"] <= row["difference_high"]
            assert row["ci_low"] <= row["score"] <= row["ci_high"] <= 1
        row = row_of(judged_elsewhere, "classify", "LogitPreservingWhitening")
        assert (row["changed_predictions"], row["difference"], row["p_value"]) == (0, 0.0, 1.0)
        # a planted gain
        row = row_of(judged_elsewhere, "similarity", "LogitPreservingWhitening")
        assert row["p_holm"] < 0.05
        assert row["difference"] > 0.2
        said = judged_elsewhere.verdict("similarity")
        assert "raises the Spearman correlation from" in said
        assert isinstance(judged_elsewhere.best_adapter("similarity"), BaseEstimator)

    def test_adapters_alone_have_adjusted_p_values_and_controls_of_labels(self, judged_elsewhere):
        for use in judged_elsewhere.uses:
            own = [row for row in judged_elsewhere.rows if row["use"] == use]
            adapters = [row for row in own if row["kind"] == "adapter"]
            tested = [row for row in adapters if not np.isnan(row["p_value"])]
            assert len(tested) == (0 if use == "search" else 2)  # it has 30 queries
            for row in sorted(tested, key=lambda row: row["p_value"])[:1]:
                assert row["p_holm"] == pytest.approx(min(1, 2 * row["p_value"]))
            assert all(np.isnan(row["p_holm"]) for row in own if row["kind"] != "adapter")
            control = {"classify": HEAD_REFIT, "outliers": "max softmax"}.get(use)
            assert [row["control"] for row in adapters] == [control] * 2

    def test_the_largest_probability_is_a_control_of_outliers_alone(self, judged_elsewhere):
        found = [row for row in judged_elsewhere.rows if row["adapter"] == "max softmax"]
        assert [(row["use"], row["kind"]) for row in found] == [("outliers", "control")]
        said = " ".join(repr(judged_elsewhere).split())
        assert "'max softmax' (the head's largest probability)." in said
        foreign = X[:30] - 4
        confidence = HEAD.predict_proba(np.vstack([X_TEST, foreign])).max(axis=1)
        expected = roc_auc_score([1] * len(X_TEST) + [0] * len(foreign), confidence)
        assert found[0]["score"] == pytest.approx(expected)
        row = row_of(judged_elsewhere, "outliers", "Whitening")
        assert row["control_difference"] == pytest.approx(row["score"] - expected)


class TestCrossValidation:
    @pytest.mark.parametrize(("cv", "n_folds"), [(2, 2), (None, 5)])
    def test_numbers_of_folds_are_repeated_three_times_with_other_shuffles(self, cv, n_folds):
        data = Data(X, y, "classify", np.arange(90))
        *splits, final = make_plan(data, 90, cv=cv, encoder_saw=False, seed=0)[0]
        assert final.train.tolist() == list(range(90))
        repeats = np.array_split(np.arange(3 * n_folds), 3)
        tests = [[splits[number].test for number in own] for own in repeats]
        assert all(np.sort(np.concatenate(each)).tolist() == list(range(90)) for each in tests)
        assert len({tuple(each[0]) for each in tests}) == 3

    def test_score_is_the_mean_over_the_splits_and_estimators_are_fitted_to_all_rows(self, crossed):
        fitted = [
            Whitening(head="logistic").fit(X[train], y[train]).score(X[test], y[test])
            for train, test in HALVES
        ]
        assert row_of(crossed, "classify")["score"] == pytest.approx(np.mean(fitted))
        score = row_of(crossed, "outliers", "no adapter")["score"]
        parts = [(X[train], X[test]) for train, test in HALVES]
        assert score == pytest.approx(outlier_score(parts, X[:9] - 4))
        expected = Whitening().fit(X).transform(X)
        assert crossed.estimators["Whitening"].transform(X) == pytest.approx(expected)

    def test_regression(self):
        values = X[:, 0] + 0.3 * X[:, 1]
        options = CV | {"cv": HALVES, "head": "ridge"}
        comparison = compare_adapters(X, values, "LogitPreservingWhitening", **options)
        assert comparison.uses == ["regress"]
        row = row_of(comparison, "regress", "LogitPreservingWhitening")
        assert row["score"] > 0.9
        assert (row["p_value"], row["changed_predictions"]) == (1.0, 0)


def test_an_unknown_encoder_saw_is_warned_of_and_a_mask_separates_the_rows(plain):
    with pytest.warns(UserWarning, match="encoder_saw=None: it is not known whether"):
        make_plan(Data(X, y, "classify", np.arange(90)), 90, cv=2, encoder_saw=None, seed=0)
    mask = np.arange(len(X) + len(X_TEST)) < len(X)
    rows, labels = np.r_[X, X_TEST], np.r_[y, Y_TEST]
    masked = compare_adapters(rows, labels, "Whitening", encoder_saw=mask, random_state=0)
    assert_same_rows(masked, plain)


class TestControls:
    def test_each_kind_of_training_has_its_own(self):
        kinds = IsotropyLayer, IStarAdapter, adapters.CosRegAdapter
        some = [*(kind(max_epochs=1) for kind in kinds), adapters.ExactIsotropyLayer()]
        methods = make_methods([*some, IsotropyLayer(max_epochs=2)], HEAD, "classify")
        layer = "same layer, no penalty"
        raw, exact = "same layer in raw coordinates, no penalty", "exact layer, no penalty"
        longer = f"{layer}, as IsotropyLayer(max_epochs=2)"
        controls = {each.name: each.estimator for each in methods if each.kind == "control"}
        assert list(controls) == ["head refit only", layer, raw, exact, longer]
        assert all(controls[name].alpha == 1 for name in (layer, raw, exact, longer))
        assert controls[longer].max_epochs == 2
        found = [method.controls for method in methods if method.kind == "adapter"]
        own = (layer, layer, raw, exact, longer)
        assert found == [("head refit only", name) for name in own]

    def test_the_hardest_is_shown(self):
        """That with the greater p-value, or over which nothing is gained."""
        refit = Effect(0.1, 0, 0, 0.02)
        adapter = ComparedMethod("", None, "adapter", (HEAD_REFIT, "layer"))
        for gain, expected in ((0.2, HEAD_REFIT), (-0.1, "layer")):
            effects = {"layer": Effect(gain, 0, 0, 0.01), HEAD_REFIT: refit}
            found = lambda _, name, effects=effects: effects[name]  # noqa: E731
            tests = SimpleNamespace(evidence=effects, difference=found)
            assert _hardest(adapter, tests, "classify") == (expected, effects[expected])

    def test_a_gain_of_the_control_is_not_credited(self):
        """The given head ignores the class; every refit finds it."""
        blind = LinearHead(np.eye(2, D)[:, ::-1], [0.0, 0.0], classes=[0, 1])
        new, labels = make_rows(300, 1)
        more = {**TEST, "X_test": new, "y_test": labels}
        comparison = compare_adapters(X, y, "Whitening", head=blind, **more)
        row = row_of(comparison, "classify")
        assert row["p_holm"] < 0.05 < row["control_p_holm"]
        assert "a refitted head alone raises" in comparison.verdict("classify")
        assert comparison.best_adapter() is None


class Stopping(Whitening):
    """Is interrupted while it is fitted."""

    def fit(self, X, y=None, sample_weight=None):
        raise KeyboardInterrupt


class Failing(Whitening):
    """Cannot be fitted."""

    def fit(self, X, y=None, sample_weight=None):
        raise ValueError("too bad")


class TestRunsThatStop:
    @pytest.mark.parametrize(
        ("others", "said"),
        [
            ({"stopping": Stopping(), "last": Whitening()}, "before these were done: stopping, la"),
            ({"bad": Failing()}, r"bad was left out: 1 of 1 fits failed.*too bad"),
        ],
        ids=["interrupted", "failed"],
    )
    def test_what_is_done_is_kept(self, plain, others, said):
        with pytest.warns(UserWarning, match=said):
            found = compare_adapters(X, y, {"Whitening": Whitening()} | others, **TEST)
        assert list(found.estimators) == ["Whitening"]
        assert_same_rows(found, plain)

    def test_resumed(self, plain, tmp_path, monkeypatch):
        first = compare_adapters(X, y, "Whitening", cache=tmp_path, **TEST)
        assert_same_rows(first, plain)
        other = compare_adapters(X, 1 - y, "Whitening", cache=tmp_path, **TEST)
        assert row_of(other, "classify")["score"] < 0.5 < row_of(first, "classify")["score"]
        monkeypatch.setattr(Whitening, "fit", Failing.fit)
        again = compare_adapters(X, y, "Whitening", cache=tmp_path, **TEST)
        assert_same_rows(again, first)
        seconds = [[row["fit_seconds"] for row in each.rows] for each in (again, first)]
        assert seconds[0] == seconds[1]


class TestAdapters:
    def test_fast_and_all(self):
        fast, every = (
            {each.name for each in make_methods(kind, "logistic", "classify")}
            for kind in ("fast", "all")
        )
        assert {"LogitPreservingWhitening", "ExactIsotropyLayer"} <= fast < every
        assert "IsotropyLayer" in every - fast

    def test_names_and_estimators(self):
        some = ["whitening", PCA(5), Whitening(), Whitening()]
        names = list(compare_adapters(X, y, some, **TEST).estimators)
        assert names == ["Whitening", "PCA(n_components=5)", "Whitening()", "Whitening() (2)"]

    def test_random_states_are_set_where_there_is_none(self):
        found = seeded(make_pipeline(PCA(random_state=3), IStarAdapter()), 7).get_params()
        assert [found[f"{step}__random_state"] for step in ("pca", "istaradapter")] == [3, 7]


DEFAULTS = {"adapters": "Whitening", "encoder_saw": False}
test_wrong_data_and_adapters = refusals(
    ({"adapters": "whitenin"}, "adapters"),
    ({"adapters": [Whitening]}, "adapters"),
    ({"adapters": {"no adapter": PCA()}}, "adapters"),
    ({"X_test": X_TEST}, "X_test and y_test"),
    ({"X_test": X_TEST[:, 1:], "y_test": Y_TEST}, "X_test has 5 features"),
    ({"X_test": X_TEST, "y_test": Y_TEST + 7}, "labels .*but y has other ones"),
    ({"X_test": X[:20], "y_test": y[:20]}, "leaves 0 of at least"),
    ({"uses": [Similarity(["a"], ["b"], [1.0])]}, "A must hold numbers"),
    ({"uses": [Similarity(X[:2], X[2:4], [1.0, 2.0])]}, "at least 3 pairs"),
    ({"uses": [Search(X[:2], X, [0, 99])]}, r"relevant\[1\]=\[99\]"),
    ({"uses": Outliers(X)}, "must be a list .*not Outliers$"),
    ({"uses": [X]}, "not a list with ndarray$"),
    ({"uses": [Outliers(X), Outliers(X)]}, "'outliers' is taken: pass another"),
    ({"head": LinearHead(np.eye(2, D), [0, 0], classes=["a", "b"])}, "relabel y"),
    ({"encoder_saw": True}, "X_test"),
    ({"cache": "folder"}, "random_state"),
    ({"groups": np.ones((45, 2))}, "groups has shape"),
    ({"groups": np.repeat([0, 1, 2], 30)}, "only 0 rows are judged|number of splits"),
    ({"cv": 1}, "n_splits=1"),
    ({"cv": [HALVES[0], (HALVES[0][0], HALVES[0][1] + 1)]}, "index 90 is out of bounds"),
    call=lambda options: compare_adapters(X, y, **DEFAULTS | options),
    errors=(IndexError, TypeError, ValueError),
)


# --- rows, pairs and queries that depend on each other ------------------------------------------

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

    @pytest.mark.parametrize("n_foreign", [29, 30])
    def test_equal_foreign_rows_count_once_and_few_are_too_few_for_a_test(self, n_foreign):
        """Accuracies of single rows have an exact test; a group may change by any number."""
        foreign = np.repeat(X_TEST[:n_foreign] + 3, 5, axis=0)
        groups = np.arange(60) % 30
        options = TEST | {"head": HEAD, "uses": [Outliers(foreign)], "groups_test": groups}
        with pytest.warns(UserWarning, match="too few to test: 'IsoBN'") as caught:
            found = compare_adapters(X, y, "IsoBN", **options)
        told = [str(each.message).split(": ") for each in caught]
        few = {use for use, _, untested in told if untested == "'IsoBN'"}  # and no control
        assert few == {"classify"} | ({"outliers"} if n_foreign < 30 else set())
        row = row_of(found, "outliers", "IsoBN")
        assert row["n_units"] == 30 + n_foreign
        assert np.isnan(row["p_value"]) == (n_foreign < 30)
        assert row["ci_low"] < row["score"] < row["ci_high"]
        found = compare_adapters(X, y, "IsoBN", **TEST)
        assert not np.isnan(row_of(found, "classify", "IsoBN")["p_value"])


class Memory(TransformerMixin, BaseEstimator):
    """Adds a column, the labels of rows nearly equal to those that it was fitted to."""

    def fit(self, X, y):
        self.rows_, self.labels_ = X, y
        return self

    def transform(self, X):
        distances = cdist(X, self.rows_)
        told = 2.0 * self.labels_[distances.argmin(axis=1)] - 1
        return np.column_stack([X, 5 * np.where(distances.min(axis=1) < 1e-3, told, 0.0)])


class TestFolds:
    rng = np.random.default_rng(0)
    twins = np.repeat(rng.normal(size=(40, 12)), 2, axis=0)
    labels = np.repeat(np.arange(40) % 2, 2)

    @pytest.mark.parametrize("task", ["classify", "regress"])
    def test_rows_of_a_cluster_are_never_in_both_parts(self, task):
        clusters = np.repeat(np.arange(40), 2)
        data = Data(self.twins, self.labels, task, clusters)
        for split in make_plan(data, 80, cv=3, encoder_saw=False, seed=0)[0][:-1]:
            assert not np.intersect1d(clusters[split.train], clusters[split.test]).size

    def test_equal_rows_and_groups_share_a_fold(self):
        """Labels are noise: only a row that is fitted to and has the same label could tell it."""
        twins, groups = self.twins[:, :2].copy(), np.repeat(np.arange(40), 2)
        twins[::2][:20] += 1e-6  # no longer equal, but of one group
        groups[40:] = np.arange(40, 80)
        found = compare_adapters(twins, self.labels, Memory(), groups=groups, **CV | {"cv": 4})
        row = row_of(found, "classify", "Memory()")
        assert row["score"] < 0.55
        assert row["n_units"] == 40
        assert "grouped splits" in found.protocol

    def test_groups_reach_the_folds_of_a_head(self):
        """Values are noise, and only near copies in another fold make them seem to be learnt."""
        rows, values = self.rng.normal(size=(40, 60)), self.rng.normal(size=40).repeat(5)
        near = rows.repeat(5, axis=0) + 1e-3 * self.rng.normal(size=(200, 60))
        kinds = {"with a head": adapters.IsoBN(), "before one": StandardScaler()}
        sizes = []
        for groups in (None, np.arange(40).repeat(5)):
            given = {"X_test": X_TEST @ self.rng.normal(size=(D, 60)), "y_test": X_TEST[:, 0]}
            options = {"head": "ridge", "groups": groups, **TEST, **given}
            found = compare_adapters(near, values, kinds, **options).estimators
            sizes.append([np.linalg.norm(found[name].head_.coef_) for name in kinds])
        assert (np.array(sizes[1]) < 0.3 * np.array(sizes[0])).all()


def test_rows_in_both_parts_are_not_judged(plain):
    both = {"X_test": np.r_[X_TEST, X[:7]], "y_test": np.r_[Y_TEST, y[:7]]}
    with pytest.warns(UserWarning, match="7 of the 67 rows to judge on equal rows to fit to"):
        found = compare_adapters(X, y, "Whitening", **TEST | both)
    assert_same_rows(found, plain)


@pytest.mark.filterwarnings("ignore:.*too few to test")
def test_pairs_of_one_text_are_one_unit():
    """In either place of a pair."""
    vectors = np.random.default_rng(5).normal(size=(60, D))
    left, right = np.r_[[0] * 10, 11:30], np.r_[1:11, 0, 31:49]
    pairs = Similarity(vectors[left], vectors[right], np.arange(29) % 6)
    found = compare_adapters(X, y, "Whitening", uses=[pairs], **TEST)
    assert row_of(found, "similarity")["n_units"] == 1 + 18
    rounded = pairs.B + 1e-9 * vectors[:29]
    near = Similarity(pairs.A, rounded, pairs.scores)
    found = compare_adapters(X, y, "Whitening", uses=[near], **TEST)
    assert row_of(found, "similarity")["n_units"] == 1 + 18
    topics = np.c_[left // 12, right // 12]  # of 12 texts each
    pairs = replace(pairs, groups=topics.astype(str))
    found = compare_adapters(X, y, "Whitening", uses=[pairs], **TEST)
    assert row_of(found, "similarity")["n_units"] == 4  # three in several of them, and a pair alone


@pytest.mark.filterwarnings("ignore:.*too few to test")
def test_queries_of_the_same_documents_and_pairs_of_one_text_are_one_unit():
    documents = np.r_[X[:20], X[:5]]  # the last are copies
    queries = np.r_[X[:8], X[:4]] + 0.1
    relevant = [0, 1, [2, 3], [3, 2], 4, 5, {6}, 7, 10, 21, [22, 23], 19]
    pairs = Similarity(np.tile(X[0], (20, 1)), X[1:21], np.arange(20) % 6)
    uses = [pairs, Search(queries, documents, relevant)]
    found = compare_adapters(X, y, "Whitening", uses=uses, **TEST)
    # 8 to 11 are of the vectors of 0 to 3; 3 and 10 are of the documents of 2, and 9 of 1
    assert row_of(found, "search")["n_units"] == 12 - 5
    row = row_of(found, "similarity")
    assert row["n_units"] == 1
    assert np.isnan([row["p_value"], row["p_holm"], row["difference_low"]]).all()
    assert "none of the adapters raised" in found.verdict("similarity")


class TestComparison:
    def test_frame_pickle_json_and_display(self, judged_elsewhere):
        frame = judged_elsewhere.to_frame()
        start = ["use", "adapter", "score", "ci_low", "ci_high", "difference", "p_value", "p_holm"]
        assert list(frame.columns[:8]) == start
        assert len(frame) == len(judged_elsewhere.rows) == 5 * 4 + 1
        again = pickle.loads(pickle.dumps(judged_elsewhere))
        assert_same_rows(again, judged_elsewhere)
        figures = json.loads(json.dumps(judged_elsewhere.to_dict(), allow_nan=False))
        assert figures["verdict"]["similarity"] == judged_elsewhere.verdict("similarity")
        rows = [row | {"adapter": f"<{row['adapter']}>"} for row in judged_elsewhere.rows]
        assert "<Whitening>" not in Comparison(rows, "", {}, [])._repr_html_()

    def test_the_best_adapter_that_guarantees_the_predictions(self):
        figures = {"use": "similarity", "kind": "adapter", "difference": 0.1, "p_holm": 0.01}
        figures |= {"control": None, "fit_seconds": 1.0}
        for low, best in ((0.85, "second"), (0.75, "first")):  # in the latter, they are equal
            rows = [
                {"adapter": "a", "score": 0.8, "ci_low": 0.7, "keeps_predictions": True} | figures,
                {"adapter": "b", "score": 0.9, "ci_low": low, "keeps_predictions": False} | figures,
                {"adapter": "c", "score": 0.7, "ci_low": 0.6, "keeps_predictions": True} | figures,
            ]
            comparison = Comparison(rows, "test rows", {"a": "first", "b": "second"}, ())
            assert comparison.best_adapter("similarity") == best
            assert comparison.credited("similarity")[2:] == ["c"]
            assert comparison.best_adapter("similarity", same_predictions=True) == "first"

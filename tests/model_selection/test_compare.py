"""Comparisons of adapters: protocols, uses, controls, and runs that stop."""

import json
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from isoadapt import (
    CosRegAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    Whitening,
)
from isoadapt.metrics import isoscore, neighbour_overlap, similarity_correlation
from isoadapt.model_selection import Comparison, compare_adapters

pytestmark = pytest.mark.usefixtures("fixed_penalty")
D = 6
HALVES = np.arange(45), np.arange(45, 90)
HEAD = LinearHead(np.eye(2, D), [0.0, 0.2], classes=[0, 1])
CLOSED = ["Whitening", "LogitPreservingWhitening"]


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


def make_pairs(n=80):
    """Pairs that are as similar as their coordinates other than the third, which is noise."""
    rng = np.random.default_rng(2)
    A = rng.normal(size=(n, D))
    B = A + rng.normal(size=(n, D)) * np.linspace(0.1, 3, n)[:, None]
    A[:, 2], B[:, 2] = 6 * rng.normal(size=(2, n))
    return A, B, np.linspace(5, 0, n)


def columns(comparison, *names):
    return [[row[name] for name in names] for row in comparison.rows]


def assert_same_rows(first, second):
    rows = [
        [{name: value for name, value in row.items() if "seconds" not in name} for row in each.rows]
        for each in (first, second)
    ]
    keyed = [{(row["use"], row["adapter"]): row for row in each} for each in rows]
    assert keyed[0].keys() == keyed[1].keys()
    for key, row in keyed[0].items():
        assert row == pytest.approx(keyed[1][key], nan_ok=True), key


def row_of(comparison, use, adapter):
    (row,) = [r for r in comparison.rows if (r["use"], r["adapter"]) == (use, adapter)]
    return row


@pytest.fixture(scope="module")
def judged_elsewhere():
    """All uses, judged on other rows."""
    rng = np.random.default_rng(3)
    documents = rng.normal(size=(40, D)) * [1, 1, 9, 1, 1, 1]
    return compare_adapters(
        X,
        y,
        CLOSED,
        head=HEAD,
        pairs=make_pairs(),
        queries=documents[:20] + 0.3 * rng.normal(size=(20, D)),
        documents=documents,
        relevant=range(20),
        foreign=X[:30] - 4,
        **TEST,
    )


class TestOtherRows:
    def test_uses(self, judged_elsewhere):
        expected = ["classify", "similarity", "search", "neighbours", "outliers"]
        assert judged_elsewhere.uses == expected

    def test_scores_are_those_of_the_metrics(self, judged_elsewhere):
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

    def test_outliers_are_ranked_by_their_distance_to_training_rows(self, judged_elsewhere):
        def distances(rows):
            unit, reference = (Z / np.linalg.norm(Z, axis=1)[:, None] for Z in (rows, X))
            return np.sort(1 - unit @ reference.T, axis=1)[:, :10].mean(axis=1)

        ranked = np.concatenate([distances(X_TEST), distances(X[:30] - 4)])
        expected = roc_auc_score([0] * 60 + [1] * 30, ranked)
        assert row_of(judged_elsewhere, "outliers", "no adapter")["score"] == pytest.approx(
            expected
        )

    def test_differences_are_those_of_the_scores(self, judged_elsewhere):
        for row in judged_elsewhere.rows:
            if row["kind"] != "baseline":
                base = row_of(judged_elsewhere, row["use"], "no adapter")
                assert row["difference"] == pytest.approx(row["score"] - base["score"])
                assert row["difference_low"] <= row["difference"] <= row["difference_high"]
            assert row["ci_low"] <= row["score"] <= row["ci_high"]

    def test_kept_logits_change_no_prediction(self, judged_elsewhere):
        row = row_of(judged_elsewhere, "classify", "LogitPreservingWhitening")
        assert (row["changed_predictions"], row["difference"], row["p_value"]) == (0, 0.0, 1.0)

    def test_a_planted_gain_in_similarity_is_found_and_said(self, judged_elsewhere):
        row = row_of(judged_elsewhere, "similarity", "LogitPreservingWhitening")
        assert row["p_holm"] < 0.05
        assert row["difference"] > 0.2
        said = judged_elsewhere.verdict("similarity")
        assert "raises the Spearman correlation from" in said
        assert isinstance(judged_elsewhere.best_adapter("similarity"), BaseEstimator)

    def test_a_refit_of_the_head_is_no_control_of_vectors(self, judged_elsewhere):
        for row in judged_elsewhere.rows:
            if row["kind"] == "adapter":
                expected = "head refit only" if row["use"] == "classify" else None
                assert row["control"] == expected


class TestCrossValidation:
    def test_three_repeats_of_the_folds(self):
        comparison = compare_adapters(X, y, CLOSED, **CV)
        assert "6 splits" in comparison.protocol
        row = row_of(comparison, "classify", "Whitening")
        assert row["n_predictions"] == 3 * len(X)

    def test_score_is_the_mean_over_the_splits(self):
        splits = [(np.arange(45), np.arange(45, 90)), (np.arange(45, 90), np.arange(45))]
        comparison = compare_adapters(X, y, "Whitening", **CV | {"cv": splits})
        fitted = [
            Whitening(head="logistic").fit(X[train], y[train]).score(X[test], y[test])
            for train, test in splits
        ]
        assert row_of(comparison, "classify", "Whitening")["score"] == pytest.approx(
            np.mean(fitted)
        )

    def test_no_number_of_folds_is_the_default(self):
        first = compare_adapters(X, y, "Whitening", **CV | {"cv": None})
        assert_same_rows(first, compare_adapters(X, y, "Whitening", **CV | {"cv": 5}))

    def test_estimators_are_fitted_to_all_rows(self):
        comparison = compare_adapters(X, y, ["Whitening"], **CV)
        expected = Whitening().fit(X).transform(X)
        assert comparison.estimators["Whitening"].transform(X) == pytest.approx(expected)

    def test_groups_share_a_fold(self):
        """Twins with nearly equal vectors and random labels are told apart only by their twin."""
        rng = np.random.default_rng(0)
        twins = np.repeat(rng.normal(size=(40, 30)), 2, axis=0) + 1e-6 * rng.normal(size=(80, 30))
        labels = np.repeat(rng.integers(0, 2, size=40), 2)
        some = {"adapters": "IsoBN", "head": LogisticRegression(), **CV, "cv": 5}
        scores = [
            row_of(compare_adapters(twins, labels, groups=groups, **some), "classify", "IsoBN")
            for groups in (None, np.repeat(np.arange(40), 2))
        ]
        assert scores[0]["score"] > 0.75 > scores[1]["score"]

    def test_regression(self):
        values = X[:, 0] + 0.3 * X[:, 1]
        comparison = compare_adapters(X, values, "LogitPreservingWhitening", head="ridge", **CV)
        assert comparison.uses == ["regress"]
        row = row_of(comparison, "regress", "LogitPreservingWhitening")
        assert row["score"] > 0.9
        assert (row["p_value"], row["changed_predictions"]) == (1.0, 0)

    def test_order_of_the_adapters_does_not_matter(self):
        some = ["Whitening", "ClusterIsotropy", "IsoBN"]
        first = compare_adapters(X, y, some, **TEST)
        assert_same_rows(first, compare_adapters(X, y, some[::-1], **TEST))

    @pytest.mark.slow
    def test_number_of_processes_does_not_matter(self, monkeypatch):
        monkeypatch.undo()  # new processes would search for the C that is fixed here
        first = compare_adapters(X, y, "ClusterIsotropy", **CV)
        assert_same_rows(first, compare_adapters(X, y, "ClusterIsotropy", n_jobs=2, **CV))


class TestWhatTheEncoderSaw:
    def test_unknown(self):
        message = "encoder_saw=None: it is not known whether"
        with pytest.warns(UserWarning, match=message) as caught:
            compare_adapters(X, y, "Whitening", cv=3)
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("saw", [True, np.ones(len(X), bool)])
    def test_seen_rows_are_not_cross_validated(self, saw):
        with pytest.raises(ValueError, match="Pass X_test and y_test"):
            compare_adapters(X, y, "Whitening", encoder_saw=saw)

    def test_mask_separates_fitted_and_judged_rows(self):
        mask = np.arange(len(X)) < 50
        masked = compare_adapters(X, y, CLOSED, encoder_saw=mask, random_state=0)
        split = compare_adapters(
            X[mask], y[mask], CLOSED, **TEST | {"X_test": X[~mask], "y_test": y[~mask]}
        )
        assert_same_rows(masked, split)

    def test_masked_rows_of_a_group_are_one_unit_of_the_task(self):
        rows = np.r_[np.arange(50), np.repeat(np.arange(50, 90), 5)]
        mask = np.arange(len(rows)) < 50
        options = {"encoder_saw": mask, "groups": rows, "random_state": 0}
        copied = compare_adapters(X[rows], y[rows], "Whitening", **options)
        plain = compare_adapters(X, y, "Whitening", encoder_saw=mask[:90], random_state=0)
        names = "use", "ci_low", "ci_high"
        assert columns(copied, *names)[0] == pytest.approx(columns(plain, *names)[0])

    def test_mask_of_unseen_rows_is_cross_validated(self):
        options = CV | {"encoder_saw": np.zeros(len(X), bool)}
        unseen = compare_adapters(X, y, "Whitening", **options)
        assert_same_rows(unseen, compare_adapters(X, y, "Whitening", **CV))


class TestControls:
    def test_each_kind_of_training_has_its_own(self):
        epochs = {"max_epochs": 1}
        adapters = [kind(**epochs) for kind in (IsotropyLayer, IStarAdapter, CosRegAdapter)]
        adapters += [IsotropyLayer(solver="exact"), IsotropyLayer(max_epochs=2)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            comparison = compare_adapters(X, y, adapters, head=HEAD, **TEST)
        kinds = dict(columns(comparison, "adapter", "kind"))
        controls = [name for name, kind in kinds.items() if kind == "control"]
        assert controls[:4] == [
            "head refit only",
            "same layer, no penalty",
            "same layer in raw coordinates, no penalty",
            "exact layer, no penalty",
        ]
        assert controls[4:] == ["same layer, no penalty, as IsotropyLayer(max_epochs=2)"]
        for row in comparison.rows:
            if row["adapter"].startswith("CosReg") and row["use"] == "neighbours":
                assert row["control"] == "same layer in raw coordinates, no penalty"

    def test_a_gain_of_the_control_is_not_credited(self):
        """The given head ignores the class; every refit finds it."""
        blind = LinearHead(np.eye(2, D)[:, ::-1], [0.0, 0.0], classes=[0, 1])
        new, labels = make_rows(300, 1)
        more = {**TEST, "X_test": new, "y_test": labels}
        comparison = compare_adapters(X, y, "Whitening", head=blind, **more)
        row = row_of(comparison, "classify", "Whitening")
        assert row["p_holm"] < 0.05 < row["control_p_holm"]
        assert "the gain is not credited" in comparison.verdict("classify")
        assert "'head refit only'" in comparison.verdict("classify")
        assert comparison.best_adapter() is None

    def test_a_new_head_needs_no_refit(self):
        comparison = compare_adapters(X, y, "Whitening", **TEST)
        assert "head refit only" not in dict(columns(comparison, "adapter", "kind"))


class Product(TransformerMixin, BaseEstimator):
    """Adds the product of two columns, which a linear head cannot form."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return np.column_stack([X, 3 * X[:, 3] * X[:, 4]])


class Stopping(Whitening):
    """Is interrupted while it is fitted."""

    def fit(self, X, y=None, sample_weight=None):
        raise KeyboardInterrupt


class Failing(Whitening):
    """Cannot be fitted."""

    def fit(self, X, y=None, sample_weight=None):
        raise ValueError("too bad")


class Warning_(Whitening):
    """Warns at each fit."""

    def fit(self, X, y=None, sample_weight=None):
        warnings.warn("a doubt", UserWarning, stacklevel=2)
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("crossed", [True, False])
def test_a_planted_gain_is_found(crossed):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, D))
    labels = (rows[:, 0] + rows[:, 3] * rows[:, 4] > 0).astype(int)
    test = TEST | {"X_test": rows[300:], "y_test": labels[300:]}
    given = (rows, labels) if crossed else (rows[:300], labels[:300])
    comparison = compare_adapters(*given, {"product": Product()}, **CV if crossed else test)
    row = row_of(comparison, "classify", "product")
    assert row["difference_low"] > 0.05
    assert row["p_holm"] < 0.05
    assert comparison.best_adapter("classify").transform(rows).shape == (600, D + 1)
    assert "product raises the accuracy from" in comparison.verdict("classify")


class TestRunsThatStop:
    def test_interrupt_keeps_what_is_done(self):
        adapters = {"first": Whitening(), "stopping": Stopping(), "last": Whitening()}
        with pytest.warns(UserWarning, match="interrupted before these were done: stopping, last"):
            comparison = compare_adapters(X, y, adapters, **TEST)
        assert list(comparison.estimators) == ["first"]
        expected = compare_adapters(X, y, {"first": Whitening()}, **TEST)
        assert_same_rows(comparison, expected)

    def test_nothing_is_kept_without_the_controls(self, monkeypatch):
        monkeypatch.setattr("isoadapt.model_selection._compare._methods.WithHead.fit", Stopping.fit)
        with pytest.raises(KeyboardInterrupt):
            compare_adapters(X, y, "Whitening", **TEST)

    def test_failed_adapter_is_left_out(self):
        adapters = {"good": Whitening(), "bad": Failing()}
        with pytest.warns(UserWarning, match=r"bad was left out: 1 of 1 fits failed.*too bad"):
            comparison = compare_adapters(X, y, adapters, **TEST)
        assert list(comparison.estimators) == ["good"]
        assert comparison.notes[0].startswith("bad was left out")

    def test_warnings_of_fits_are_counted(self):
        with pytest.warns(UserWarning, match=r"w: a doubt \(in 7 of 7 fits\)") as caught:
            compare_adapters(X, y, {"w": Warning_()}, **CV)
        assert [each.filename for each in caught] == [__file__]

    def test_resumed(self, tmp_path, monkeypatch):
        first = compare_adapters(X, y, CLOSED, cache=tmp_path, **TEST)
        monkeypatch.setattr(Whitening, "fit", Failing.fit)
        again = compare_adapters(X, y, CLOSED, cache=tmp_path, **TEST)
        assert_same_rows(first, again)
        assert columns(first, "fit_seconds") == columns(again, "fit_seconds")

    def test_other_data_are_not_found_in_the_cache(self, tmp_path):
        compare_adapters(X, y, CLOSED, cache=tmp_path, **TEST)
        other = compare_adapters(X + 1, y, CLOSED, cache=tmp_path, **TEST)
        assert_same_rows(other, compare_adapters(X + 1, y, CLOSED, **TEST))

    def test_cache_needs_a_seed(self, tmp_path):
        with pytest.raises(ValueError, match="needs an integer random_state"):
            compare_adapters(X, y, "Whitening", cache=tmp_path, encoder_saw=False)


class TestAdapters:
    def test_fast_and_all(self):
        fast = compare_adapters(X, y, **TEST)
        assert "LogitPreservingWhitening" in fast.estimators
        assert "IsotropyLayer, exact" in fast.estimators
        assert "IsotropyLayer, minibatch" not in fast.estimators

    @pytest.mark.filterwarnings("ignore:.*of the squared deviations")
    def test_names_estimators_and_pipelines(self):
        pipeline = make_pipeline(PCA(3), Whitening())
        some = ["whitening", "IsotropyLayer, exact", PCA(2), pipeline, Whitening(), Whitening()]
        comparison = compare_adapters(X, y, some, **TEST)
        names = list(comparison.estimators)
        assert names[:3] == ["Whitening", "IsotropyLayer, exact", "PCA(n_components=2)"]
        assert names[3].startswith("Pipeline(")
        assert names[4:] == ["Whitening()", "Whitening() (2)"]

    def test_the_head_replaces_that_of_the_adapters(self):
        comparison = compare_adapters(X, y, LogitPreservingWhitening(), head=HEAD, **TEST)
        (adapter,) = comparison.estimators.values()
        assert adapter.head_ is HEAD

    @pytest.mark.parametrize(
        ("adapters", "message"),
        [
            ("whitenin", "did you mean 'Whitening'"),
            ([], "names no adapter"),
            ({}, "names no adapter"),
            ([Whitening], "must be 'fast', 'all'"),
            (3, "must be 'fast', 'all'"),
            ({"no adapter": Whitening()}, "is that of a control"),
        ],
    )
    def test_wrong_adapters(self, adapters, message):
        with pytest.raises((ValueError, TypeError), match=message):
            compare_adapters(X, y, adapters, **TEST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"X_test": X_TEST}, "X_test and y_test must be given together"),
        ({"X_test": X_TEST[:, 1:], "y_test": Y_TEST}, "X_test has 5 features and X 6"),
        ({"X_test": X_TEST, "y_test": Y_TEST + 7}, "none of which occurs in y"),
        (
            {"X_test": X_TEST, "y_test": np.ones(len(X_TEST)), "head": "ridge"},
            "the rows to judge on have equal values only",
        ),
        ({"X_test": np.full((3, D), "a text"), "y_test": Y_TEST[:3]}, "not texts or objects"),
        ({"pairs": (X, X)}, "pairs must be three things"),
        ({"pairs": (["a"], ["b"], [1.0])}, "pairs holds texts, which need an encoder"),
        ({"pairs": (X, X, np.ones(len(X)))}, "different score"),
        ({"queries": X}, "documents, relevant is missing"),
        (
            {"queries": X[:2], "documents": X, "relevant": [0, 99]},
            r"relevant\[1\]=\[99\] must name",
        ),
        ({"foreign": X[:, :2]}, "foreign has 2 features and X 6"),
        ({"head": "linear"}, "head='linear' must be 'logistic'"),
        ({"encoder_saw": np.zeros(3)}, "boolean mask with one entry for each of the 90 rows"),
        ({"cv": 1}, "cv=1 must be at least 2"),
        ({"head": LinearHead(np.eye(2, D), [0, 0], classes=["a", "b"])}, "labels unknown"),
        ({"cv": [(np.arange(9), np.arange(9, 20))]}, "gives 1 split"),
        ({"cv": 5.5}, "cv=5.5 is not admissible; pass a number of folds, a splitter"),
        ({"cv": [HALVES, None]}, "cv: split 1 is None; pass a number of folds"),
        (
            {"cv": [HALVES, (HALVES[0], None)]},
            r"test rows of split 1, of shape \(\) and dtype obj.* the row numbers 0 to 89",
        ),
        ({"cv": [HALVES, (HALVES[0], [])]}, r"test rows of split 1, of shape \(0,\)"),
        ({"cv": [(np.arange(90) < 45, np.arange(90) >= 45)]}, "training rows .* dtype bool, must"),
        ({"cv": [HALVES, (HALVES[0], HALVES[1] + 1)]}, "test rows of split 1, .* numbers 0 to 89"),
        ({"cv": [(np.arange(46), np.arange(45, 90))]}, "1 row.* both for training and for test"),
    ],
)
def test_wrong_data(options, message):
    with pytest.raises(ValueError, match=message):
        compare_adapters(X, y, "Whitening", **{"encoder_saw": False} | options)


def test_the_best_adapter_that_changes_no_prediction():
    figures = {"use": "similarity", "kind": "adapter", "difference": 0.1, "p_holm": 0.01}
    figures["control"] = None
    rows = [
        {"adapter": "a", "score": 0.9, "changed_predictions": 5} | figures,
        {"adapter": "b", "score": 0.8, "changed_predictions": 0} | figures,
    ]
    comparison = Comparison(rows, "test rows", {"a": "first", "b": "second"}, ())
    assert comparison.best_adapter("similarity") == "first"
    assert comparison.best_adapter("similarity", same_predictions=True) == "second"


def test_texts_are_embedded_by_the_encoder():
    class Lengths:
        def transform(self, texts):
            return np.array([[len(text)] * D for text in texts]) * np.arange(1.0, D + 1)

    A, B = ["a", "bb", "ccc"], ["ddd", "e", "ffff"]
    comparison = compare_adapters(
        X, y, "Whitening", pairs=(A, B, [1.0, 2.0, 3.0]), encoder=Lengths(), **TEST
    )
    adapter = comparison.estimators["Whitening"]
    Z = [adapter.transform(Lengths().transform(part)) for part in (A, B)]
    cosines = [u @ v / np.linalg.norm(u) / np.linalg.norm(v) for u, v in zip(*Z, strict=True)]
    expected = spearmanr(cosines, [1.0, 2.0, 3.0]).statistic
    assert row_of(comparison, "similarity", "Whitening")["score"] == pytest.approx(expected)


@pytest.mark.parametrize("container", [list, pd.DataFrame, torch.tensor])
def test_any_container_of_numbers_is_accepted(container):
    def convert(values):
        return container(values.tolist())

    A, B, similarities = make_pairs()
    arrays = {"pairs": (A, B, similarities), "foreign": X_TEST + 3.0}
    arrays |= {"queries": A[:9], "documents": B[:9]}
    converted = {"pairs": (convert(A), convert(B), similarities)}
    converted |= {name: convert(arrays[name]) for name in ("foreign", "queries", "documents")}
    test = {**TEST, "X_test": convert(X_TEST), "relevant": list(range(9))}
    given = compare_adapters(convert(X), convert(y), "Whitening", **test, **converted)
    expected = compare_adapters(X, y, "Whitening", **{**test, "X_test": X_TEST}, **arrays)
    assert columns(given, "use", "adapter") == columns(expected, "use", "adapter")
    figures = [columns(each, "score", "ci_low", "ci_high") for each in (given, expected)]
    np.testing.assert_allclose(*figures, rtol=1e-4)


class TestComparison:
    def test_frame(self, judged_elsewhere):
        frame = judged_elsewhere.to_frame()
        start = ["use", "adapter", "score", "ci_low", "ci_high", "difference", "p_value", "p_holm"]
        assert list(frame.columns[:8]) == start
        assert {"isoscore", "isoscore_corrected", "ev1", "fit_seconds"} <= {*frame.columns}
        assert len(frame) == len(judged_elsewhere.rows) == 5 * 4

    def test_pickle_and_json(self, judged_elsewhere):
        again = pickle.loads(pickle.dumps(judged_elsewhere))
        assert_same_rows(again, judged_elsewhere)
        assert str(again) == str(judged_elsewhere)
        figures = json.loads(json.dumps(judged_elsewhere.to_dict(), allow_nan=False))
        assert figures["verdict"]["similarity"] == judged_elsewhere.verdict("similarity")

    def test_display(self, judged_elsewhere):
        assert judged_elsewhere.verdict() in repr(judged_elsewhere).replace("\n  ", " ")
        lines = repr(judged_elsewhere).splitlines()
        assert max(map(len, lines)) <= 100
        values = columns(judged_elsewhere, "p_holm", "control_p_holm")
        small = int((np.array(values) < 0.001).sum())
        assert repr(judged_elsewhere).count("  <0.001") == small > 0
        for name in ("no adapter", "head refit only", *CLOSED):
            assert sum(line.startswith(name + "  ") for line in lines) == 7
        page = judged_elsewhere._repr_html_()
        assert page.count("<table>") == page.count("</table>") == 7
        assert page.index("For similarity, ") < page.index("<table>")
        rows = [row | {"adapter": f"<{row['adapter']}>"} for row in judged_elsewhere.rows]
        assert "<Whitening>" not in Comparison(rows, "", {}, [])._repr_html_()

    def test_unknown_use(self, judged_elsewhere):
        for method in (judged_elsewhere.verdict, judged_elsewhere.best_adapter):
            with pytest.raises(ValueError, match="use='regress' is not in this comparison"):
                method("regress")

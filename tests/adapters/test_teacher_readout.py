"""TeacherReadout: its regression, folds, streams and spaces, and the head's exact logits."""

import warnings
from io import BytesIO

import joblib
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpydoc.docscrape import ClassDoc
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    LeaveOneGroupOut,
    PredefinedSplit,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from isoadapt import LinearHead, TeacherReadout
from isoadapt.adapters import _cross_moments, _teacher_readout
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import row_hashes
from isoadapt.interop import merge_into_checkpoint
from isoadapt.model_selection import compare_adapters

D = 6  # width of the head's input
RNG = np.random.default_rng(0)
MEANING = RNG.normal(size=(300, 4))
X = np.hstack(
    [
        MEANING @ RNG.normal(size=(4, D)) * [9, 1, 1, 1, 1, 0.1] + 3,
        np.tanh(MEANING @ RNG.normal(size=(4, 12))),
    ]
) + 0.1 * RNG.normal(size=(300, D + 12))
TEACHER = np.tanh(MEANING @ RNG.normal(size=(4, 9))) + 0.1 * RNG.normal(size=(300, 9))
UNIT = TEACHER / np.linalg.norm(TEACHER, axis=1, keepdims=True)
FAR = RNG.normal(size=(100, D + 12)) * 30  # rows unlike those of the fit


def make_head(rank=2, d=D):
    rng = np.random.default_rng(rank)
    coef = rng.normal(size=(max(3, rank), rank)) @ rng.normal(size=(rank, d))
    return LinearHead(coef, rng.normal(size=len(coef)), range(len(coef)))


HEAD = make_head()


def assert_same_fit(ours, theirs):
    assert ours.ridge_ == pytest.approx(theirs.ridge_, rel=1e-6)
    assert ours.r2_ == pytest.approx(theirs.r2_, rel=1e-9)
    for left, right in zip(ours.to_affine(), theirs.to_affine(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)


class TestRegression:
    def test_map_is_that_of_scikit_learn(self):
        ours = TeacherReadout(ridge=0.3).fit(X, TEACHER)
        theirs = make_pipeline(StandardScaler(), Ridge(0.3 * len(X))).fit(X, UNIT)
        np.testing.assert_allclose(ours.transform(FAR), theirs.predict(FAR), atol=1e-9)
        expected = r2_score(UNIT, theirs.predict(X), multioutput="variance_weighted")
        assert ours.score(X, TEACHER) == pytest.approx(expected)

    @pytest.mark.parametrize("by_groups", [True, False])
    def test_r2_is_that_of_cross_validation(self, by_groups):
        groups = np.array(list("abcde"))[RNG.integers(0, 5, len(X))] if by_groups else None
        ours = TeacherReadout(ridge=0.3).fit(X, TEACHER, groups=groups)
        folds = LeaveOneGroupOut() if by_groups else PredefinedSplit(row_hashes(X) % 5)
        expected = np.empty_like(UNIT)
        for train, test in folds.split(X, groups=groups):
            theirs = make_pipeline(StandardScaler(), Ridge(0.3 * len(train)))
            expected[test] = theirs.fit(X[train], UNIT[train]).predict(X[test])
        assert ours.r2_ == pytest.approx(r2_score(UNIT, expected, multioutput="variance_weighted"))

    @pytest.mark.filterwarnings("ignore:R² of the teacher")
    @pytest.mark.parametrize("noise", [0.01, 1.0, 30.0])
    def test_auto_finds_the_best_ridge(self, noise):
        y = TEACHER + noise * np.random.default_rng(1).normal(size=TEACHER.shape)
        chosen = TeacherReadout().fit(X[:60], y[:60])
        given = [TeacherReadout(ridge=r).fit(X[:60], y[:60]) for r in np.logspace(-6, 4, 21)]
        best = max(each.r2_ for each in given)
        again = clone(chosen).set_params(ridge=chosen.ridge_).fit(X[:60], y[:60])
        assert chosen.r2_ == pytest.approx(again.r2_, abs=1e-9)
        assert chosen.r2_ >= best - 0.003

    @pytest.mark.filterwarnings("ignore:R² of the teacher")
    @pytest.mark.parametrize("n", [3, 8, 15])
    def test_smallest_ridge_with_fewer_rows_than_columns(self, n):
        adapter = TeacherReadout(ridge=1e-8).fit(X[:n], TEACHER[:n])
        assert adapter.score(X[:n], TEACHER[:n]) == pytest.approx(1, abs=1e-4)
        assert np.abs(adapter.transform(X)).max() < 100
        for ridge in (0.0, 1e-9):
            with pytest.raises(ValueError, match="'ridge' parameter of TeacherReadout must be"):
                TeacherReadout(ridge=ridge).fit(X, TEACHER)

    def test_large_means_and_scales_have_no_effect(self):
        plain = TeacherReadout(ridge=0.01).fit(X, TEACHER)
        moved = TeacherReadout(ridge=0.01).fit(X * 64.0 + 1e6, TEACHER * 2.0**600)
        np.testing.assert_allclose(
            moved.transform(X * 64.0 + 1e6), plain.transform(X), rtol=1e-5, atol=1e-7
        )

    def test_dead_columns_have_no_weight(self):
        wide = np.insert(X, [2, 8], 0.1, axis=1)
        still = TeacherReadout(HEAD).fit(wide, np.insert(TEACHER, 3, 0.0, axis=1))
        matrix, _ = still.to_affine()
        np.testing.assert_array_equal(matrix[:, [2, 9]], 0)
        np.testing.assert_array_equal(still.transform(wide)[:, 3], 0)
        plain = TeacherReadout(ridge=still.ridge_).fit(X, TEACHER).transform(X)
        np.testing.assert_allclose(np.delete(still.transform(wide), 3, axis=1), plain, atol=1e-9)

    def test_zero_vectors_of_the_teacher_stay_zero(self):
        y = np.where(np.arange(300)[:, None] % 3 == 0, 0.0, TEACHER)
        unit = np.where(np.arange(300)[:, None] % 3 == 0, 0.0, UNIT)
        theirs = make_pipeline(StandardScaler(), Ridge(30.0)).fit(X, unit)
        ours = TeacherReadout(ridge=0.1).fit(X, y)
        np.testing.assert_allclose(ours.transform(X), theirs.predict(X), atol=1e-9)

    def test_weights_are_frequencies_and_the_order_of_rows_has_no_effect(self):
        rng = np.random.default_rng(2)
        counts = rng.integers(0, 4, 300)
        rows = rng.permutation(np.repeat(np.arange(300), counts))
        for groups in (None, np.arange(300) % 4):
            weighted = TeacherReadout(HEAD, space="head").fit(X, TEACHER, counts, groups)
            repeated = clone(weighted).fit(
                X[rows], TEACHER[rows], groups=None if groups is None else groups[rows]
            )
            assert_same_fit(weighted, repeated)
            assert weighted.score(X, TEACHER, counts) == pytest.approx(
                repeated.score(X[rows], TEACHER[rows])
            )

    def test_rotation_of_the_teacher_rotates_the_readout(self):
        rotation = np.linalg.qr(RNG.normal(size=(9, 9)))[0]
        plain, rotated = (TeacherReadout().fit(X, y) for y in (TEACHER, TEACHER @ rotation))
        assert rotated.ridge_ == pytest.approx(plain.ridge_, rel=1e-6)
        np.testing.assert_allclose(rotated.transform(FAR), plain.transform(FAR) @ rotation)
        grams = []
        for y in (TEACHER, TEACHER @ rotation):
            Z = TeacherReadout(HEAD, space="head").fit(X, y).transform(X)
            grams.append(Z @ Z.T)
        np.testing.assert_allclose(*grams, rtol=1e-6, atol=1e-6)


class TestStreams:
    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.integers(2, 299), max_size=4), st.booleans(), st.booleans())
    def test_partial_fit_in_any_chunks_equals_fit(self, cuts, by_groups, into_head):
        groups = np.arange(300) // 25  # more groups than folds
        chunks = np.split(np.arange(300), sorted(set(cuts)))
        adapter = TeacherReadout(HEAD, space="head" if into_head else "teacher")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of chunks of a few rows
            for rows in chunks:
                adapter.partial_fit(
                    X[rows], TEACHER[rows], None, groups[rows] if by_groups else None
                )
        assert_same_fit(
            adapter, clone(adapter).fit(X, TEACHER, None, groups if by_groups else None)
        )

    def test_memory_maps_and_dask_arrays_are_read_in_parts(self, tmp_path, monkeypatch):
        array = pytest.importorskip("dask.array")
        monkeypatch.setattr(_teacher_readout, "_ENTRIES", 70 * X.shape[1])
        monkeypatch.setattr(_cross_moments, "_BLOCK", 50)
        weights, groups = np.arange(300) % 3, np.arange(300) // 40
        whole = TeacherReadout().fit(X, TEACHER, weights, groups)
        maps = []
        for name, rows in (("X", X), ("y", TEACHER)):
            np.save(tmp_path / f"{name}.npy", rows)
            maps.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
        assert_same_fit(TeacherReadout().fit(*maps, weights, groups), whole)
        lazy = array.from_array(X, (90, 7)), array.from_array(TEACHER, (100, 9))
        odd = (
            array.from_array(X, ((1, 0, 199, 100), 7)),
            array.from_array(TEACHER, ((0, 120, 180), 4)),
        )
        for pair in (lazy, odd, (X, lazy[1]), (X, maps[1]), (lazy[0], maps[1]), (maps[0], odd[1])):
            assert_same_fit(TeacherReadout().fit(*pair, weights, groups), whole)
        by_row = array.from_array(X, (1, D)), TEACHER
        assert_same_fit(TeacherReadout().fit(*by_row, array.from_array(weights), groups), whole)
        np.testing.assert_allclose(whole.transform(lazy[0]).compute(), whole.transform(X))

    @pytest.mark.parametrize(
        ("take", "message"),
        [
            (lambda X, y: (X[:, 0], y), "Expected 2D array, got 1D array"),
            (lambda X, y: (X[:1], y[:1]), "1 sample"),
            (lambda X, y: (X[:0], y[:0]), "0 sample"),
            (lambda X, y: (X[:, :0], y), r"0 feature\(s\)"),
            (lambda X, y: (X, y[:200]), "inconsistent numbers of samples"),
            (lambda X, y: (X[X[:, 0] > 0], y), r"X is dask.*: call X.compute_chunk_sizes\(\)"),
            (lambda X, y: (X, y[y[:, 0] > 0]), r"y is dask.*: call y.compute_chunk_sizes\(\)"),
        ],
    )
    def test_bad_dask_arrays_are_named(self, take, message):
        array = pytest.importorskip("dask.array")
        with pytest.raises(ValueError, match=message):
            TeacherReadout().fit(*take(array.from_array(X, 50), array.from_array(TEACHER, 60)))

    def test_only_partial_fit_keeps_moments(self):
        whole = TeacherReadout().fit(X, TEACHER)
        assert not hasattr(whole, "moments_")
        buffer = BytesIO()
        joblib.dump(whole, buffer)
        assert buffer.tell() <= 8 * (D + 12) * 9 + 4096
        streamed = TeacherReadout().partial_fit(X, TEACHER)
        assert not hasattr(streamed.fit(X, TEACHER), "moments_")
        with pytest.warns(UserWarning, match="starts without the rows of the fit before"):
            streamed.partial_fit(X[:200], TEACHER[:200])
        assert_same_fit(streamed, TeacherReadout().fit(X[:200], TEACHER[:200]))

    def test_failed_partial_fit_changes_nothing(self):
        adapter = TeacherReadout(ridge=1.0).partial_fit(X, TEACHER)
        before = joblib.hash(adapter)
        with pytest.raises(ValueError, match="y has 5 columns, but 9 in earlier rows"):
            adapter.partial_fit(X, TEACHER[:, :5])
        with pytest.raises(ValueError, match="X has 5 features, but TeacherReadout is expecting"):
            adapter.partial_fit(X[:, :5], TEACHER)
        adapter.set_params(space="head")
        with pytest.raises(ValueError, match="head=None is not a head"):
            adapter.partial_fit(X, TEACHER)
        assert joblib.hash(adapter.set_params(space="teacher")) == before


class TestHeadSpace:
    @pytest.mark.parametrize("width", [2, 9, 40])
    @pytest.mark.parametrize("rank", [1, 3, D - 1])
    def test_head_reads_any_row_as_before(self, rank, width):
        y = np.tanh(MEANING @ np.random.default_rng(width).normal(size=(4, width)))
        head = make_head(rank)
        adapter = TeacherReadout(head, space="head").fit(X, y)
        Z, logits = adapter.transform(FAR), head.outputs(FAR[:, :D])
        assert Z.shape == (100, D)
        scale = np.abs(logits).max()
        np.testing.assert_allclose(head.outputs(Z) / scale, logits / scale, atol=1e-12)
        matrix, offset = adapter.to_affine()
        np.testing.assert_allclose(head.coef_ @ matrix, head.coef_ @ np.eye(D, D + 12), atol=1e-9)
        np.testing.assert_allclose(head.coef_ @ offset, 0, atol=1e-9)

    @pytest.mark.parametrize("share", [0.03, 0.5])
    def test_logits_have_the_given_share_of_the_squared_norm(self, share):
        adapter = TeacherReadout(HEAD, space="head", head_share=share).fit(X, TEACHER)
        Z = adapter.transform(X)
        basis = np.linalg.svd(HEAD.coef_)[2][:2]
        assert ((Z @ basis.T) ** 2).sum() / (Z**2).sum() == pytest.approx(share)

    def test_products_outside_the_row_space_are_those_of_the_predicted_vectors(self):
        y = TEACHER[:, :3]  # no more columns than free directions
        adapter = TeacherReadout(HEAD, space="head").fit(X, y)
        free = np.linalg.svd(HEAD.coef_)[2][2:]
        Z, predicted = adapter.transform(FAR) @ free.T, adapter.readout_(FAR)
        scale = (Z**2).sum() / (predicted**2).sum()
        np.testing.assert_allclose(Z @ Z.T, scale * predicted @ predicted.T, atol=1e-9 * scale)

    def test_teacher_or_logits_without_variance(self):
        constant = np.tile(TEACHER[:1], (300, 1))
        with pytest.warns(UserWarning, match="R² of the teacher's vectors is nan"):
            adapter = TeacherReadout(HEAD, space="head").fit(X, constant)
        np.testing.assert_allclose(HEAD.outputs(adapter.transform(X)), HEAD.outputs(X[:, :D]))
        for value in (0.0, 1.0):
            still = np.hstack([np.full((300, D), value), X[:, D:]])
            Z = TeacherReadout(HEAD, space="head").fit(still, TEACHER).transform(still)
            np.testing.assert_allclose(HEAD.outputs(Z), HEAD.outputs(still[:, :D]), atol=1e-12)
            assert np.linalg.matrix_rank(Z) > 1

    def test_heads_that_leave_no_direction_are_refused(self):
        for head, message in ((make_head(D), "has full rank"), (None, "head=None is not a head")):
            with pytest.raises(ValueError, match=f"space='head', but .*{message}"):
                TeacherReadout(head, space="head").fit(X, TEACHER)


@pytest.mark.parametrize("space", ["teacher", "head"])
class TestPredictions:
    def test_are_those_of_the_head_on_its_own_input(self, space):
        adapter = TeacherReadout(HEAD, space=space).fit(X, TEACHER)
        for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
            expected = getattr(HEAD, method)(FAR[:, :D])
            np.testing.assert_array_equal(getattr(adapter, method)(FAR), expected)
        np.testing.assert_array_equal(
            adapter.predict(FAR.astype(np.float32)), HEAD.predict(FAR[:, :D].astype(np.float32))
        )
        np.testing.assert_array_equal(adapter.classes_, [0, 1, 2])

    def test_score_is_that_of_the_predicted_vectors(self, space):
        scores = [
            TeacherReadout(HEAD, space=space, ridge=0.1).fit(X, TEACHER).score(X, TEACHER),
            TeacherReadout(ridge=0.1).fit(X, TEACHER).score(X, UNIT),
        ]
        assert scores[0] == pytest.approx(scores[1])

    def test_heads_of_other_kinds(self, space):
        labels = np.arange(300) % 2
        model = FrozenEstimator(LogisticRegression().fit(X[:, :D], labels))
        adapter = TeacherReadout(model, space=space).fit(X, TEACHER)
        np.testing.assert_array_equal(adapter.predict(X), model.predict(X[:, :D]))
        values = LinearHead([[1.0] * D], [0.5])
        adapter = TeacherReadout(values, space=space).fit(X, TEACHER)
        np.testing.assert_allclose(adapter.predict(X), X[:, :D].sum(axis=1) + 0.5)
        assert not hasattr(adapter, "predict_proba")


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_search_over_the_ridge_and_its_pickle(backend, tmp_path):
    grid = {"ridge": [1e-3, 0.1, 10.0, "auto"]}
    search = GridSearchCV(TeacherReadout(HEAD), grid, cv=KFold(3), n_jobs=2, error_score="raise")
    with joblib.parallel_config(backend):
        search.fit(X, TEACHER)
    scores = search.cv_results_["mean_test_score"]
    for ridge, score in zip(grid["ridge"], scores, strict=True):
        expected = [
            TeacherReadout(ridge=ridge).fit(X[train], TEACHER[train]).score(X[test], TEACHER[test])
            for train, test in KFold(3).split(X)
        ]
        assert score == pytest.approx(np.mean(expected))
    assert search.best_score_ == max(scores) > 0.8
    joblib.dump(search, tmp_path / "search.joblib")
    loaded = joblib.load(tmp_path / "search.joblib")
    np.testing.assert_array_equal(loaded.transform(X), search.transform(X))


def test_tags_are_those_of_a_transformer_with_several_outputs():
    for adapter in (TeacherReadout(), TeacherReadout(HEAD)):
        assert not is_classifier(adapter)
        assert not is_regressor(adapter)
        target = get_tags(adapter).target_tags
        assert target.required and target.multi_output  # noqa: PT018
    assert not hasattr(TeacherReadout(), "predict")
    assert not hasattr(TeacherReadout(HEAD), "inverse_transform")


def test_every_fitted_attribute_is_documented():
    fitted = TeacherReadout(HEAD).partial_fit(X, TEACHER)
    found = {name for name in dir(fitted) if name.endswith("_") and name[0] != "_"}
    documented = {name for name, _, _ in ClassDoc(TeacherReadout)["Attributes"]}
    assert found | {"feature_names_in_"} == documented


def test_one_group_can_choose_no_ridge():
    with pytest.warns(UserWarning, match="is nan in held-out rows"):
        adapter = TeacherReadout().fit(X, TEACHER, groups=np.zeros(300))
    assert adapter.ridge_ == 1.0


def test_poor_fits_and_labels_are_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TeacherReadout().fit(X, TEACHER)
    with pytest.warns(UserWarning, match=r"is -?0\.0\d in held-out rows. Below .* may be better"):
        TeacherReadout().fit(X, RNG.normal(size=(300, 9)))
    with pytest.warns(UserWarning, match="y has one column"):
        TeacherReadout().fit(X, np.arange(300) % 2)


def test_wrong_input_is_refused():
    fit = TeacherReadout(HEAD).fit
    for X_, y, error, message in (
        (X, None, ValueError, "requires y to be passed, but the target y is None"),
        (X, TEACHER[:200], ValueError, "inconsistent numbers of samples"),
        (X, np.where(TEACHER > 0.9, np.nan, TEACHER), ValueError, "Input y contains NaN"),
        (X[:, :4], TEACHER, ValueError, "X has 4 features, but the head expects 6: .* first col"),
        (iter([X]), TEACHER, TypeError, "takes a matrix, a memory map or a dask array"),
        (Moments().update(X), TEACHER, TypeError, "takes a matrix"),
    ):
        with pytest.raises(error, match=message):
            fit(X_, y)
    with pytest.raises(ValueError, match=r"'head' parameter .*LinearHead.* Got 'logistic'"):
        TeacherReadout("logistic").fit(X, TEACHER)
    with pytest.raises(ValueError, match="has no coef_"):
        TeacherReadout(FrozenEstimator(Ridge())).fit(X, TEACHER)
    with pytest.raises(ValueError, match="sums to 1 or less"):
        fit(X, TEACHER, np.full(300, 1e-4))


def test_what_needs_labels_or_one_vector_refuses_it(tmp_path):
    with pytest.raises(ValueError, match="is fitted to a teacher's vectors: pass teacher="):
        compare_adapters(X, np.arange(300) % 2, adapters="TeacherReadout")
    with pytest.raises(ValueError, match=r"predicts from the head's own .*to_sentence_t"):
        merge_into_checkpoint(TeacherReadout(HEAD).fit(X, TEACHER), tmp_path, tmp_path / "out")

"""TeacherReadout: its regression, folds, streams and spaces, and the head's exact logits."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import LeaveOneGroupOut, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import LinearHead, TeacherReadout
from isoadapt._utils.copies import copy_hashes
from tests.refusals import refusals
from tests.small_blocks import as_memmap, small_blocks

D = 6  # width of the head's input
RNG = np.random.default_rng(0)
MEANING = RNG.normal(size=(300, 4))
HEAD_INPUT = MEANING @ RNG.normal(size=(4, D)) * [9, 1, 1, 1, 1, 0.1] + 3
X = np.hstack([HEAD_INPUT, np.tanh(MEANING @ RNG.normal(size=(4, 12)))])
X += 0.1 * RNG.normal(size=(300, D + 12))
TEACHER = np.tanh(MEANING @ RNG.normal(size=(4, 9))) + 0.1 * RNG.normal(size=(300, 9))
UNIT = TEACHER / np.linalg.norm(TEACHER, axis=1, keepdims=True)
FAR = RNG.normal(size=(100, D + 12)) * 30  # rows unlike those of the fit


def make_head(rank):
    rng = np.random.default_rng(rank)
    coef = rng.normal(size=(max(3, rank), rank)) @ rng.normal(size=(rank, D))
    return LinearHead(coef, rng.normal(size=len(coef)), range(len(coef)))


HEAD = make_head(rank=2)


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
        folds = LeaveOneGroupOut() if by_groups else PredefinedSplit(copy_hashes(X, 0.0) % 5)
        expected = np.empty_like(UNIT)
        for train, test in folds.split(X, groups=groups):
            theirs = make_pipeline(StandardScaler(), Ridge(0.3 * len(train)))
            expected[test] = theirs.fit(X[train], UNIT[train]).predict(X[test])
        assert ours.r2_ == pytest.approx(r2_score(UNIT, expected, multioutput="variance_weighted"))

    def test_last_columns_may_be_predictions_that_are_corrected(self):
        guess = UNIT + 0.1 * np.random.default_rng(3).normal(size=UNIT.shape)
        rows, ours = np.hstack([X, guess]), TeacherReadout(ridge=0.3)
        ours._n_predicted = 9
        theirs = make_pipeline(StandardScaler(), Ridge(0.3 * 300)).fit(rows, UNIT - guess)
        found = ours.fit(rows, TEACHER).transform(rows)
        np.testing.assert_allclose(found, guess + theirs.predict(rows), atol=1e-9)
        for train, test in PredefinedSplit(copy_hashes(rows, 0.0) % 5).split():
            theirs.set_params(ridge__alpha=0.3 * len(train)).fit(rows[train], (UNIT - guess)[train])
            found[test] = guess[test] + theirs.predict(rows[test])
        assert ours.r2_ == pytest.approx(r2_score(UNIT, found, multioutput="variance_weighted"))

    @pytest.mark.filterwarnings("ignore:R² of the teacher")
    @pytest.mark.parametrize("noise", [1.0, 30.0])
    def test_auto_finds_the_best_ridge(self, noise):
        y = TEACHER + noise * np.random.default_rng(1).normal(size=TEACHER.shape)
        chosen = TeacherReadout().fit(X[:60], y[:60])
        given = [TeacherReadout(ridge=r).fit(X[:60], y[:60]) for r in np.logspace(-2, 2, 9)]
        best = max(each.r2_ for each in given)
        again = clone(chosen).set_params(ridge=chosen.ridge_).fit(X[:60], y[:60])
        assert chosen.r2_ == pytest.approx(again.r2_, abs=1e-9)
        assert chosen.r2_ >= best - 0.003

    def test_dead_columns_have_no_weight(self):
        wide = np.insert(X, [2, 8], 0.1, axis=1)
        still = TeacherReadout(HEAD).fit(wide, np.insert(TEACHER, 3, 0.0, axis=1))
        matrix, _ = still.to_affine()
        np.testing.assert_array_equal(matrix[:, [2, 9]], 0)
        np.testing.assert_array_equal(still.transform(wide)[:, 3], 0)
        plain = TeacherReadout(ridge=still.ridge_).fit(X, TEACHER).transform(X)
        np.testing.assert_allclose(np.delete(still.transform(wide), 3, axis=1), plain, atol=1e-9)

    @pytest.mark.parametrize("scale", [1e-9, 1e7, 1e12])
    def test_columns_of_any_scale_count_the_same(self, scale):
        plain = TeacherReadout().fit(X, TEACHER)
        scales = np.where(np.arange(X.shape[1]) == 8, scale, 1.0)
        with warnings.catch_warnings(action="error"):
            scaled = TeacherReadout(ridge=plain.ridge_).fit(X * scales, TEACHER)
        np.testing.assert_allclose(scaled.transform(FAR * scales), plain.transform(FAR), atol=1e-6)
        assert scaled.r2_ == pytest.approx(plain.r2_, abs=0.01)  # by other folds

    @pytest.mark.filterwarnings("ignore:R² of the teacher")
    @pytest.mark.parametrize("noise", [0, 2e-7])
    def test_copies_share_a_fold_also_if_they_differ_by_rounding(self, noise):
        rng = np.random.default_rng(5)
        wide, target = rng.normal(size=(150, 60)), rng.normal(size=(150, 4))
        target += 0.5 * wide[:, :4]
        once = TeacherReadout().fit(wide, target)
        copies = wide + noise * rng.normal(size=wide.shape)
        rows = np.r_[wide, copies], np.r_[target, target]
        twice = TeacherReadout().fit(*rows)
        assert twice.r2_ == pytest.approx(once.r2_, abs=0.02)
        assert twice.ridge_ == pytest.approx(once.ridge_, rel=0.5)
        assert TeacherReadout().fit(*rows, groups=np.arange(300)).r2_ > once.r2_ + 0.1

    def test_weights_are_frequencies_and_the_order_of_rows_has_no_effect(self):
        rng = np.random.default_rng(2)
        counts = rng.integers(0, 4, 300)
        rows = rng.permutation(np.repeat(np.arange(300), counts))
        groups = np.arange(300) % 4
        weighted = TeacherReadout(HEAD, space="head").fit(X, TEACHER, counts, groups)
        repeated = clone(weighted).fit(X[rows], TEACHER[rows], groups=groups[rows])
        assert_same_fit(weighted, repeated)
        score = repeated.score(X[rows], TEACHER[rows])
        assert weighted.score(X, TEACHER, counts) == pytest.approx(score)


class TestStreams:
    @settings(max_examples=8)
    @given(st.lists(st.integers(1, 299), max_size=4), st.booleans(), st.booleans())
    def test_partial_fit_in_any_chunks_equals_fit(self, cuts, by_groups, into_head):
        groups = np.arange(300) // 25  # more groups than folds
        chunks = np.split(np.arange(300), sorted(set(cuts)))
        adapter = TeacherReadout(HEAD, space="head" if into_head else "teacher")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of chunks of a few rows
            for rows in chunks:
                own = {"groups": groups[rows]} if by_groups else {}
                adapter.partial_fit(X[rows], TEACHER[rows], **own)
        own = {"groups": groups} if by_groups else {}
        assert_same_fit(adapter, clone(adapter).fit(X, TEACHER, **own))

    def test_one_row_is_a_chunk(self):
        with pytest.warns(UserWarning, match="is nan in held-out rows. Below 0.35, compare with L"):
            readout = TeacherReadout(HEAD, space="head").partial_fit(X[:1], TEACHER[:1])
        with pytest.warns(UserWarning, match="Below 0.35, fit to more texts"):  # without a head
            TeacherReadout().partial_fit(X[:1], TEACHER[:1])
        vector = TEACHER[:1] / np.linalg.norm(TEACHER[0])
        np.testing.assert_allclose(readout.readout_(X[:3]), vector.repeat(3, axis=0))
        with pytest.raises(ValueError, match="X is constant"):
            readout.partial_fit(X[:1], TEACHER[:1])
        readout.partial_fit(X[1:], TEACHER[1:])
        assert_same_fit(readout, TeacherReadout(HEAD, space="head").fit(X, TEACHER))

    @small_blocks(readout=70 * X.shape[1], ridge=50)
    def test_memory_maps_and_dask_arrays_are_read_in_parts(self, tmp_path):
        array = pytest.importorskip("dask.array")
        weights, groups = np.arange(300) % 3, np.arange(300) // 40
        whole = TeacherReadout().fit(X, TEACHER, weights, groups)
        maps = as_memmap(X, tmp_path), as_memmap(TEACHER, tmp_path, "y")
        lazy = array.from_array(X, (90, 7)), array.from_array(TEACHER, ((0, 120, 180), 4))
        for pair in (maps, lazy, (X, lazy[1]), (lazy[0], maps[1])):
            assert_same_fit(TeacherReadout().fit(*pair, weights, groups), whole)
        np.testing.assert_allclose(whole.transform(lazy[0]).compute(), whole.transform(X))


class TestHeadSpace:
    @pytest.mark.parametrize(("width", "rank"), [(2, 3), (9, 1), (40, D - 1)])
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

    @pytest.mark.parametrize(("share", "width"), [(0.03, 9), (0.5, 3)])
    def test_logits_have_their_share_of_the_norm_and_products_are_as_predicted(self, share, width):
        adapter = TeacherReadout(HEAD, space="head", head_share=share).fit(X, TEACHER[:, :width])
        logits, Z = np.split(adapter.transform(X) @ np.linalg.svd(HEAD.coef_)[2].T, [2], axis=1)
        norms = [(part**2).sum() for part in (logits, Z)]
        assert norms[0] / sum(norms) == pytest.approx(share)
        if width == 3:  # no more columns than free directions
            predicted = adapter.readout_(X)
            products = predicted @ predicted.T * norms[1] / (predicted**2).sum()
            np.testing.assert_allclose(Z @ Z.T, products, atol=1e-9 * norms[1])


@pytest.mark.parametrize("space", ["teacher", "head"])
def test_predictions_are_those_of_the_head_on_its_own_input(space):
    adapter = TeacherReadout(HEAD, space=space).fit(X, TEACHER)
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        expected = getattr(HEAD, method)(FAR[:, :D])
        np.testing.assert_array_equal(getattr(adapter, method)(FAR), expected)


WITH_NAN, NARROW = np.where(TEACHER > 0.9, np.nan, TEACHER), X[:, :4]
FULL_RANK = make_head(D)
test_wrong_input_is_refused = refusals(
    (lambda: TeacherReadout(HEAD).fit(X, None), "requires y to be passed"),
    (lambda: TeacherReadout(HEAD).fit(X, WITH_NAN), "Input y contains NaN"),
    (lambda: TeacherReadout(HEAD).fit(NARROW, TEACHER), "X has 4 features, but the head expects 6"),
    (lambda: TeacherReadout(HEAD).fit(iter([X]), TEACHER), "takes a matrix"),
    (lambda: TeacherReadout(FULL_RANK, space="head").fit(X, TEACHER), "space='head', .*full rank"),
    (lambda: TeacherReadout(None, space="head").fit(X, TEACHER), "space='head', but head=None"),
    errors=(ValueError, TypeError),
)

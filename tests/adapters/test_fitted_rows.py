"""Adapters recognise the rows that their map was fitted to."""

import io

import joblib
import numpy as np
import pytest
from sklearn.base import clone

from isoadapt import (
    ClusterIsotropy,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LogitPreservingWhitening,
    Whitening,
)
from isoadapt.adapters._training._fit import prepare_problem
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowSketch
from isoadapt.interop import load_adapter, save_adapter
from isoadapt.model_selection import AdapterSearchCV
from tests.adapters.examples import cone_with_head

X, Y, HEAD = cone_with_head(n=120)
FRESH = cone_with_head(n=900)[0][-60:]
KEPT = 1024


def share(adapter, rows):
    return np.nanmean(adapter._recognise(rows))


def normal(n, d=8, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


class TestSketch:
    @pytest.mark.parametrize("n", [50, 5000])
    def test_parts_in_any_order_make_the_whole(self, n):
        rows = normal(n)
        whole = RowSketch().update(rows).hashes
        first, second = RowSketch().update(rows[n // 3 :]), RowSketch().update(rows[: n // 2])
        np.testing.assert_array_equal(first.merge(second).hashes, whole)
        chunks = RowSketch()
        for chunk in np.array_split(np.random.default_rng(1).permutation(rows), 7):
            chunks.update(chunk)
        np.testing.assert_array_equal(chunks.hashes, whole)
        assert len(whole) == min(n, KEPT)

    @pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float64, np.float32)])
    def test_copies_are_recognised_in_the_other_precision(self, dtypes):
        rows = normal(300)
        rows[0, 0] = 0.0
        sketch = RowSketch().update(rows.astype(dtypes[0]))
        copies = rows.astype(dtypes[1])
        copies[0, 0] = -0.0
        assert (sketch.recognise(copies) == 1).all()

    def test_rows_that_differ_in_one_column_are_different(self):
        rows = np.zeros((200, 40))
        rows[:, 1] = np.arange(200)  # most columns tell nothing
        sketch = RowSketch().update(rows[:120])
        np.testing.assert_array_equal(sketch.recognise(rows), np.arange(200) < 120)

    @pytest.mark.parametrize("n", [700, 30_000])
    @pytest.mark.parametrize("true", [0.0, 0.3, 1.0])
    def test_the_share_is_exact_for_few_rows_and_estimated_for_many(self, n, true):
        rows, others = normal(n), normal(n, seed=1)
        mixed = np.concatenate([rows[: int(true * n)], others[int(true * n) :]])
        found = RowSketch().update(rows).recognise(mixed)
        assert np.isnan(found).any() == (n > KEPT)
        exact = true in (0, 1) or n <= KEPT  # what is known of a row is never wrong
        assert np.nanmean(found) == pytest.approx(true, abs=1e-12 if exact else 0.06)


class TestClosedForms:
    @pytest.mark.parametrize("adapter", [Whitening(), IsoBN(), LogitPreservingWhitening(HEAD)])
    def test_however_the_rows_arrive(self, adapter):
        whole = clone(adapter).fit(X)
        assert share(whole, X) == 1
        assert share(whole, FRESH) == 0
        assert share(whole, np.concatenate([X[:30], FRESH[:10]])) == 0.75
        streamed = clone(adapter).fit(iter(np.array_split(X, 3)))
        partial = clone(adapter).partial_fit(X[:50]).partial_fit(X[50:])
        weighted = clone(adapter).fit(X, sample_weight=np.ones(len(X)))
        for other in (streamed, partial, weighted):
            np.testing.assert_array_equal(other._fitted_rows.hashes, whole._fitted_rows.hashes)

    def test_blocks_of_dask(self):
        array = pytest.importorskip("dask.array")
        adapter = Whitening().fit(array.from_array(X, chunks=(17, 8)))
        np.testing.assert_array_equal(
            adapter._fitted_rows.hashes, Whitening().fit(X)._fitted_rows.hashes
        )

    def test_rows_of_weight_zero_are_fresh(self):
        weights = np.arange(len(X)) % 3
        for adapter in (Whitening(), ClusterIsotropy(random_state=0)):
            adapter.fit(X, sample_weight=weights)
            np.testing.assert_array_equal(adapter._recognise(X), weights > 0)

    def test_moments_do_not_tell_their_rows(self):
        adapter = Whitening().fit(Moments().update(X))
        assert np.isnan(adapter._recognise(X)).all()
        assert np.isnan(adapter.partial_fit(FRESH)._recognise(FRESH)).all()

    def test_a_new_fit_forgets_the_old_rows(self):
        adapter = Whitening().fit(X)
        assert share(adapter.fit(FRESH), X) == 0
        assert clone(adapter)._fitted_rows is None

    def test_a_failed_update_changes_nothing(self):
        adapter = Whitening().partial_fit(X)
        with pytest.raises(ValueError, match="NaN"):
            adapter.partial_fit(np.full((5, X.shape[1]), np.nan))
        adapter.partial_fit(FRESH)
        assert share(adapter, np.concatenate([X, FRESH])) == 1


class TestTrained:
    """The map of the saved epoch is fitted to the training rows, or to all of them."""

    @pytest.mark.parametrize("head", ["frozen", "fitted"])
    def test_validation_rows_are_fresh_unless_there_is_a_second_fit(self, head):
        adapter = IStarAdapter(HEAD if head == "frozen" else "logistic", random_state=0)
        adapter.set_params(max_epochs=2).fit(X, Y)
        validating = prepare_problem(clone(adapter), X, Y).validating
        assert len(validating) == 36
        fresh = validating if head == "frozen" else []
        np.testing.assert_array_equal(np.flatnonzero(adapter._recognise(X) == 0), fresh)

    def test_without_validation_rows_and_exactly(self):
        for options in ({"validation_fraction": None, "max_epochs": 1}, {"solver": "exact"}):
            assert share(IsotropyLayer(HEAD, **options, random_state=0).fit(X, Y), X) == 1

    def test_a_search_knows_what_a_fit_alone_knows(self):
        adapter = IStarAdapter(HEAD, max_epochs=2, random_state=0)
        search = AdapterSearchCV(adapter, {"lam": [0.5, 1.0]}, cv=2).fit(X, Y)
        found = search.best_estimator_
        np.testing.assert_array_equal(found._recognise(X), clone(found).fit(X, Y)._recognise(X))

    @pytest.mark.parametrize("alpha", [None, 0.5])
    def test_a_flow_without_a_task_is_calibrated_on_all_rows(self, alpha):
        pytest.importorskip("zuko")
        flow = FlowAdapter(HEAD, alpha=alpha, n_blocks=1, hidden=4, max_epochs=1, random_state=0)
        found = flow.fit(X, Y)._recognise(X)
        assert (found == 0).sum() == (0 if alpha is None else 36)
        assert (found == 1).sum() == len(X) - (found == 0).sum()


def test_saved_and_loaded(tmp_path):
    many = normal(2000)
    for adapter, rows in ((Whitening().fit(many), many), (ClusterIsotropy().fit(X), X)):
        file = io.BytesIO()
        joblib.dump(adapter, file)
        file.seek(0)
        folder = save_adapter(adapter, tmp_path / type(adapter).__name__)
        for loaded in (joblib.load(file), load_adapter(folder)):
            np.testing.assert_array_equal(loaded._recognise(rows), adapter._recognise(rows))
    loaded = load_adapter(tmp_path / "Whitening").partial_fit(X[:, :8])
    assert share(loaded, X[:, :8]) == share(loaded, many) == 1

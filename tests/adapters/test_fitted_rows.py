"""Adapters recognise the rows that their map was fitted to."""

import pickle

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
from isoadapt.interop import load_adapter, save_adapter
from tests.adapters.examples import cone_with_head

X, Y, HEAD = cone_with_head(n=120)
FRESH = cone_with_head(n=900)[0][-60:]


def share(adapter, rows):
    return np.nanmean(adapter._recognise(rows))


class TestClosedForms:
    @pytest.mark.parametrize("adapter", [Whitening(), IsoBN(), LogitPreservingWhitening(HEAD)])
    def test_however_the_rows_arrive(self, adapter):
        whole = clone(adapter).fit(X)
        assert share(whole, X) == 1
        assert share(whole, np.concatenate([X[:30], FRESH[:10]])) == 0.75
        streamed = clone(adapter).fit(iter(np.array_split(X, 3)))
        partial = clone(adapter).partial_fit(X[:50]).partial_fit(X[50:])
        weighted = clone(adapter).fit(X, sample_weight=np.ones(len(X)))
        for other in (streamed, partial, weighted):
            np.testing.assert_array_equal(other._fitted_rows.hashes, whole._fitted_rows.hashes)

    def test_rows_of_weight_zero_are_fresh(self):
        weights = np.arange(len(X)) % 3
        for adapter in (Whitening(), ClusterIsotropy(random_state=0)):
            adapter.fit(X, sample_weight=weights)
            np.testing.assert_array_equal(adapter._recognise(X), weights > 0)


class TestTrained:
    """The map of the saved epoch is fitted to the training rows, or to all of them."""

    @pytest.mark.parametrize("head", [HEAD, "logistic"])
    def test_validation_rows_are_fresh_unless_there_is_a_second_fit(self, head):
        adapter = IStarAdapter(head, max_epochs=1, random_state=0).fit(X, Y)
        validating = prepare_problem(clone(adapter), X, Y).validating
        assert len(validating) == 36
        fresh = validating if head is HEAD else []
        np.testing.assert_array_equal(np.flatnonzero(adapter._recognise(X) == 0), fresh)

    def test_without_validation_rows_all_are_fitted(self):
        assert share(IsotropyLayer(HEAD, solver="exact").fit(X, Y), X) == 1

    @pytest.mark.parametrize("alpha", [None, 0.5])
    def test_a_flow_without_a_task_is_calibrated_on_all_rows(self, alpha):
        flow = FlowAdapter(HEAD, alpha=alpha, n_blocks=1, hidden=4, max_epochs=1, random_state=0)
        found = flow.fit(X, Y)._recognise(X)
        assert (found == 0).sum() == (0 if alpha is None else 36)
        assert (found == 1).sum() == len(X) - (found == 0).sum()


def test_saved_and_loaded(tmp_path):
    many = np.random.default_rng(0).normal(size=(2000, 8))
    for adapter, rows in ((Whitening().fit(many), many), (ClusterIsotropy().fit(X), X)):
        folder = save_adapter(adapter, tmp_path / type(adapter).__name__)
        for loaded in (pickle.loads(pickle.dumps(adapter)), load_adapter(folder)):
            np.testing.assert_array_equal(loaded._recognise(rows), adapter._recognise(rows))
    loaded = load_adapter(tmp_path / "Whitening").partial_fit(X[:, :8])
    assert share(loaded, X[:, :8]) == share(loaded, many) == 1

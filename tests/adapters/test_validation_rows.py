"""What the chosen epoch is judged by has no part in training."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV

from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.model_selection import AdapterSearchCV

ONE_EPOCH = {"max_epochs": 1, "random_state": 0}
TRAINED = [
    IsotropyLayer(**ONE_EPOCH),
    IsotropyLayer("ridge", **ONE_EPOCH),
    IsotropyLayer(None, network="mlp", **ONE_EPOCH),
    IStarAdapter(**ONE_EPOCH),
    IStarAdapter(network="mlp", shrinkage="detached", **ONE_EPOCH),
    CosRegAdapter(coordinates="raw", **ONE_EPOCH),
    SpectrumControlAdapter("ridge", **ONE_EPOCH),
    TopologicalEntropyAdapter(head_training="joint", **ONE_EPOCH),
    FlowAdapter("logistic", alpha=0.5, n_blocks=1, hidden=4, **ONE_EPOCH),
    FlowAdapter("ridge", alpha=0.5, n_blocks=1, hidden=4, **ONE_EPOCH),
]


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(20, 4, n_informative=3, n_redundant=0, random_state=0)
    return X, y


@pytest.mark.parametrize("adapter", TRAINED, ids=repr)
def test_the_rows_that_choose_the_epoch_have_no_part_in_training(adapter, data):
    """With one epoch nothing is chosen: a row that is changed matters if it is trained on."""
    X, y = data
    before = clone(adapter).fit(X, y).transform(X)
    unseen = []
    for row in range(len(X)):
        changed = X.copy()
        changed[row] = 3 - 2 * changed[row]
        if np.array_equal(clone(adapter).fit(changed, y).transform(X), before):
            unseen.append(row)
    assert len(unseen) == 6  # 0.3 of 20


def test_members_of_a_search_split_their_rows_as_single_fits_do():
    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, random_state=0)
    layer, grid = IsotropyLayer(max_epochs=2), {"random_state": [0, 1, 2]}
    together = AdapterSearchCV(layer, grid, cv=3).fit(X, y).cv_results_["mean_test_score"]
    alone = GridSearchCV(layer, grid, cv=3).fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_array_equal(together, alone)
    assert len(set(together)) > 1


def test_a_class_of_one_row_is_trained_on(data):
    X, y = data
    y = np.where(np.arange(20) == 7, 2, y)
    for seed in range(8):
        layer = IsotropyLayer(max_epochs=1, random_state=seed).fit(X, y)
        np.testing.assert_array_equal(layer.classes_, [0, 1, 2])


def test_few_rows_are_all_trained_on(data):
    X, y = data
    layer = IsotropyLayer(max_epochs=2, random_state=0).fit(X[:11], y[:11])
    assert layer.best_epoch_ == layer.n_iter_ == 2
    assert "valid_score" not in layer.history_[0]


@pytest.mark.parametrize("adapter", [IsotropyLayer(), FlowAdapter("logistic", alpha=0.5)])
def test_without_patience_training_never_stops_early(adapter, data):
    X, y = data
    head = LinearHead(np.zeros((2, 4)), [0.0, 1.0], [0, 1])  # no epoch can be better than another
    options = {"head": head, "max_epochs": 8, "lr": 1e-9, "random_state": 0}
    for patience, expected in ((2, 3), (None, 8)):
        adapter = clone(adapter).set_params(**options, patience=patience).fit(X, y)
        assert adapter.n_iter_ >= expected
    assert adapter.n_iter_ == 8

"""The validation rows choose the epoch and are not used in training."""

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
from isoadapt.adapters._heads import fit_head
from isoadapt.model_selection import AdapterSearchCV

pytestmark = pytest.mark.usefixtures("fixed_penalty")
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


def losses_and_map(adapter, X, y):
    """Losses of the first training, and outputs unless a second fit uses all rows."""
    fitted = clone(adapter).fit(X, y)
    losses = [entry["train_loss"] for entry in fitted.history_ if entry["epoch"]]
    again = isinstance(adapter.head, str) and not isinstance(adapter, FlowAdapter)
    return losses, None if again else fitted.transform(X).tolist()


@pytest.mark.parametrize("adapter", TRAINED, ids=repr)
def test_validation_rows_are_not_used_in_training(adapter):
    """With one epoch there is no choice, so a change of a validation row has no effect."""
    X, y = make_classification(14, 4, n_informative=3, n_redundant=0, random_state=0)
    before = losses_and_map(adapter, X, y)
    without_effect = []
    for row in range(len(X)):
        changed = X.copy()
        changed[row] = 3 - 2 * changed[row]
        losses, outputs = losses_and_map(adapter, changed, y)
        if outputs is not None:
            outputs[row] = before[1][row]
        if (losses, outputs) == before:
            without_effect.append(row)
    assert len(without_effect) == 4  # 0.3 of 14 rows


@pytest.mark.parametrize("n", [39, 40])
def test_head_on_few_rows_is_finally_fitted_to_all_rows(n):
    """Fewer than ten rows for each of the four dimensions count as few."""
    X, y = make_classification(n, 4, n_informative=3, n_redundant=0, random_state=0)
    layer = IsotropyLayer(**ONE_EPOCH).fit(X, y)
    expected = fit_head("logistic", X, y)
    assert np.array_equal(layer.head_.coef_, expected.coef_) == (n < 40)
    given = IsotropyLayer(expected, **ONE_EPOCH).fit(X, y)
    alone = clone(given).set_params(validation_fraction=None).fit(X, y)
    assert np.allclose(layer.transform(X), alone.transform(X), atol=1e-5) == (n < 40)
    assert not np.allclose(given.transform(X), alone.transform(X), atol=1e-5)
    assert layer.best_epoch_ == layer.n_iter_ == 1


def test_second_fit_runs_the_chosen_number_of_epochs():
    X, y = make_classification(30, 4, n_informative=3, n_redundant=0, random_state=0)
    starts = []

    def distance(reader, outputs, y):
        starts.append(outputs.copy())  # the first ones are of the start, on all validation rows
        return -float(np.abs(outputs[:, None] - starts[0][None]).sum(2).min(1).mean())

    layer = IsotropyLayer(max_epochs=6, scoring=distance, random_state=0)
    with pytest.warns(UserWarning, match="harms the task"):
        layer.fit(X, y)
    assert (layer.best_epoch_, layer.n_iter_) == (1, 6)
    alone = IsotropyLayer(max_epochs=1, validation_fraction=None, random_state=0).fit(X, y)
    np.testing.assert_allclose(layer.transform(X), alone.transform(X), atol=1e-5)


def test_members_of_a_search_have_the_same_splits_as_single_fits():
    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, random_state=0)
    layer, grid = IsotropyLayer(max_epochs=2), {"random_state": [0, 1, 2]}
    together = AdapterSearchCV(layer, grid, cv=3).fit(X, y).cv_results_["mean_test_score"]
    alone = GridSearchCV(layer, grid, cv=3).fit(X, y).cv_results_["mean_test_score"]
    np.testing.assert_array_equal(together, alone)
    assert len(set(together)) > 1


def test_single_row_of_a_class_is_a_training_row(data):
    X, y = data
    y = np.where(np.arange(20) == 7, 2, y)
    for seed in range(8):
        layer = IsotropyLayer(max_epochs=1, random_state=seed).fit(X, y)
        np.testing.assert_array_equal(layer.classes_, [0, 1, 2])


def test_very_few_rows_are_not_split(data):
    X, y = data
    layer = IsotropyLayer(max_epochs=2, random_state=0).fit(X[:11], y[:11])
    assert layer.best_epoch_ == layer.n_iter_ == 2
    assert "valid_score" not in layer.history_[0]


@pytest.mark.parametrize("adapter", [IsotropyLayer(), FlowAdapter("logistic", alpha=0.5)])
def test_without_patience_training_never_stops_early(adapter, data):
    X, y = data
    head = LinearHead(np.zeros((2, 4)), [0.0, 1.0], [0, 1])  # all epochs score equally
    options = {"head": head, "max_epochs": 8, "lr": 1e-9, "random_state": 0}
    for patience, expected in ((2, 3), (None, 8)):
        adapter = clone(adapter).set_params(**options, patience=patience).fit(X, y)
        assert adapter.n_iter_ >= expected
    assert adapter.n_iter_ == 8

"""The validation rows choose the epoch and are not used in training."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification

from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import split_rows
from tests.adapters.examples import distance_from

pytestmark = pytest.mark.usefixtures("fixed_penalty")
ONE_EPOCH = {"max_epochs": 1, "random_state": 0}
TRAINED = [
    IsotropyLayer(**ONE_EPOCH),
    IsotropyLayer(None, network="mlp", **ONE_EPOCH),
    IStarAdapter("ridge", **ONE_EPOCH),
    IStarAdapter(network="mlp", shrinkage="detached", **ONE_EPOCH),
    CosRegAdapter(coordinates="raw", **ONE_EPOCH),
    SpectrumControlAdapter("ridge", **ONE_EPOCH),
    TopologicalEntropyAdapter(head_training="joint", **ONE_EPOCH),
    FlowAdapter("logistic", alpha=0.5, n_blocks=1, hidden=4, **ONE_EPOCH),
]


def data(n=20, d=4):
    return make_classification(n, d, n_informative=3, n_redundant=0, random_state=0)


def losses_and_map(adapter, X, y):
    """Losses of the first training, and outputs unless a second fit uses all rows."""
    fitted = clone(adapter).fit(X, y)
    losses = [entry["train_loss"] for entry in fitted.history_ if entry["epoch"]]
    again = isinstance(adapter.head, str) and not isinstance(adapter, FlowAdapter)
    return losses, None if again else fitted.transform(X).tolist()


@pytest.mark.parametrize("adapter", TRAINED, ids=repr)
def test_validation_rows_are_not_used_in_training(adapter):
    """With one epoch there is no choice, so a change of a validation row has no effect."""
    X, y = data(14)
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
    X, y = data(n)
    layer = IsotropyLayer(**ONE_EPOCH).fit(X, y)
    expected = fit_head("logistic", X, y)
    assert np.array_equal(layer.head_.coef_, expected.coef_) == (n < 40)
    given = IsotropyLayer(expected, **ONE_EPOCH).fit(X, y)
    alone = clone(given).set_params(validation_fraction=None).fit(X, y)
    assert np.allclose(layer.transform(X), alone.transform(X), atol=1e-5) == (n < 40)
    assert not np.allclose(given.transform(X), alone.transform(X), atol=1e-5)


def test_second_fit_runs_the_chosen_number_of_epochs():
    X, y = data(30)
    layer = IsotropyLayer(max_epochs=6, patience=2, random_state=0)
    rng = np.random.RandomState(0)
    rng.randint(2**31)  # draws the seed of the shuffles, as fit does
    fitting, _ = split_rows(30, y, 0.3, rng)
    layer.set_params(scoring=distance_from(fit_head("logistic", X[fitting], y[fitting]), X))
    with pytest.warns(UserWarning, match="harms the task"):
        layer.fit(X, y)
    assert (layer.best_epoch_, layer.n_iter_) == (1, 3)
    alone = IsotropyLayer(max_epochs=1, validation_fraction=None, random_state=0).fit(X, y)
    np.testing.assert_allclose(layer.transform(X), alone.transform(X), atol=1e-5)


def test_single_row_of_a_class_is_a_training_row():
    y = np.where(np.arange(20) == 7, 2, np.arange(20) % 2)
    for seed in range(8):
        fitting, validating = split_rows(20, y, 0.3, np.random.RandomState(seed))
        assert 7 in fitting
        assert validating is not None

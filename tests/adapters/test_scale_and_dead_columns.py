"""Fits are independent of the scale of the data and robust to columns without variance."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler

from isoadapt import LinearHead, LogitPreservingWhitening, Whitening, adapters
from isoadapt.adapters._heads import fit_head

pytestmark = pytest.mark.usefixtures("fixed_penalty")
FEW = {"max_epochs": 2, "batch_size": 64, "random_state": 0}
TRAINED = [
    adapters.IsotropyLayer(coordinates="raw", head_training="joint", **FEW),
    adapters.ExactIsotropyLayer(),
    adapters.IStarAdapter(coordinates="raw", shrinkage="detached", **FEW),
    adapters.CosRegAdapter(balance="ema", **FEW),
    adapters.SpectrumControlAdapter(coordinates="raw", balance="ema", **FEW),
    adapters.TopologicalEntropyAdapter(**FEW),
    adapters.FlowAdapter("logistic", n_blocks=1, hidden=8, alpha=0.5, **FEW),
]
CLOSED = [Whitening(shrinkage="oas", strength=0.5), LogitPreservingWhitening()]
CLOSED += [Whitening("pca", n_components=4, shrinkage="ledoit-wolf")]
CLOSED += [adapters.ClusterIsotropy(2, random_state=0)]


# Embeddings with one dominant direction, their classes and values.
X, Y = make_classification(100, 8, n_informative=5, random_state=0)
X = X * np.geomspace(1, 0.1, 8) + 3 * Y[:, None] * np.eye(8)[0] + 0.5
VALUES = X @ np.linspace(1, -1, 8) + np.random.default_rng(0).normal(size=100)


def standardised(model, y):
    """The head that a model fitted to standardised embeddings is on the embeddings."""
    scaler = StandardScaler().fit(X)
    head = LinearHead.from_estimator(model.fit(scaler.transform(X), y))
    coef = head.coef_ / scaler.scale_
    return LinearHead(coef, head.intercept_ - coef @ scaler.mean_, head.classes_)


CLASSIFIER, READER = standardised(LogisticRegression(), Y), standardised(Ridge(), VALUES)


def with_scaled_head(adapter, head, scale, value_scale=1.0):
    """Return the adapter with the head converted to embeddings multiplied by `scale`."""
    if adapter.head is None:
        return clone(adapter)
    coef, intercept = head.coef_ * (value_scale / scale), head.intercept_ * value_scale
    return clone(adapter).set_params(head=LinearHead(coef, intercept, head.classes_))


def outputs_in_units(adapter, scale):
    """Outputs of a fit to scaled embeddings, divided by the scale that they should have."""
    fitted = with_scaled_head(adapter, CLASSIFIER, scale).fit(scale * X, Y)
    power = 0.0 if isinstance(adapter, adapters.FlowAdapter) else 1.0
    if isinstance(adapter, Whitening):
        power -= adapter.strength
    return fitted.transform(scale * X) / scale**power


@pytest.mark.parametrize("adapter", [*TRAINED, *CLOSED], ids=repr)
def test_scaling_the_embeddings_only_scales_the_outputs(adapter):
    expected = outputs_in_units(adapter, 1.0)
    unit = np.abs(expected).max()
    # Powers of two are exact, and rounding errors of other scales are amplified in training.
    scales = [(2.0**-20, 1e-9), (3e5, 1e-6)]
    scales += [(1e-100, 1e-6), (1e100, 1e-6)] if adapter in CLOSED[:3] else []
    for scale, tolerance in scales:
        Z = outputs_in_units(adapter, scale)
        np.testing.assert_allclose(Z / unit, expected / unit, rtol=0, atol=tolerance)


@pytest.mark.parametrize("adapter", TRAINED, ids=repr)
def test_scale_of_the_values_of_a_regression(adapter):
    expected = with_scaled_head(adapter, READER, 1).fit(X, VALUES)
    unit = np.abs(expected.transform(X)).max()
    for scale in (1e-6, 3e5):
        fitted = with_scaled_head(adapter, READER, 1, scale).fit(X, scale * VALUES)
        np.testing.assert_allclose(
            fitted.transform(X) / unit, expected.transform(X) / unit, atol=1e-6
        )
        values = fitted.predict(X) / scale / np.std(VALUES)
        np.testing.assert_allclose(values, expected.predict(X) / np.std(VALUES), atol=1e-6)


FULL = {"max_epochs": 30, "patience": None, "validation_fraction": None, "random_state": 0}


@pytest.mark.parametrize(
    "adapter",
    [
        adapters.IsotropyLayer(**FULL),
        adapters.ExactIsotropyLayer(alpha=1.0),
        adapters.FlowAdapter(n_blocks=2, hidden=8, **FULL),
        Whitening(shrinkage=0.1),
        LogitPreservingWhitening(),
    ],
    ids=repr,
)
def test_new_values_of_columns_without_variance_pass_unchanged_or_are_removed(adapter):
    noise = np.random.default_rng(1).normal(size=(3, 100))
    dead = noise.T * [0, 3e-9, 1e-33] + [0.7, 0, 0]
    rows = np.column_stack([X[:, :3], dead, X[:, 3:]])
    own, changed = clone(adapter).fit(rows, Y), rows.copy()
    changed[:, [3, 5]] += noise[:2].T
    expected = changed - rows
    if isinstance(adapter, adapters.FlowAdapter):
        expected = expected / np.sqrt(rows.var(axis=0, ddof=1).mean())
    elif isinstance(adapter, Whitening | LogitPreservingWhitening):
        expected = np.zeros_like(rows)
    found = own.transform(changed) - own.transform(rows)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_columns_that_count_as_constant_beside_others_are_named():
    rows, constant = X * np.where(np.arange(8) == 6, 1e9, 1), np.full((100, 1), 0.1)
    message = r"beside column 6, .*\(0, 1, 2, 3, 4, 5, 7\): standardise X"
    for adapter in (Whitening(shrinkage=0.0), LogitPreservingWhitening(), TRAINED[0], TRAINED[-1]):
        with pytest.warns(UserWarning, match=message):
            clone(adapter).fit(rows, Y)
    with warnings.catch_warnings(action="error"):
        Whitening(shrinkage=0.0).fit(np.hstack([X, constant, X[:, :1] * 1e-5]))


def test_outputs_in_different_units_and_a_constant_one():
    targets = np.column_stack([X[:, 1] - X[:, 2], 1e6 * X[:, 2], np.full(100, 7.0)])
    head = fit_head("ridge", X, targets)
    layer = adapters.IsotropyLayer(head, head_training="joint", max_epochs=10, random_state=0)
    layer.fit(X, targets)
    assert r2_score(targets, layer.predict(X), multioutput="raw_values").min() > 0.95
    assert all(0.5 < epoch["valid_score"] <= 1 for epoch in layer.history_)

"""Fits are independent of the scale of the data and robust to columns without variance."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isoadapt import (
    AllButTheTop,
    ClusterIsotropy,
    CosRegAdapter,
    FlowAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
    Whitening,
    load_checkpoint,
)
from isoadapt.adapters._heads import fit_head
from isoadapt.interop import merge_into_checkpoint
from isoadapt.metrics import isoscore, isotropy_report
from isoadapt.model_selection import AdapterSearchCV
from tests.tiny_models import WORDS, make_model, make_tokenizer, save_pair

FEW = {"max_epochs": 2, "batch_size": 64, "random_state": 0}
TRAINED = [
    IsotropyLayer(**FEW),
    IsotropyLayer(coordinates="raw", **FEW),
    IsotropyLayer(head_training="joint", **FEW),
    IsotropyLayer(network="mlp", **FEW),
    IsotropyLayer(solver="exact"),
    IStarAdapter(**FEW),
    IStarAdapter(coordinates="raw", shrinkage="detached", **FEW),
    CosRegAdapter(balance="ema", **FEW),
    SpectrumControlAdapter(**FEW),
    SpectrumControlAdapter(coordinates="raw", network="mlp", balance="ema", **FEW),
    TopologicalEntropyAdapter(**FEW),
]
FLOWS = [FlowAdapter(n_blocks=1, **FEW), FlowAdapter("logistic", n_blocks=1, alpha=0.5, **FEW)]
CLOSED = [
    Whitening(head="logistic"),
    Whitening(shrinkage="oas", strength=0.5),
    Whitening("pca", n_components=4, shrinkage="ledoit-wolf"),
    LogitPreservingWhitening(),
    AllButTheTop(2, head="logistic"),
    ClusterIsotropy(2, random_state=0),
]
NARROW = st.floats(-6, 6).map(lambda exponent: 10.0**exponent)


@pytest.fixture(scope="module")
def cone():
    """Embeddings with one dominant direction, their classes and values."""
    X, y = make_classification(100, 8, n_informative=5, random_state=0)
    X = X * np.geomspace(1, 0.1, 8) + 3 * y[:, None] * np.eye(8)[0] + 0.5
    values = X @ np.linspace(1, -1, 8) + np.random.default_rng(0).normal(size=100)
    return X, y, values


def standardised(model, X, y):
    """The head that a model fitted to standardised embeddings is on the embeddings."""
    scaler = StandardScaler().fit(X)
    model.fit(scaler.transform(X), y)
    head = LinearHead.from_estimator(model)
    coef = head.coef_ / scaler.scale_
    return LinearHead(coef, head.intercept_ - coef @ scaler.mean_, head.classes_)


def with_scaled_head(adapter, head, scale, value_scale=1.0):
    """Return the adapter with the head converted to embeddings multiplied by `scale`."""
    if adapter.head is None:
        return clone(adapter)
    coef, intercept = head.coef_ * (value_scale / scale), head.intercept_ * value_scale
    return clone(adapter).set_params(head=LinearHead(coef, intercept, head.classes_))


def exponent(adapter):
    """Exponent p such that scaling the embeddings by s scales the outputs by s**p."""
    if isinstance(adapter, FlowAdapter):
        return 0.0
    return 1 - adapter.strength if isinstance(adapter, Whitening) else 1.0


def outputs_in_units(adapter, cone, scale):
    """Outputs of a fit to scaled embeddings, divided by the scale that they should have."""
    X, y, _ = cone
    head = standardised(LogisticRegression(), X, y)
    Z = with_scaled_head(adapter, head, scale).fit(scale * X, y).transform(scale * X)
    return Z / scale ** exponent(adapter)


@pytest.mark.parametrize("adapter", [*TRAINED, *FLOWS, *CLOSED], ids=repr)
@pytest.mark.usefixtures("fixed_penalty")
def test_scaling_the_embeddings_only_scales_the_outputs(adapter, cone):
    expected = outputs_in_units(adapter, cone, 1.0)
    unit = np.abs(expected).max()
    # Powers of two are exact, and rounding errors of other scales are amplified in training.
    scales = [(2.0**-20, 1e-9), (2.0**20, 1e-9), (7e-6, 1e-6), (3e5, 1e-6)]
    scales += [(1e-100, 1e-6), (1e100, 1e-6)] if adapter in CLOSED[1:4] else []
    for scale, tolerance in scales:
        Z = outputs_in_units(adapter, cone, scale)
        np.testing.assert_allclose(Z / unit, expected / unit, rtol=0, atol=tolerance)


@pytest.mark.parametrize("adapter", [*TRAINED, FLOWS[1]], ids=repr)
@settings(max_examples=2, deadline=None)
@given(scale=NARROW)
def test_scale_of_the_values_of_a_regression(adapter, cone, scale):
    X, _, values = cone
    head = standardised(Ridge(), X, values)
    expected = with_scaled_head(adapter, head, 1).fit(X, values)
    fitted = with_scaled_head(adapter, head, 1, scale).fit(X, scale * values)
    unit = np.abs(expected.transform(X)).max()
    np.testing.assert_allclose(fitted.transform(X) / unit, expected.transform(X) / unit, atol=1e-6)
    np.testing.assert_allclose(
        fitted.predict(X) / scale / np.std(values), expected.predict(X) / np.std(values), atol=1e-6
    )


@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e6])
def test_named_heads_and_scores_do_not_depend_on_scale(cone, scale):
    X, y, values = cone
    for head, target in (("logistic", y), ("ridge", values), ("ridge", 1e-3 * values)):
        layer = IsotropyLayer(head, **FEW)
        expected = clone(layer).fit(X, target)
        fitted = clone(layer).fit(scale * X, target)
        assert fitted.score(scale * X, target) == pytest.approx(expected.score(X, target), abs=0.01)
        score = isoscore(fitted.transform(scale * X))
        assert score == pytest.approx(isoscore(expected.transform(X)), rel=0.01)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
@pytest.mark.parametrize("adapter", CLOSED, ids=repr)
def test_closed_forms_are_rotation_equivariant(adapter, cone, seed):
    X, y, _ = cone
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(8, 8)))[0]
    head = fit_head("logistic", X, y)
    rotated_head = LinearHead(head.coef_ @ rotation, head.intercept_, head.classes_)
    frozen = {} if adapter.head is None else {"head": head}
    expected = clone(adapter).set_params(**frozen).fit(X, y).transform(X)
    frozen = {} if adapter.head is None else {"head": rotated_head}
    Z = clone(adapter).set_params(**frozen).fit(X @ rotation, y).transform(X @ rotation)
    if getattr(adapter, "method", None) == "pca":
        np.testing.assert_allclose(np.abs(Z), np.abs(expected), atol=1e-6)
    else:
        np.testing.assert_allclose(Z, expected @ rotation, atol=1e-6)


def with_dead_columns(X):
    """Add three columns: a constant one, one of tiny variance, and one of tiny values."""
    rng = np.random.default_rng(1)
    extra = np.column_stack(
        [np.full(len(X), 0.7), 3e-9 * rng.normal(size=len(X)), 1e-33 * rng.normal(size=len(X))]
    )
    return np.column_stack([X[:, :3], extra, X[:, 3:]])


LIVE = [0, 1, 2, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("adapter", [*TRAINED, *FLOWS, *CLOSED, IsoBN(head="logistic")], ids=repr)
@pytest.mark.usefixtures("fixed_penalty")
class TestDeadColumns:
    def test_predictions_stay_good_and_outputs_of_new_rows_bounded(self, adapter, cone):
        X, y, _ = cone
        wide = with_dead_columns(X)
        fitted, plain = clone(adapter).fit(wide, y), clone(adapter).fit(X, y)
        changed = wide.copy()
        changed[:, [3, 4, 5]] += np.random.default_rng(2).normal(size=(len(X), 3))
        largest = np.abs(plain.transform(X)).max()
        for rows in (wide, changed):
            assert np.abs(fitted.transform(rows)).max() < 30 * largest
        if fitted.head_ is not None:
            assert fitted.score(wide, y) >= plain.score(X, y) - 0.05

    def test_cross_validation(self, adapter, cone):
        """One column is constant only in the training rows of one fold."""
        X, y, _ = cone
        wide = with_dead_columns(X)
        wide[:8, 3] += 1
        wide_score, score = (
            cross_val_score(adapter, rows, y, cv=3, error_score="raise").mean()
            for rows in (wide, X)
        )
        assert np.isfinite(wide_score)
        if adapter.head is not None:
            assert wide_score > max(score - 0.05, 0.7)


def test_adapter_search_with_dead_columns(cone):
    X, y, _ = cone
    grid = {"lam": [0.0, 1.0]}
    search = AdapterSearchCV(IStarAdapter(**FEW), grid, cv=5, error_score="raise")
    search.fit(with_dead_columns(X), y)
    assert search.best_score_ > 0.9


def test_fitted_head_puts_no_weight_on_dead_columns(cone):
    X, y, values = cone
    for kind, target in (("logistic", y), ("ridge", values)):
        head = fit_head(kind, with_dead_columns(X), target)
        np.testing.assert_array_equal(np.delete(head.coef_, LIVE, axis=1), 0)
        np.testing.assert_allclose(head.coef_[:, LIVE], fit_head(kind, X, target).coef_, rtol=1e-4)


FULL_TRAINING = {"max_epochs": 30, "patience": None, "validation_fraction": None, "random_state": 0}
DEAD_COLUMN_ADAPTERS = [
    IsotropyLayer(**FULL_TRAINING),
    IsotropyLayer(network="mlp", **FULL_TRAINING),
    IsotropyLayer(solver="exact", alpha=1.0),
    FlowAdapter(n_blocks=2, hidden=8, **FULL_TRAINING),
    Whitening(shrinkage=0.1),
    LogitPreservingWhitening(),
]


@pytest.mark.parametrize("adapter", DEAD_COLUMN_ADAPTERS, ids=repr)
@pytest.mark.usefixtures("fixed_penalty")
def test_values_in_dead_columns_of_new_rows_pass_unchanged_or_are_removed(adapter, cone):
    X, y, _ = cone
    wide = with_dead_columns(X)
    fitted = clone(adapter).fit(wide, y)
    changed = wide.copy()
    changed[:, [3, 5]] += np.random.default_rng(2).normal(size=(len(X), 2))
    change = fitted.transform(changed) - fitted.transform(wide)
    expected = changed - wide
    if isinstance(adapter, FlowAdapter):
        expected = expected / np.sqrt(wide.var(axis=0, ddof=1).mean())
    elif isinstance(adapter, (Whitening, LogitPreservingWhitening)):
        expected = np.zeros_like(wide)
    np.testing.assert_allclose(change, expected, atol=1e-6)


@pytest.mark.parametrize("share", [3e-6, 1e-3])
@pytest.mark.parametrize(
    "adapter",
    [
        IsotropyLayer("ridge", random_state=0),
        IsotropyLayer("ridge", coordinates="raw", network="mlp", random_state=0),
        FlowAdapter("ridge", alpha=0.5, n_blocks=2, random_state=0),
    ],
    ids=repr,
)
def test_columns_of_tiny_variance_do_not_lower_the_score(adapter, share):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8))
    values = X[:, 0] + 0.3 * rng.normal(size=200)
    X[:, 2] *= share
    head = fit_head("ridge", X, values)
    assert clone(adapter).fit(X, values).score(X, values) > head.score(X, values) - 0.03


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8)) * [50, 1, 1, 1, 1, 1, 1, 1] + 3
    return X, X[:, 1:] @ rng.normal(size=7) + 0.1 * rng.normal(size=200)


class TestValues:
    """Regression with large offsets, different units and constant outputs."""

    def test_score_is_independent_of_the_offset(self, regression):
        X, values = regression
        adapter = IsotropyLayer("ridge", max_epochs=5, random_state=0)
        expected = clone(adapter).fit(X, values).score(X, values)
        for offset in (1e4, 1e9):
            moved = values + offset
            assert clone(adapter).fit(X, moved).score(X, moved) == pytest.approx(expected, abs=1e-3)

    @pytest.mark.parametrize("head_training", ["frozen", "joint"])
    def test_outputs_in_different_units(self, head_training, regression):
        X, values = regression
        Y = np.column_stack([values, 1e6 * X[:, 2]])
        layer = IsotropyLayer("ridge", head_training=head_training, random_state=0).fit(X, Y)
        assert r2_score(Y, layer.predict(X), multioutput="raw_values").min() > 0.95

    @pytest.mark.parametrize("constant", [0.0, 0.1, 7.0])
    def test_constant_output_is_not_part_of_the_score(self, constant, regression):
        X, values = regression
        Y = np.column_stack([values, np.full(len(values), constant)])
        layer = IStarAdapter("ridge", max_epochs=3, random_state=0).fit(X, Y)
        assert all(0.5 < epoch["valid_score"] <= 1 for epoch in layer.history_)


def test_merge_into_a_checkpoint_with_dead_units(tmp_path):
    """Inputs of DistilBERT's head are ReLU outputs, of which some can be zero for all texts."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=n)) for n in rng.integers(2, 12, 60)]
    labels = rng.integers(0, 3, 60)
    model = make_model("distilbert")
    with torch.no_grad():
        model.pre_classifier.bias[:3] = -1e3
    encoder, head = load_checkpoint(
        save_pair(model, make_tokenizer("distilbert"), tmp_path / "model")
    )
    assert {0, 1, 2} <= set(isotropy_report(encoder.transform(texts)).dead_dimensions)
    adapters = [*TRAINED, *CLOSED, IsoBN(head="logistic")]
    merged = [each for each in adapters if each.head is not None and hasattr(each, "to_affine")]
    for number, adapter in enumerate(merged):
        pipe = make_pipeline(encoder, clone(adapter).set_params(head=head)).fit(texts, labels)
        folder = merge_into_checkpoint(pipe, tmp_path / "model", tmp_path / f"merged-{number}")
        rows, own = load_checkpoint(folder)
        expected = pipe[-1].head_.outputs(pipe.transform(texts))
        difference = np.abs(own.outputs(rows.transform(texts)) - expected).max()
        assert difference < 1e-3 * np.abs(expected).max(), adapter


@pytest.mark.parametrize(("offset", "warns"), [(1e4, False), (1e7, True)])
def test_mean_far_larger_than_the_spread_warns(offset, warns):
    X, y = make_classification(200, 5, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        IsotropyLayer(max_epochs=1, random_state=0).fit(X + offset, y)
        IsotropyLayer(solver="exact").fit(X + offset, y)
    found = ["times as large as its spread" in str(each.message) for each in caught]
    assert found == [True] * warns

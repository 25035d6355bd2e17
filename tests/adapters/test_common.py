"""Tests of all adapters: the checks of scikit-learn, and common properties."""

import pickle
import random
from copy import copy
from inspect import signature
from io import BytesIO

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

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
    PenaltyAdapter,
    SpectrumControlAdapter,
    TeacherReadout,
    TopologicalEntropyAdapter,
    Whitening,
)
from isoadapt.losses import CosRegLoss


class Variance(torch.nn.Module):
    """A user-defined penalty."""

    def forward(self, Z):
        return Z.var(dim=0).mean()


# Choosing the epoch takes time, so that only one regressor of each training engine has validation
# rows.
NOT_JUDGED = {"max_epochs": 2, "validation_fraction": None}

NO_HEAD = {"head": None, "max_epochs": 1}

ADAPTERS = [
    IsotropyLayer(max_epochs=2),
    IsotropyLayer(head="ridge", max_epochs=2),
    IsotropyLayer(head=None, max_epochs=2),
    IsotropyLayer(network="mlp", max_epochs=2),
    IsotropyLayer(head_training="joint", coordinates="raw", balance=None, max_epochs=2),
    IsotropyLayer(head_training="alternating", balance="cumulative", max_epochs=2),
    IsotropyLayer(solver="exact"),
    IsotropyLayer(head="ridge", solver="exact"),
    IsotropyLayer(head=None, solver="exact"),
    IStarAdapter(max_epochs=2),
    IStarAdapter("ridge", lam=-1.0, shrinkage="detached", **NOT_JUDGED),
    IStarAdapter(head=None, zeta=0.0, bias_corrected=True, max_epochs=2),
    IStarAdapter(network="mlp", n_shrinkage=50, head_training="joint", max_epochs=2),
    IStarAdapter(zeta=0.0, solver="exact"),
    CosRegAdapter(max_epochs=2),
    CosRegAdapter(head=None, coordinates="whitened", balance="ema", max_epochs=2),
    CosRegAdapter("ridge", network="mlp", head_training="alternating", **NOT_JUDGED),
    SpectrumControlAdapter(max_epochs=2),
    SpectrumControlAdapter("ridge", decay="exponential", coordinates="whitened", **NOT_JUDGED),
    SpectrumControlAdapter(head=None, network="mlp", balance="cumulative", max_epochs=2),
    TopologicalEntropyAdapter(max_epochs=2),
    TopologicalEntropyAdapter("ridge", bars="all", coordinates="whitened", **NOT_JUDGED),
    TopologicalEntropyAdapter(head=None, network="mlp", max_epochs=2),
    PenaltyAdapter(Variance(), max_epochs=2),
    PenaltyAdapter(CosRegLoss(), head="ridge", coordinates="raw", **NOT_JUDGED),
    PenaltyAdapter(Variance(), head=None, network="mlp", max_epochs=2),
    FlowAdapter(max_epochs=2),
    FlowAdapter(coupling="additive", n_blocks=3, validation_fraction=None, max_epochs=2),
    FlowAdapter(head="logistic", n_blocks=4, max_epochs=2),
    FlowAdapter(head="logistic", alpha=0.5, n_blocks=4, max_epochs=2),
    FlowAdapter(head="ridge", n_blocks=4, max_epochs=2),
    FlowAdapter(head="ridge", alpha=0.5, balance=None, n_blocks=4, **NOT_JUDGED),
    Whitening(),
    Whitening("pca", n_components=2, shrinkage=0.1, strength=0.5),
    Whitening(shrinkage="oas"),
    Whitening("pca", n_components=2, shrinkage="ledoit-wolf"),
    Whitening(head="logistic"),
    Whitening(head="logistic", head_training="frozen"),
    Whitening(head="ridge"),
    LogitPreservingWhitening(),
    LogitPreservingWhitening(head="ridge"),
    LogitPreservingWhitening(preserve="differences", strength=0.5),
    IsoBN(),
    IsoBN(head="logistic"),
    IsoBN(beta=1.0, head="ridge", head_training="frozen"),
    AllButTheTop(),
    AllButTheTop(head="logistic"),
    AllButTheTop(head="ridge", head_training="frozen"),
    ClusterIsotropy(),
    ClusterIsotropy(head="logistic"),
    ClusterIsotropy(n_clusters=2, head="ridge", head_training="frozen"),
    TeacherReadout(),
    TeacherReadout(ridge=0.1),
]


def changed(adapter, **changes):
    """Copy an adapter, with those of the changed parameters that it has."""
    names = adapter.get_params().keys() & changes.keys()
    return clone(adapter).set_params(**{name: changes[name] for name in names})


def kind(adapter):
    """Return what the outcome of scikit-learn's checks may depend on."""
    parameters = adapter.get_params()
    task = get_tags(adapter).estimator_type
    return type(adapter), task, parameters.get("solver"), parameters.get("n_components")


# Classes whose every task, solver and output width is always checked: one of each base class.
EVERY_KIND = (IsotropyLayer, Whitening, LogitPreservingWhitening)

# Their code is that of IsotropyLayer, but for the penalty.
OTHER_PENALTIES = (IStarAdapter, CosRegAdapter, SpectrumControlAdapter, TopologicalEntropyAdapter)


def has_default_kind(adapter):
    """Whether the task and the solver of an adapter are those of its default parameters."""
    parameters = adapter.get_params()
    default = signature(type(adapter)).parameters["head"].default
    return parameters["head"] == default and parameters.get("solver", "minibatch") == "minibatch"


# One adapter of each kind, trained for one epoch. Checked in the slow tests are other penalties,
# and tasks and solvers other than the default ones, unless the class stands for its base.
ONE_OF_EACH_KIND = [
    changed(adapter, max_epochs=1)
    for adapter in {kind(adapter): adapter for adapter in reversed(ADAPTERS)}.values()
]
FIRST = [
    each
    for each in ONE_OF_EACH_KIND
    if isinstance(each, EVERY_KIND)
    or (has_default_kind(each) and not isinstance(each, OTHER_PENALTIES))
]
OTHERS = [each for each in ONE_OF_EACH_KIND if each not in FIRST]

# One adapter of each class, for the checks of its outputs' containers, which involve no head but
# where there must be one; two of Whitening, which alone can change the number of features.
ONE_OF_EACH = [
    adapter if isinstance(adapter, LogitPreservingWhitening) else changed(adapter, **NO_HEAD)
    for adapter in {type(adapter): adapter for adapter in reversed(ADAPTERS)}.values()
]
ONE_OF_EACH.append(Whitening("pca", n_components=2))

# With few epochs and few rows the scores still rise at the end, or fall.
pytestmark = [
    pytest.mark.usefixtures("fixed_penalty"),
    pytest.mark.filterwarnings("ignore:training ended at max_epochs"),
    pytest.mark.filterwarnings("ignore:this fit harms the task"),
    pytest.mark.filterwarnings("ignore:.*rows in a batch"),
    pytest.mark.filterwarnings("ignore:head has rank"),
    # TeacherReadout takes the labels of these tests for vectors of one column.
    pytest.mark.filterwarnings("ignore:y has one column"),
]


@parametrize_with_checks(FIRST)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(OTHERS)
def test_scikit_learn_checks_of_other_tasks_and_solvers(estimator, check):
    check(estimator)


# Some of these checks fit to a frame and transform an array, and the reverse.
other_names = pytest.mark.filterwarnings(
    r"ignore:X (has|does not have valid) feature names:UserWarning"
)


@other_names
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_set_output_transform,
        estimator_checks.check_set_output_transform_pandas,
        estimator_checks.check_dataframe_column_names_consistency,
        estimator_checks.check_transformer_get_feature_names_out,
        estimator_checks.check_transformer_get_feature_names_out_pandas,
        estimator_checks.check_param_validation,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("adapter", ONE_OF_EACH, ids=repr)
def test_scikit_learn_checks_outside_parametrize_with_checks(adapter, check):
    check(type(adapter).__name__, clone(adapter))


@other_names
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_set_output_transform_polars,
        estimator_checks.check_global_output_transform_pandas,
        estimator_checks.check_global_set_output_transform_polars,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize(
    "adapter",
    [
        pytest.param(each, marks=() if isinstance(each, EVERY_KIND) else pytest.mark.slow)
        for each in ONE_OF_EACH
    ],
    ids=repr,
)
def test_scikit_learn_checks_of_other_containers(adapter, check):
    check(type(adapter).__name__, clone(adapter))


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(200, n_features=6, centers=3, cluster_std=4.0, random_state=0)
    return X * [20, 3, 1, 1, 0.3, 0.1] + 5, y


@pytest.fixture(scope="module")
def fitted_once(blobs):
    """Fit an adapter to the blobs with seed 0, once for all tests; they do not change it."""
    found = {}

    def fit(adapter):
        if id(adapter) not in found:
            found[id(adapter)] = changed(adapter, random_state=0).fit(*blobs)
        return found[id(adapter)]

    return fit


@pytest.mark.parametrize("adapter", ADAPTERS, ids=repr)
class TestEveryAdapter:
    def test_round_trip_through_joblib(self, adapter, blobs, fitted_once, tmp_path):
        X, fitted = blobs[0], fitted_once(adapter)
        joblib.dump(fitted, tmp_path / "adapter.joblib")
        loaded = joblib.load(tmp_path / "adapter.joblib")
        np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))

    def test_affine_map_is_the_transform(self, adapter, blobs, fitted_once):
        if not hasattr(adapter, "to_affine"):
            assert hasattr(adapter, "inverse_transform") == adapter._maps_back()
            return
        X, fitted = blobs[0], fitted_once(adapter)
        matrix, offset = fitted.to_affine()
        assert matrix.dtype == offset.dtype == np.float64
        np.testing.assert_allclose(fitted.transform(X), X @ matrix.T + offset, rtol=1e-9, atol=1e-9)

    def test_inverse_undoes_the_transform(self, adapter, blobs, fitted_once):
        if not hasattr(adapter, "inverse_transform"):
            pytest.skip("the map has no inverse")
        X, fitted = blobs[0], fitted_once(adapter)
        Z = fitted.transform(X)
        back = fitted.inverse_transform(Z)
        if isinstance(adapter, AllButTheTop) or getattr(adapter, "n_components", None):
            np.testing.assert_allclose(fitted.transform(back), Z, atol=1e-9)
            assert np.linalg.matrix_rank(back) < X.shape[1]
        else:
            np.testing.assert_allclose(back, X, atol=1e-6)

    def test_float32_is_computed_in_float64_and_returned_as_float32(
        self, adapter, blobs, fitted_once
    ):
        X, fitted = (X32 := blobs[0].astype(np.float32)).astype(np.float64), fitted_once(adapter)
        Z = fitted.transform(X32)
        assert Z.dtype == np.float32
        np.testing.assert_array_equal(Z, fitted.transform(X).astype(np.float32))

    def test_fit_is_reproducible_and_leaves_global_generators_unchanged(
        self, adapter, blobs, fitted_once
    ):
        X, y = blobs
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
        first = changed(adapter, random_state=0).fit(X, y).transform(X)
        assert random.getstate() == before[0]
        assert repr(np.random.get_state()) == before[1]  # noqa: NPY002
        assert torch.equal(torch.get_rng_state(), before[2])
        np.testing.assert_array_equal(first, fitted_once(adapter).transform(X))
        changed(adapter, max_epochs=1).fit(X, y)  # random_state=None draws its own seed
        assert repr(np.random.get_state()) == before[1]  # noqa: NPY002

    def test_frozen_head_survives_clone_and_is_not_changed(self, adapter, blobs):
        if adapter.head is None:
            pytest.skip("no head")
        X, y = blobs
        model = (Ridge() if adapter.head == "ridge" else LogisticRegression(max_iter=5000)).fit(
            X, y
        )
        head = LinearHead.from_estimator(model)
        coef = head.coef_.copy()
        cloned = clone(changed(adapter, head=head, random_state=0))
        assert cloned.head is head
        cloned.fit(X, y)
        np.testing.assert_array_equal(head.coef_, coef)
        wrapped = changed(adapter, head=FrozenEstimator(model), random_state=0).fit(X, y)
        np.testing.assert_allclose(wrapped.predict(X), cloned.predict(X))

    def test_invalid_input_is_refused(self, adapter, blobs):
        X, y = blobs
        cases = [
            (np.where(np.arange(6) == 2, np.nan, X), "NaN"),
            (np.where(np.arange(6) == 2, np.inf, X), "infinity"),
            (X[:1], "1 sample"),
            (X[:, :1], r"1 feature\(s\)"),
            (np.full_like(X, 3.0), "X is constant: all 200 rows are equal"),
            (X.astype(str).astype(object) + "a", "could not convert string"),
        ]
        for bad, message in cases:
            with pytest.raises(ValueError, match=message):
                clone(adapter).fit(bad, y[: len(bad)])
        if adapter._head_kind() == "classifier" and adapter._needs_y():
            labels = np.array(y, dtype=object)
            labels[7] = None
            with pytest.raises(ValueError, match=r"Input y contains NaN or None.*first in row 7"):
                clone(adapter).fit(X, labels)
        if adapter._head_kind() == "classifier":
            narrow = LinearHead(np.eye(3, 5), np.zeros(3), [0, 1, 2])
            with pytest.raises(ValueError, match="X has 6 features, but the head expects 5"):
                clone(adapter).set_params(head=narrow).fit(X, y)

    def test_failed_fit_leaves_the_estimator_unchanged(self, adapter, blobs, fitted_once):
        X, y = blobs
        fitted = copy(fitted_once(adapter))
        before = fitted.transform(X)
        attributes = dict(vars(fitted))
        for bad in (
            np.ones_like(X),
            np.ones((200, 9)),
            pd.DataFrame(np.ones((200, 2))).add_prefix("e"),
        ):
            with pytest.raises(ValueError, match="constant"):
                fitted.fit(bad, y)
        assert vars(fitted) == attributes
        np.testing.assert_array_equal(fitted.transform(X), before)

    def test_few_rows_wide_matrices_and_two_features(self, adapter):
        rng = np.random.default_rng(0)
        for n, d in ((12, 40), (30, 2), (31, 7)):
            X, y = rng.normal(size=(n, d)), np.arange(n) % 2
            Z = clone(adapter).fit(X, y).transform(rng.normal(size=(20, d)))
            assert np.isfinite(Z).all()
            assert np.abs(Z).max() < 1e4

    def test_dataframes_give_the_same_result_as_arrays(self, adapter, blobs, fitted_once):
        X, y = blobs
        names, plain = [f"e{i}" for i in range(6)], fitted_once(adapter).transform(X)
        kind = pl.DataFrame if isinstance(adapter, EVERY_KIND) else pd.DataFrame
        frame = kind(dict(zip(names, X.T, strict=True)))
        fitted = changed(adapter, random_state=0).fit(frame, y)
        np.testing.assert_array_equal(fitted.transform(frame), plain)
        assert list(fitted.feature_names_in_) == names


def test_linear_pickle_is_no_larger_than_its_matrix():
    d = 384
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, d))
    y = (X[:, 0] > 0).astype(int)
    head = LinearHead(np.eye(2, d), [0.0, 0.0], [0, 1])
    for adapter in (
        IsotropyLayer(head=head, max_epochs=2),
        IsotropyLayer(head=head, solver="exact"),
        LogitPreservingWhitening(head=head),
        Whitening(),
    ):
        adapter.fit(X, y)
        buffer = BytesIO()
        joblib.dump(adapter, buffer)
        moments = len(pickle.dumps(getattr(adapter, "moments_", None)))
        assert buffer.tell() <= 8 * d * d + 32_768 + moments, adapter


@pytest.mark.parametrize(
    "adapter", [each for each in ADAPTERS if not isinstance(each, PenaltyAdapter)], ids=repr
)
def test_fitted_state_is_numpy_and_skops_stores_it(adapter, blobs):
    fitted = clone(adapter).fit(*blobs)
    assert b"torch" not in pickle.dumps(fitted)
    skops = pytest.importorskip("skops.io", reason="skops is not installed", exc_type=ImportError)
    stored = skops.dumps(fitted)
    again = skops.loads(stored, trusted=skops.get_untrusted_types(data=stored))
    np.testing.assert_array_equal(again.transform(blobs[0]), fitted.transform(blobs[0]))
    for name in ("moments_", "head_"):
        assert repr(getattr(again, name, None)) == repr(getattr(fitted, name, None))

"""Tests of all adapters: the checks of scikit-learn, and common properties."""

import pickle
import random
from copy import copy

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from skops.io import dumps, get_untrusted_types, loads

from isoadapt import PenaltyAdapter, Whitening, adapters
from isoadapt.adapters._registry import MODULES, adapter_class

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


class Variance(torch.nn.Module):
    """A user-defined penalty."""

    def forward(self, Z):
        return Z.var(dim=0).mean()


JUDGED = {"max_epochs": 2}
NOT_JUDGED = {"max_epochs": 2, "validation_fraction": None}  # choosing the epoch takes time
FLOW = {"n_blocks": 2, "hidden": 8}

# A pairwise choice: each class with each kind of head, and each value of each parameter once.
ADAPTERS = [
    adapters.IsotropyLayer(**JUDGED),
    adapters.IsotropyLayer("ridge", coordinates="raw", balance=None, **NOT_JUDGED),
    adapters.ExactIsotropyLayer(head=None),
    adapters.IStarAdapter(zeta=0.0, **NOT_JUDGED),
    adapters.IStarAdapter(head_training="alternating", balance="cumulative", **JUDGED),
    adapters.IStarAdapter("ridge", lam=-1.0, shrinkage="detached", **NOT_JUDGED),
    adapters.IStarAdapter(None, bias_corrected=True, **NOT_JUDGED),
    adapters.CosRegAdapter("ridge", coordinates="whitened", balance="ema", **NOT_JUDGED),
    adapters.SpectrumControlAdapter("ridge", decay="exponential", **NOT_JUDGED),
    adapters.SpectrumControlAdapter(head_training="joint", **NOT_JUDGED),
    adapters.TopologicalEntropyAdapter(**JUDGED),
    adapters.TopologicalEntropyAdapter(None, bars="all", coordinates="whitened", **NOT_JUDGED),
    PenaltyAdapter(Variance(), coordinates="raw", **NOT_JUDGED),
    adapters.FlowAdapter("ridge", alpha=0.5, balance=None, **FLOW, **NOT_JUDGED),
    adapters.FlowAdapter(coupling="additive", **FLOW, **JUDGED),
    Whitening("pca", n_components=2, head="logistic", shrinkage="ledoit-wolf", strength=0.5),
    Whitening(shrinkage="oas"),
    adapters.LogitPreservingWhitening(preserve="differences", strength=0.5),
    adapters.IsoBN(beta=1.0, head="ridge", head_training="frozen"),
    adapters.AffineAdapter(),
    adapters.AllButTheTop(head="logistic"),
    adapters.ClusterIsotropy(n_clusters=2, head="ridge"),
    adapters.TeacherReadout(ridge=0.1),
]
ADAPTERS += [cls() for cls in map(adapter_class, MODULES) if cls not in set(map(type, ADAPTERS))]


def changed(adapter, **changes):
    """Copy an adapter, with those of the changed parameters that it has."""
    names = adapter.get_params().keys() & changes.keys()
    return clone(adapter).set_params(**{name: changes[name] for name in names})


# One estimator of each base class passes all checks of scikit-learn.
EVERY_CHECK = [adapters.IsotropyLayer(max_epochs=1, validation_fraction=None)]
EVERY_CHECK += [adapters.FlowAdapter(max_epochs=1, **FLOW), Whitening("pca", n_components=2)]
EVERY_CHECK += [adapters.ExactIsotropyLayer(), adapters.LogitPreservingWhitening("ridge")]
EVERY_CHECK += [adapters.TeacherReadout()]


@parametrize_with_checks(EVERY_CHECK)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([changed(each, max_epochs=1) for each in ADAPTERS])
def test_scikit_learn_checks_of_every_configuration(estimator, check):
    check(estimator)


# The last of each class, without a head, on which outputs do not depend, if one is not needed.
ONE_OF_EACH = [
    each
    if isinstance(each, adapters.LogitPreservingWhitening)
    else changed(each, head=None, head_training="frozen", max_epochs=1)
    for each in {type(each): each for each in ADAPTERS}.values()
]
CHECKS = [
    estimator_checks.check_set_output_transform_pandas,
    estimator_checks.check_dataframe_column_names_consistency,
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_param_validation,
    estimator_checks.check_fit_idempotent,
]


# Some of these checks fit to a frame and transform an array, and the reverse.
@pytest.mark.filterwarnings(r"ignore:X (has|does not have valid) feature names:UserWarning")
@pytest.mark.parametrize(
    ("adapter", "check"),
    [(adapter, check) for adapter in ONE_OF_EACH for check in CHECKS]
    + [(Whitening(), estimator_checks.check_set_output_transform_polars)],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_main_checks_of_scikit_learn_for_every_class(adapter, check):
    check(type(adapter).__name__, clone(adapter))


@pytest.fixture(scope="module")
def blobs():
    X, y = make_blobs(80, n_features=6, centers=3, cluster_std=4.0, random_state=0)
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
    def test_state_is_numpy_and_survives_pickle_and_skops(self, adapter, blobs, fitted_once):
        fitted = copy(fitted_once(adapter))
        stored = pickle.dumps(fitted)
        copies = [pickle.loads(stored)]
        if not isinstance(adapter, PenaltyAdapter):  # which holds the user's penalty
            assert b"torch" not in stored
            stored = dumps(fitted)
            copies.append(loads(stored, trusted=get_untrusted_types(data=stored)))
        for again in copies:
            np.testing.assert_array_equal(again.transform(blobs[0]), fitted.transform(blobs[0]))
            for name in ("moments_", "head_"):
                assert repr(getattr(again, name, None)) == repr(getattr(fitted, name, None))

    def test_affine_map_and_inverse_are_those_of_the_transform(self, adapter, blobs, fitted_once):
        X, fitted = blobs[0], fitted_once(adapter)
        Z, single = fitted.transform(X), X.astype(np.float32)
        expected = fitted.transform(single.astype(float)).astype(np.float32)
        np.testing.assert_array_equal(fitted.transform(single), expected, strict=True)
        if hasattr(adapter, "to_affine"):
            matrix, offset = fitted.to_affine()
            assert matrix.dtype == offset.dtype == np.float64
            np.testing.assert_allclose(Z, X @ matrix.T + offset, rtol=1e-9, atol=1e-9)
        assert hasattr(adapter, "inverse_transform") == adapter._invertible
        if not hasattr(adapter, "inverse_transform"):
            return
        back = fitted.inverse_transform(Z)
        if isinstance(adapter, adapters.AllButTheTop) or getattr(adapter, "n_components", None):
            np.testing.assert_allclose(fitted.transform(back), Z, atol=1e-9)
            assert np.linalg.matrix_rank(back) < X.shape[1]
        else:
            np.testing.assert_allclose(back, X, atol=1e-6)

    def test_failed_fit_leaves_the_estimator_unchanged(self, adapter, blobs, fitted_once):
        fitted = copy(fitted_once(adapter))
        attributes = dict(vars(fitted))
        with pytest.raises(ValueError, match="constant"):
            fitted.fit(pd.DataFrame(np.ones((80, 2))).add_prefix("e"), blobs[1])
        assert vars(fitted) == attributes


@pytest.mark.parametrize("adapter", ONE_OF_EACH, ids=repr)
def test_outputs_are_bounded_for_any_shape_and_global_generators_left_alone(adapter):
    rng = np.random.default_rng(0)
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002
    for n, d, dead in ((12, 40, []), (30, 2, []), (60, 8, [0.0, 3e-9, 1e-33])):
        X, y = rng.normal(size=(n, d)), np.arange(n) % 2
        X[:, : len(dead)] *= dead
        new = rng.normal(size=(20, d))
        if isinstance(adapter, adapters.TeacherReadout):  # standardises every column that varies
            new[:, : len(dead)] *= dead
        Z = clone(adapter).fit(X, y).transform(new)
        assert np.abs(Z).max() < 1e4  # and finite
    assert random.getstate() == before[0]
    assert repr(np.random.get_state()) == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])

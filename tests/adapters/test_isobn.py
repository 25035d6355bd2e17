"""IsoBN."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from isoadapt import IsoBN
from isoadapt.metrics import cumulative_explained_variance, isoscore


def published_scale(X, beta, eps):
    """Scales by the published formulas, with zero correlations for constant dimensions."""
    n, d = X.shape
    mean = [sum(X[:, i]) / n for i in range(d)]
    cov = [
        [sum((X[k, i] - mean[i]) * (X[k, j] - mean[j]) for k in range(n)) / n for j in range(d)]
        for i in range(d)
    ]
    std = [math.sqrt(cov[i][i]) for i in range(d)]
    scale = []
    for i in range(d):
        squares = [(cov[i][j] / (std[i] * std[j])) ** 2 for j in range(d) if std[i] * std[j]]
        scale.append((sum(squares) / d * std[i] + eps) ** (-beta))
    trace = sum(cov[i][i] for i in range(d))
    scaled = sum(cov[i][i] * scale[i] ** 2 for i in range(d))
    factor = math.sqrt(trace / (scaled + eps))
    return np.array([factor * value for value in scale])


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(80, 6)) @ rng.normal(size=(6, 6)) * [30, 4, 1, 1, 0.3, 0.01] + 5


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("eps", [1e-6, 1e-3, 0.5])
def test_scales_equal_the_published_formulas(X, beta, eps):
    adapter = IsoBN(beta, eps).fit(X)
    np.testing.assert_allclose(adapter.scale_, published_scale(X, beta, eps), rtol=1e-10)
    np.testing.assert_allclose(adapter.transform(X), X * adapter.scale_, rtol=1e-12)


def test_map_is_linear_and_scales_do_not_depend_on_the_mean(X):
    adapter = IsoBN().fit(X)
    np.testing.assert_array_equal(adapter.transform(np.zeros((1, 6))), 0)
    np.testing.assert_allclose(IsoBN().fit(X + 100).scale_, adapter.scale_, rtol=1e-9)


@pytest.mark.parametrize("beta", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_outputs_scale_with_the_embeddings_and_have_their_total_variance(X, beta, factor):
    adapter = IsoBN(beta, eps=1e-15)
    Z = adapter.fit_transform(X)
    assert Z.var(axis=0).sum() == pytest.approx(X.var(axis=0).sum())
    np.testing.assert_allclose(adapter.fit_transform(factor * X), factor * Z, rtol=1e-6)


def test_beta_interpolates_between_identity_and_equal_participation(X):
    np.testing.assert_allclose(IsoBN(beta=0.0, eps=1e-15).fit_transform(X), X, rtol=1e-12)
    participation = (np.corrcoef(X.T) ** 2).mean(axis=1)
    equal = IsoBN(beta=1.0, eps=1e-15).fit_transform(X).std(axis=0) * participation
    np.testing.assert_allclose(equal, equal[0], rtol=1e-6)
    halved = IsoBN(beta=0.5, eps=1e-15).fit_transform(X).std(axis=0) / X.std(axis=0)
    ratio = halved * np.sqrt(X.std(axis=0) * participation)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(6)), st.lists(st.sampled_from([-1.0, 1.0]), min_size=6, max_size=6))
def test_scales_follow_permutations_and_ignore_signs(X, order, signs):
    moved = IsoBN().fit(X[:, order] * signs)
    np.testing.assert_allclose(moved.scale_, IsoBN().fit(X).scale_[order], rtol=1e-10)


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_constant_dimension_gets_a_scale(X, value):
    flat = np.where(np.arange(6) == 2, value, X)
    adapter = IsoBN().fit(flat)
    np.testing.assert_allclose(adapter.scale_, published_scale(flat, 0.5, 1e-3), rtol=1e-9)
    assert np.isfinite(adapter.scale_).all()
    assert np.ptp(adapter.transform(flat)[:, 2]) == 0
    np.testing.assert_allclose(adapter.inverse_transform(adapter.transform(flat)), flat, atol=1e-9)


@pytest.mark.parametrize("params", [{"beta": -0.1}, {"beta": 1.1}, {"eps": 0.0}])
def test_parameters_out_of_range(X, params):
    with pytest.raises(ValueError, match=f"'{next(iter(params))}' parameter of IsoBN"):
        IsoBN(**params).fit(X)


@pytest.mark.parametrize("task", ["cola", "mrpc", "rte", "sst2_sentence"])
def test_first_direction_explains_less_of_real_embeddings(shared, task):
    data = np.load(shared / "embeddings" / f"{task}.npz")
    X = data["E_dev"].astype(float)
    fitted = [IsoBN(beta).fit(data["E_train"].astype(float)) for beta in (0.5, 1.0)]
    explained = [
        cumulative_explained_variance(Z, 1) for Z in (X, *(a.transform(X) for a in fitted))
    ]
    assert explained[0] > explained[1] > explained[2]
    assert isoscore(fitted[1].transform(X), bias_corrected=True) > isoscore(X, bias_corrected=True)

"""IsoBN."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from isoadapt import IsoBN


def published_scale(X, beta, eps):
    """Scales by the published formulas, with zero correlations for constant dimensions."""
    cov = np.cov(X.T, ddof=0)
    std = np.sqrt(np.diag(cov))
    products = np.outer(std, std)
    correlation = np.divide(cov, products, where=products > 0, out=np.zeros_like(cov))
    scale = ((correlation**2).mean(axis=0) * std + eps) ** (-beta)
    return scale * np.sqrt(np.trace(cov) / (np.diag(cov) @ scale**2 + eps))


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.normal(size=(80, 6)) @ rng.normal(size=(6, 6)) * [30, 4, 1, 1, 0.3, 0.01] + 5


@pytest.mark.parametrize(("beta", "eps"), [(0.0, 1e-6), (0.5, 1e-3), (0.8, 0.5), (1.0, 1e-3)])
def test_scales_equal_the_published_formulas(X, beta, eps):
    adapter = IsoBN(beta, eps).fit(X)
    np.testing.assert_allclose(adapter.scale_, published_scale(X, beta, eps), rtol=1e-10)
    np.testing.assert_allclose(adapter.transform(X), X * adapter.scale_, rtol=1e-12)
    np.testing.assert_allclose(IsoBN(beta, eps).fit(X + 100).scale_, adapter.scale_, rtol=1e-9)


@given(st.permutations(range(6)), st.lists(st.sampled_from([-1.0, 1.0]), min_size=6, max_size=6))
def test_scales_follow_permutations_and_ignore_signs(X, order, signs):
    moved = IsoBN().fit(X[:, order] * signs)
    np.testing.assert_allclose(moved.scale_, IsoBN().fit(X).scale_[order], rtol=1e-10)


def test_constant_dimension_gets_a_scale(X):
    flat = np.where(np.arange(6) == 2, 7.0, X)
    adapter = IsoBN().fit(flat)
    np.testing.assert_allclose(adapter.scale_, published_scale(flat, 0.5, 1e-3), rtol=1e-9)
    np.testing.assert_allclose(adapter.inverse_transform(adapter.transform(flat)), flat, atol=1e-9)

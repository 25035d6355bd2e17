"""Bars of dimension 0, the selection of those that count, and persistent entropy."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from torch.autograd import gradcheck

from benchmarks.speed.persistence import bars_by_gudhi, select_bars_recursively
from isoadapt.geometry import persistence_bars, persistent_entropy, select_bars
from tests.geometry.examples import cloud
from tests.small_blocks import small_blocks

SETTINGS = settings(deadline=None, derandomize=True)


CLOUDS = {
    **{f"{n} points": cloud(n, 3, seed=n) for n in (1, 2, 3, 5)},
    "n < d": cloud(30, 101),
    "n > d": cloud(150, 20),
    "duplicates": cloud(40, 30)[np.random.default_rng(0).integers(40, size=90)],
    "all equal": np.full((20, 7), 0.1),
    "collinear duplicates": np.repeat(cloud(20, 1) * cloud(1, 40), 3, axis=0),
    "simplex": np.eye(12),
    "offset": cloud(60, 25) + 1e6,
    "offset line": cloud(60, 1) * cloud(1, 25) + 1e6,
    "tight clusters": 1e3 * cloud(3, 50)[np.arange(60) % 3] + 1e-5 * cloud(60, 50, seed=1),
    "outlier": np.concatenate([cloud(50, 20), 1e6 * np.ones((1, 20))]),
}


ROUTES = {}, {"tree": 0}  # all distances at once, and row by row


@pytest.mark.parametrize("name", CLOUDS)
def test_bars_equal_gudhis_on_both_routes_and_in_both_precisions(name):
    X = CLOUDS[name]
    bars, single = persistence_bars(X), X.astype(np.float32)
    assert bars.shape == (len(X) - 1,)
    np.testing.assert_allclose(bars, bars_by_gudhi(X), rtol=0, atol=1e-9)
    exact = persistence_bars(single.astype(np.float64))
    for route in ROUTES:
        with small_blocks(**route):
            np.testing.assert_array_equal(persistence_bars(X), bars)
            np.testing.assert_allclose(persistence_bars(torch.tensor(X)), bars, rtol=1e-6, atol=0)
            for points in (single, torch.tensor(single)):
                found = persistence_bars(points)
                assert found.dtype == points.dtype
                np.testing.assert_allclose(found, exact, rtol=2e-6, atol=0)


@SETTINGS
@given(
    X=arrays(
        np.float64, st.tuples(st.integers(2, 12), st.integers(1, 4)), elements=st.integers(-3, 3)
    ),
    factor=st.sampled_from([1e-6, 0.3, 1.0, 1e5]),
    seed=st.integers(0, 99),
)
def test_bars_are_invariant_under_motions_and_grow_with_scale(X, factor, seed):
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(X.shape[1],) * 2))[0]
    bars = persistence_bars(X)
    np.testing.assert_allclose(persistence_bars(rng.permutation(X)), bars, rtol=0, atol=1e-12)
    np.testing.assert_allclose(persistence_bars(X @ turn + 5), bars, rtol=0, atol=1e-12)
    np.testing.assert_allclose(persistence_bars(factor * X), factor * bars, rtol=1e-12, atol=0)
    np.testing.assert_allclose(bars, bars_by_gudhi(X), rtol=0, atol=1e-12)


def test_half_precision_is_computed_in_float32_and_integers_in_float64():
    X = cloud(30, 6)
    for half in (X.astype(np.float16), torch.tensor(X).half(), torch.tensor(X).bfloat16()):
        wide = half.astype(np.float32) if isinstance(half, np.ndarray) else half.float()
        np.testing.assert_array_equal(persistence_bars(half), persistence_bars(wide))
    for kind in (np.array, torch.tensor, list):
        assert persistence_bars(kind([[1], [4], [6]])).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("select", [select_bars, lambda bars: bars])
@pytest.mark.parametrize("shape", [(2, 3), (9, 15)])
def test_gradcheck(shape, select):
    X = torch.tensor(cloud(*shape), requires_grad=True)
    assert gradcheck(lambda x: persistent_entropy(select(persistence_bars(x))), X)
    assert gradcheck(lambda x: select(persistence_bars(x)), X)


def test_bars_of_length_zero_have_zero_gradient():
    X = torch.tensor(cloud(6, 4)[[0, 1, 1, 2, 3, 4, 5, 5]], requires_grad=True)
    bars = persistence_bars(X)
    assert not bars[-2:].any()
    for zero in (bars[-2:].sum(), persistent_entropy(persistence_bars(X * 0))):
        assert not torch.autograd.grad(zero, X, retain_graph=True)[0].any()
    assert torch.autograd.grad(persistent_entropy(bars), X)[0].isfinite().all()


# The selection.

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 17, 32, 63, 120)
BARCODES = {
    "exponential": lambda rng, n: rng.exponential(size=n),
    "lognormal": lambda rng, n: np.exp(2 * rng.normal(size=n)),
    "concentrated": lambda rng, n: 1 + 0.05 * rng.random(n),
    "nearly equal": lambda rng, n: 1 + 5e-5 * rng.random(n),
    "two scales": lambda rng, n: np.where(rng.random(n) < 0.3, 10, 1) * (1 + 0.1 * rng.random(n)),
    "duplicates": lambda rng, n: rng.choice(rng.random(max(2, n // 4)), size=n),
    "with zeros": lambda rng, n: rng.random(n) * (rng.random(n) < 0.8),
    "one long": lambda rng, n: np.append(rng.random(n - 1), 1e6),
    "cloud": lambda rng, n: persistence_bars(rng.normal(size=(n + 1, 8))),
}


@pytest.mark.parametrize("name", BARCODES)
def test_selection_equals_its_recursive_form(name):
    for seed, n in itertools.product(range(6), SIZES):
        rng = np.random.default_rng((seed, n))
        bars = rng.permutation(BARCODES[name](rng, n))
        np.testing.assert_array_equal(select_bars(bars), select_bars_recursively(bars))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 3, 4, 50])
def test_bars_that_are_equal_up_to_rounding_are_kept_all(n, dtype):
    ulps = np.finfo(dtype).eps * (np.arange(n) % 3)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(n + 1, n + 1)))[0]
    simplex = persistence_bars(turn.astype(dtype))
    np.testing.assert_allclose(simplex, math.sqrt(2), rtol=2e-6)
    for bars in (np.full(n, 0.7), 0.7 * (1 + ulps), simplex):
        assert len(select_bars(bars.astype(dtype))) == n


def test_bars_of_extreme_ratios_are_selected_without_a_warning():
    assert select_bars([1e200, 1e-150, 1e-160, 1e-170, 1e-180]).tolist() == [1e200, 1e-150]


def test_selection_of_a_tensor_picks_from_the_tensor():
    bars = torch.tensor(BARCODES["exponential"](np.random.default_rng(0), 40), requires_grad=True)
    kept = select_bars(bars)
    np.testing.assert_array_equal(kept.detach(), select_bars(bars.detach().numpy()))
    (gradient,) = torch.autograd.grad(kept.sum(), bars)
    assert torch.equal(gradient, (bars >= kept.min()).to(gradient))
    assert select_bars(bars.detach().float()).dtype == torch.float32
    assert select_bars(torch.zeros(3)).shape == (0,)


# Persistent entropy.


@SETTINGS
@given(
    bars=arrays(np.float64, st.integers(1, 40), elements=st.floats(1e-6, 1e3)),
    factor=st.floats(1e-8, 1e8),
)
def test_entropy_is_bounded_and_free_of_scale_zeros_and_order(bars, factor):
    entropy = persistent_entropy(bars)
    assert isinstance(entropy, float)
    assert -1e-12 <= entropy <= math.log(len(bars)) + 1e-12
    assert persistent_entropy(0 * bars + factor) == pytest.approx(math.log(len(bars)), abs=1e-12)
    shares = bars / bars.sum()
    assert entropy == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-12)
    for other in (factor * bars, bars[::-1], np.append(bars, [0.0, 0.0])):
        assert persistent_entropy(other) == pytest.approx(entropy, abs=1e-12)
        tensor = persistent_entropy(torch.tensor(other.copy()))
        assert tensor.shape == ()
        assert float(tensor) == pytest.approx(entropy, abs=1e-12)


def test_no_bars_have_no_entropy_and_no_gradient():
    for bars in ([], [0.0, 0.0]):
        assert persistent_entropy(np.array(bars)) == 0
        tensor = torch.tensor(bars, requires_grad=True)
        entropy = persistent_entropy(tensor)
        assert float(entropy.detach()) == 0
        assert not torch.autograd.grad(entropy, tensor)[0].any()


# Bad input.


@pytest.mark.parametrize(
    "X", [[1.0, 2.0], [[], []], [[math.nan], [0.0], [1.0]], [[math.inf], [3.0], [-math.inf], [0.0]]]
)
def test_bad_points_are_refused_on_both_routes(X):
    for route, kind in itertools.product(ROUTES, (np.array, torch.tensor)):
        with small_blocks(**route), pytest.raises(ValueError, match="X"):
            persistence_bars(kind(X))


@pytest.mark.parametrize("function", [select_bars, persistent_entropy])
@pytest.mark.parametrize("bars", [[[1.0, 2.0]], [1.0, -2.0], [1.0, math.nan, 2.0], [1.0, math.inf]])
def test_bad_bars_are_refused(function, bars):
    for kind in (np.array, torch.tensor):
        with pytest.raises(ValueError, match="bars"):
            function(kind(bars))

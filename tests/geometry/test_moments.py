"""Moments: every way of feeding the same rows ends in the covariance numpy computes at once."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from isoadapt.geometry import Moments, _moments as moments_module
from isoadapt.metrics import isoscore
from tests.geometry.examples import cloud
from tests.small_blocks import small_blocks

SETTINGS = settings(deadline=None, derandomize=True)

assert_equal_arrays = partial(torch.testing.assert_close, rtol=0, atol=0)
shapes = st.tuples(st.integers(2, 12), st.integers(1, 5))
rows_strategy = arrays(np.float64, shapes, elements=st.floats(-1e3, 1e3, width=32))


def assert_same(a, b, rtol=1e-12):
    """Same count, mean, scatter and higher moments, to `rtol` of each one's size."""
    assert a.count == pytest.approx(b.count, rel=1e-14)
    torch.testing.assert_close(a.mean, b.mean, rtol=0, atol=rtol * (1 + float(b.mean.abs().max())))
    size = float(b.scatter.abs().max()) + float(b.count * b.mean.square().max())
    torch.testing.assert_close(a.scatter, b.scatter, rtol=0, atol=rtol * (1 + size))
    assert (a.third is None) == (b.third is None)
    if a.third is not None and float(b.scatter.trace()):
        noise = rtol * (1 + (b.count * float(b.mean.square().max() / b.scatter.trace())) ** 0.5)
        torch.testing.assert_close(a.third, b.third, rtol=0, atol=noise)
        torch.testing.assert_close(a.fourth, b.fourth, rtol=0, atol=noise)


# Updates, merges and weights.


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_chunks_give_numpys_covariance(chunk):
    X = cloud(50, 4)
    moments = Moments()
    for start in range(0, len(X), chunk):
        assert moments.update(X[start : start + chunk].tolist()) is moments
    assert (moments.count, len(moments)) == (50, 4)
    np.testing.assert_allclose(moments.mean, X.mean(0), rtol=0, atol=1e-13)
    for ddof in (0, 1):
        wanted = np.cov(X.T, ddof=ddof)
        np.testing.assert_allclose(moments.covariance(ddof), wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(moments.second_moment(), X.T @ X / 50, rtol=1e-12)


@SETTINGS
@given(rows_strategy, st.data())
def test_any_split_and_any_order_of_merging_is_the_same(X, data):
    first = data.draw(st.integers(0, len(X)))
    second = data.draw(st.integers(first, len(X)))

    def part(i):
        return Moments().update((X[:first], X[first:second], X[second:])[i])

    whole = Moments().update(X)
    assert_same(part(0).merge(part(1)).merge(part(2)), whole)
    assert_same(part(0).merge(part(1).merge(part(2))), whole)
    assert_same(part(2).merge(part(0)).merge(part(1)), whole)


@SETTINGS
@given(rows_strategy, st.data())
def test_integer_weights_are_repeated_rows(X, data):
    weights = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(X), max_size=len(X))))
    weighted = Moments().update(X, weights)
    repeated = Moments().update(np.repeat(X, weights, axis=0))
    assert weighted.count == repeated.count == weights.sum()
    if weights.sum():
        assert_same(weighted, repeated)


@pytest.mark.parametrize("large", [1e6, 1e200])
def test_rows_of_weight_zero_leave_no_trace(large):
    X, weights = cloud(30, 3), np.r_[np.ones(10), np.zeros(20)]
    X[10:] *= large
    assert_same(Moments().update(X, weights), Moments().update(X[:10]))
    assert_same(Moments().update(X, 0 * weights).update(X[:10]), Moments().update(X[:10]))


def test_empty_moments_are_neutral_and_merging_with_itself_doubles_every_row():
    X = cloud(20, 3)
    whole = Moments().update(X)
    assert_same(Moments().update(X).merge(Moments()), whole)
    assert_same(Moments().merge(whole), whole)
    assert_same(Moments().update(X[:0]).update(X).update(X[:0]), whole)
    nothing = Moments().merge(Moments())
    assert (nothing.count, len(nothing)) == (0, 0)
    assert_same(whole.merge(whole), Moments().update(np.concatenate([X, X])))


def test_no_call_touches_its_argument():
    X = cloud(20, 3)
    kept, other = X.copy(), Moments().update(X[10:])
    before = other.to_arrays()
    empty_first = Moments().merge(other).update(X[:10])
    Moments().update(X[:10]).merge(other).update(X)
    other.mapped(np.eye(3), np.ones(3))
    assert_equal_arrays(other.to_arrays(), before)
    np.testing.assert_array_equal(X, kept)
    assert_same(empty_first, Moments().update(X))


def test_mapped_moments_are_those_of_mapped_rows():
    X, rng = cloud(40, 5), np.random.default_rng(1)
    matrix, offset = rng.normal(size=(3, 5)), rng.normal(size=3)
    mapped = Moments().update(X).mapped(matrix, offset)
    wanted = Moments().update(X @ matrix.T + offset)
    assert mapped.third is mapped.fourth is None
    wanted.third = wanted.fourth = None
    assert_same(mapped, wanted)


# Precision.


@pytest.mark.parametrize(("dtype", "is_sorted"), [(np.float64, True), (np.float32, False)])
def test_small_variances_are_right_beside_large_ones_and_a_large_mean(dtype, is_sorted):
    rows = np.random.default_rng(0).normal(size=(8000, 24))
    if is_sorted:  # the first rows are far from the mean
        rows = rows[np.argsort(rows[:, 0])]
    X = (np.logspace(0, -6, 24) * (rows + 1e3)).astype(dtype)  # variances over 12 decades
    centred = X.astype(np.longdouble) - X.mean(axis=0, dtype=np.longdouble)
    exact = centred.T @ centred
    sizes = np.sqrt(exact.diagonal())
    error = abs(Moments().update(X).scatter.numpy() - exact) / np.outer(sizes, sizes)
    assert error.max() < 1e-13


def test_rows_of_little_weight_do_not_cost_precision():
    X = np.random.default_rng(0).normal(size=(3000, 6))
    weights = np.r_[np.full(600, 1e-30), np.ones(2400)]
    found = Moments().update(X + 1e8 * (weights < 1)[:, None], weights=weights)
    expected = Moments().update(X[600:])
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e-300])
@small_blocks(moments=6)
def test_a_constant_column_has_no_scatter_at_all(value):
    X = cloud(50, 4)
    X[:, 2] = value
    weights = np.random.default_rng(1).uniform(size=50)
    for moments in (Moments().update(X), Moments().update(X[:20]).update(X[20:], weights[20:])):
        assert moments.mean[2] == value
        assert not moments.scatter[2].any()


@pytest.mark.parametrize("weights", [None, torch.linspace(0, 2, 50, dtype=torch.float64)])
def test_the_route_of_other_devices_gives_the_same(weights):
    X = torch.tensor(cloud(50, 4))
    X[:, 2] = 0.1
    elsewhere = Moments()
    for part in (slice(0, 20), slice(20, 50)):
        weight = None if weights is None else weights[part]
        elsewhere._add(moments_module._device_moments(X[part], weight))
    assert_same(elsewhere, Moments().update(X, weights))
    assert not elsewhere.scatter[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_every_dtype_is_accumulated_in_float64_without_its_graph(dtype):
    X = (torch.tensor(cloud(30, 3)) * 8).to(dtype)
    rows = X.requires_grad_() * 1 if dtype.is_floating_point else X
    moments = Moments().update(rows)
    assert not moments.scatter.requires_grad
    wanted = torch.cov(X.detach().double().T)
    torch.testing.assert_close(moments.covariance(), wanted, rtol=0, atol=1e-11)


# Higher moments.


@pytest.mark.parametrize(("weighted", "scale"), [(False, 1e120), (True, 1e-120), (True, 1.0)])
@small_blocks(moments=16)
def test_third_and_fourth_moment_are_those_of_the_centred_rows(weighted, scale):
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(120, 4)) * [3, 1, 1, 0.1] + np.linspace(0, 40, 120)[:, None] + 1e4
    weights = rng.uniform(0, 3, 120) if weighted else np.ones(120)
    centred = X.astype(np.longdouble) - weights @ X.astype(np.longdouble) / weights.sum()
    squares = (centred**2).sum(1)
    third = (weights * squares) @ centred / (weights @ squares) ** 1.5
    fourth = float(weights @ squares**2 / (weights @ squares) ** 2)

    def moments(*parts):
        whole = Moments()
        for rows in parts:
            whole.update(X[rows] * scale, weights[rows] if weighted else None)
        return whole

    for found in (
        moments(slice(0, 120)),
        moments(slice(0, 1), slice(1, 70), slice(70, 120)),
        moments(slice(70, 120)).merge(moments(slice(0, 70))),
        Moments.from_arrays(moments(slice(0, 50)).to_arrays()).merge(moments(slice(50, 120))),
    ):
        np.testing.assert_allclose(found.third, third.astype(float), rtol=0, atol=1e-10)
        assert float(found.fourth) == pytest.approx(fourth, rel=1e-10)


def test_mapped_moments_have_no_corrected_score_but_all_else():
    X, identity = cloud(40, 3), (np.eye(3), np.zeros(3))
    known, wanted = Moments().update(X[:25]), isoscore(X[:25], bias_corrected=True)
    assert isoscore(known, bias_corrected=True) == pytest.approx(wanted, abs=1e-12)
    moments = known.mapped(*identity)
    assert isoscore(moments) == pytest.approx(isoscore(X[:25]), abs=1e-12)
    for again in (
        pickle.loads(pickle.dumps(moments)),
        Moments.from_arrays(moments.to_arrays()),
        Moments().merge(moments),
        Moments().update(X[25:]).merge(moments),
        known.mapped(*identity).update(X[25:]),
    ):
        assert again.third is again.fourth is None
        assert set(again.to_arrays()) == {"count", "mean", "scatter"}
        with pytest.raises(ValueError, match="fourth moment"):
            isoscore(again, bias_corrected=True)
    np.testing.assert_allclose(again.covariance(), np.cov(X.T), rtol=0, atol=1e-12)


# Round trips and refusals.


@pytest.mark.parametrize(
    "copy", [lambda m: Moments.from_arrays(m.to_arrays()), lambda m: pickle.loads(pickle.dumps(m))]
)
def test_round_trips_keep_every_bit_share_nothing_and_go_on(copy):
    X = cloud(20, 3)
    moments = Moments().update(X[:12], np.linspace(0, 1, 12))
    kept, taken, again = moments.to_arrays(), moments.to_arrays(), copy(moments)
    for value in taken.values():
        value[...] = -1
    assert_equal_arrays(again.to_arrays(), kept)
    assert_same(again.update(X[12:]), Moments.from_arrays(kept).update(X[12:]))
    assert_equal_arrays(moments.to_arrays(), kept)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.update(np.zeros((2, 3, 4))), "X has shape"),
        (lambda m: m.update(np.zeros((5, 2))), "X has shape"),
        (lambda m: m.update(np.zeros((5, 3)), np.ones(4)), "weights"),
        (lambda m: m.update(np.zeros((5, 3)), np.array([1, 1, -1e-9, 1, 1])), "weights"),
        (lambda m: m.update(np.zeros((5, 3)), np.array([1, 1, np.inf, 1, 1])), "weights"),
        (lambda m: m.merge(Moments().update(cloud(9, 2))), "other"),
        (lambda m: m.covariance(20), "n_samples"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_state(call, message):
    moments = Moments().update(cloud(20, 3))
    before = moments.to_arrays()
    with pytest.raises(ValueError, match=message):
        call(moments)
    assert_equal_arrays(moments.to_arrays(), before)

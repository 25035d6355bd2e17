"""Moments: every way of feeding the same rows ends in the covariance numpy computes at once."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from isoadapt.geometry import Moments, _moments as moments_module
from isoadapt.metrics import isoscore

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)

rows_strategy = st.tuples(st.integers(2, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(-1e3, 1e3, width=32))
)


def cloud(n, d, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


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


def higher_moments(X, weights=None):
    """Third and fourth moment by their definition, in extended precision."""
    weights = np.ones(len(X)) if weights is None else weights
    X = X.astype(np.longdouble)
    centred = X - weights @ X / weights.sum()
    squared = (centred**2).sum(1)
    trace = weights @ squared
    third = (weights * squared) @ centred / trace**1.5
    return third.astype(np.float64), float(weights @ squared**2 / trace**2)


def scatter_in_extended_precision(X):
    centred = X.astype(np.longdouble)
    centred = centred - centred.mean(axis=0)
    return centred.T @ centred


def assert_covariance(moments, wanted, rtol=1e-12):
    np.testing.assert_allclose(
        moments.covariance().numpy(), wanted, rtol=0, atol=rtol * np.abs(wanted).max()
    )


@pytest.mark.parametrize("chunk", [1, 2, 7, 50, 64])
def test_chunks_give_numpys_covariance(chunk):
    X = cloud(50, 4)
    moments = Moments()
    for start in range(0, len(X), chunk):
        assert moments.update(X[start : start + chunk]) is moments
    assert moments.count == 50
    assert len(moments) == 4
    np.testing.assert_allclose(moments.mean.numpy(), X.mean(0), rtol=0, atol=1e-13)
    assert_covariance(moments, np.cov(X.T))
    np.testing.assert_allclose(moments.covariance(ddof=0).numpy(), np.cov(X.T, ddof=0), atol=1e-12)


@SETTINGS
@given(rows_strategy, st.data())
def test_any_split_and_any_order_of_merging_is_the_same(X, data):
    first = data.draw(st.integers(0, len(X)))
    second = data.draw(st.integers(first, len(X)))
    parts = X[:first], X[first:second], X[second:]

    def moments(i):
        return Moments().update(parts[i])

    whole = Moments().update(X)
    left = moments(0).merge(moments(1)).merge(moments(2))
    right = moments(0).merge(moments(1).merge(moments(2)))
    backwards = moments(2).merge(moments(0)).merge(moments(1))
    for other in (left, right, backwards):
        assert_same(other, whole)
    size = 1 + np.abs(X).max() ** 2
    cov = np.atleast_2d(np.cov(X.T))
    np.testing.assert_allclose(whole.covariance().numpy(), cov, rtol=0, atol=1e-12 * size)


@SETTINGS
@given(rows_strategy, st.data())
def test_integer_weights_are_repeated_rows(X, data):
    weights = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(X), max_size=len(X))))
    weighted = Moments().update(X, weights)
    repeated = Moments().update(np.repeat(X, weights, axis=0))
    assert weighted.count == repeated.count == weights.sum()
    if weights.sum():
        assert_same(weighted, repeated)


def test_rows_of_weight_zero_leave_no_trace():
    X = cloud(30, 3)
    weights = np.ones(30)
    weights[10:] = 0
    X[10:] *= 1e6
    assert_same(Moments().update(X, weights), Moments().update(X[:10]))
    only_zero = Moments().update(X[:5], np.zeros(5))
    assert only_zero.count == 0
    assert_same(only_zero.update(X[:10]), Moments().update(X[:10]))


def test_fractional_weights_match_numpy():
    X = cloud(40, 3)
    weights = np.random.default_rng(1).uniform(0.1, 2, size=40)
    moments = Moments().update(X[:13], weights[:13]).update(X[13:], torch.tensor(weights[13:]))
    assert moments.count == pytest.approx(weights.sum(), rel=1e-14)
    np.testing.assert_allclose(moments.mean, np.average(X, axis=0, weights=weights), atol=1e-13)
    biased = np.cov(X.T, aweights=weights, ddof=0)
    np.testing.assert_allclose(moments.covariance(ddof=0), biased, atol=1e-12)
    np.testing.assert_allclose(
        moments.covariance(), biased * weights.sum() / (weights.sum() - 1), atol=1e-12
    )


def drawn_rows(order, deviations, rng):
    """Rows (8000, 24) with these standard deviations; sorted, the first are far from the mean."""
    rows = rng.normal(size=(8000, 24)) * deviations
    return rows[np.argsort(rows[:, 0])] if order == "sorted" else rows


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["drawn", "sorted"])
def test_small_variances_are_right_beside_large_ones_and_a_large_mean(dtype, order):
    rng = np.random.default_rng(0)
    rows = drawn_rows(order, np.logspace(0, -4.5, 24), rng)  # variances over 9 decades
    X = rows @ np.linalg.qr(rng.normal(size=(24, 24)))[0]
    X = (X + 1e3 * X.std(axis=0)).astype(dtype)
    exact = scatter_in_extended_precision(X)
    directions = np.linalg.eigh(exact.astype(np.float64))[1].T.astype(np.longdouble)
    variances = ((directions @ exact) * directions).sum(axis=1)
    error = Moments().update(X).scatter.numpy() - exact
    errors = ((directions @ error) * directions).sum(axis=1)
    assert (np.abs(errors) / variances).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["drawn", "sorted"])
def test_columns_of_very_different_scales_have_their_own_precision(dtype, order):
    deviations = np.logspace(0, -6, 24)  # variances over 12 decades
    rows = drawn_rows(order, deviations, np.random.default_rng(0))
    X = (rows + 1e3 * deviations).astype(dtype)
    exact = scatter_in_extended_precision(X)
    sizes = np.sqrt(exact.diagonal())
    error = Moments().update(X).scatter.numpy() - exact
    assert (np.abs(error) / np.outer(sizes, sizes)).max() < 1e-13


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7, 1e-300])
def test_a_constant_column_has_no_scatter_at_all(monkeypatch, value):
    monkeypatch.setattr(moments_module, "_BLOCK", 6)
    monkeypatch.setattr(moments_module, "_PIVOT_ROWS", 6)
    X = cloud(50, 4)
    X[:, 2] = value
    weights = np.random.default_rng(1).uniform(size=50)
    weights[::7] = 0
    merged = Moments().update(X[:20]).update(X[20:30]).merge(Moments().update(X[30:], weights[30:]))
    for moments in (Moments().update(X), Moments().update(X, weights), merged):
        assert moments.mean[2] == value
        assert not moments.scatter[2].any()
        assert not moments.scatter[:, 2].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_route_of_other_devices_gives_the_same(weighted):
    X = torch.tensor(cloud(50, 4))
    X[:, 2] = 0.1
    weights = torch.linspace(0, 2, 50, dtype=torch.float64) if weighted else None
    elsewhere = Moments()
    for part in (slice(0, 20), slice(20, 50)):
        weight = None if weights is None else weights[part]
        elsewhere._add(moments_module._device_moments(X[part], weight))
    assert_same(elsewhere, Moments().update(X, weights))
    assert not elsewhere.scatter[2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_every_dtype_is_accumulated_in_float64(dtype):
    X = (torch.tensor(cloud(30, 3)) * 8).to(dtype)
    assert_covariance(Moments().update(X), np.cov(X.double().numpy().T))


def test_rows_of_a_running_network_are_taken_without_their_graph():
    X = torch.tensor(cloud(20, 3), requires_grad=True)
    moments = Moments().update(X * 2).update(X)
    assert not moments.scatter.requires_grad
    assert_covariance(
        Moments.from_arrays(moments.to_arrays()),
        np.cov(np.concatenate([2 * X.detach().numpy(), X.detach().numpy()]).T),
    )


def test_neither_merging_nor_updating_touches_its_argument():
    X = cloud(20, 3)
    kept = X.copy()
    other = Moments().update(X[10:])
    before = other.to_arrays()
    empty_first = Moments().merge(other)
    empty_first.update(X[:10])
    Moments().update(X[:10]).merge(other).update(X)
    for name, value in other.to_arrays().items():
        np.testing.assert_array_equal(value, before[name])
    np.testing.assert_array_equal(X, kept)
    assert_same(empty_first, Moments().update(X))


def test_merging_with_itself_doubles_every_row():
    X = cloud(20, 3)
    moments = Moments().update(X)
    assert_same(moments.merge(moments), Moments().update(np.concatenate([X, X])))


def test_empty_moments_are_neutral():
    X = cloud(20, 3)
    whole = Moments().update(X)
    assert_same(Moments().update(X).merge(Moments()), whole)
    assert_same(Moments().merge(Moments().update(X)), whole)
    assert_same(Moments().update(X[:0]).update(X).update(X[:0]), whole)
    nothing = Moments().merge(Moments())
    assert (nothing.count, len(nothing)) == (0, 0)


@pytest.mark.parametrize("copy", ["arrays", "pickle"])
def test_round_trips_keep_every_bit_and_go_on(copy):
    X = cloud(20, 3)
    moments = Moments().update(X[:12], np.linspace(0, 1, 12))
    if copy == "arrays":
        again = Moments.from_arrays(moments.to_arrays())
    else:
        again = pickle.loads(pickle.dumps(moments))
    assert again.count == moments.count
    assert torch.equal(again.mean, moments.mean)
    assert torch.equal(again.scatter, moments.scatter)
    assert_same(again.update(X[12:]), moments.update(X[12:]))


def test_arrays_are_copies():
    moments = Moments().update(cloud(20, 3))
    taken = moments.to_arrays()
    assert {name: value.shape for name, value in taken.items()} == {
        "count": (),
        "mean": (3,),
        "scatter": (3, 3),
        "third": (3,),
        "fourth": (),
    }
    expected, mean = moments.covariance().clone(), moments.mean.clone()
    made = Moments.from_arrays(taken)
    for value in taken.values():
        value[...] = -1
    for other in (moments, made):
        assert torch.equal(other.covariance(), expected)
        assert torch.equal(other.mean, mean)


@pytest.mark.parametrize(
    ("X", "weights", "message"),
    [
        (np.zeros(3), None, r"X has shape \(3,\)"),
        (np.zeros((2, 3, 4)), None, r"X has shape \(2, 3, 4\)"),
        (np.zeros((5, 2)), None, r"X has shape \(5, 2\); \(n_samples, 3\) is needed"),
        (np.zeros((5, 3)), np.ones(4), r"weights has shape \(4,\).*5 rows"),
        (np.zeros((5, 3)), np.ones((5, 1)), r"weights has shape \(5, 1\)"),
        (np.zeros((5, 3)), np.array([1, 1, -1e-9, 1, 1]), "not negative"),
        (np.zeros((5, 3)), np.array([1, 1, np.nan, 1, 1]), "finite"),
        (np.zeros((5, 3)), np.array([1, 1, np.inf, 1, 1]), "finite"),
    ],
)
def test_bad_rows_and_weights_are_refused_and_leave_the_state(X, weights, message):
    moments = Moments().update(cloud(20, 3))
    before = moments.to_arrays()
    with pytest.raises(ValueError, match=message):
        moments.update(X, weights)
    for name, value in moments.to_arrays().items():
        np.testing.assert_array_equal(value, before[name])


def test_other_widths_do_not_merge():
    with pytest.raises(ValueError, match="other has 2 features, this has 3"):
        Moments().update(cloud(9, 3)).merge(Moments().update(cloud(9, 2)))


@pytest.mark.parametrize(("n", "ddof"), [(0, 1), (1, 1), (0, 0), (2, 2)])
def test_covariance_needs_more_rows_than_ddof(n, ddof):
    with pytest.raises(ValueError, match=rf"n_samples={n}: a covariance needs more than {ddof}"):
        Moments().update(cloud(n, 3)).covariance(ddof)


def test_arrays_that_do_not_fit_together_are_refused():
    taken = Moments().update(cloud(20, 3)).to_arrays()
    with pytest.raises(ValueError, match=r"mean has shape \(2,\)"):
        Moments.from_arrays({**taken, "mean": np.zeros(2)})
    with pytest.raises(ValueError, match=r"mean has shape \(3, 1\)"):
        Moments.from_arrays({**taken, "mean": np.zeros((3, 1))})
    with pytest.raises(ValueError, match=r"third has shape \(2,\) and fourth \(\)"):
        Moments.from_arrays({**taken, "third": np.zeros(2)})
    del taken["fourth"]
    with pytest.raises(ValueError, match=r"third has shape \(3,\) and fourth missing"):
        Moments.from_arrays(taken)


def test_mapped_moments_are_those_of_mapped_rows():
    X, rng = cloud(40, 5), np.random.default_rng(1)
    matrix, offset = rng.normal(size=(3, 5)), rng.normal(size=3)
    moments = Moments().update(X)
    before = moments.to_arrays()
    mapped = moments.mapped(matrix, offset)
    wanted = Moments().update(X @ matrix.T + offset)
    assert mapped.third is mapped.fourth is None
    wanted.third = wanted.fourth = None
    assert_same(mapped, wanted)
    for name, array in moments.to_arrays().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("scale", [1e-120, 1.0, 1e120])
@pytest.mark.parametrize("weighted", [False, True])
def test_third_and_fourth_moment_are_those_of_the_centred_rows(monkeypatch, weighted, scale):
    monkeypatch.setattr(moments_module, "_BLOCK", 16)
    monkeypatch.setattr(moments_module, "_PIVOT_ROWS", 16)
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(120, 4)) * [3, 1, 1, 0.1] + np.linspace(0, 40, 120)[:, None] + 1e4
    weights = rng.uniform(0, 3, 120) if weighted else None
    third, fourth = higher_moments(X, weights)

    def moments(*parts):
        whole = Moments()
        for rows in parts:
            whole.update(X[rows] * scale, None if weights is None else weights[rows])
        return whole

    for found in (
        moments(slice(0, 120)),
        moments(slice(0, 1), slice(1, 70), slice(70, 120)),
        moments(slice(70, 120)).merge(moments(slice(0, 70))),
        Moments.from_arrays(moments(slice(0, 50)).to_arrays()).merge(moments(slice(50, 120))),
    ):
        np.testing.assert_allclose(found.third, third, rtol=0, atol=1e-10)
        assert float(found.fourth) == pytest.approx(fourth, rel=1e-10)


def earlier(moments):
    """The same moments as an earlier version saved them."""
    arrays = moments.to_arrays()
    return Moments.from_arrays({name: arrays[name] for name in ("count", "mean", "scatter")})


@pytest.mark.parametrize("make", [earlier, lambda moments: moments.mapped(np.eye(3), np.zeros(3))])
def test_without_the_fourth_moment_there_is_no_corrected_score_but_all_else(make):
    X = cloud(40, 3)
    moments = make(Moments().update(X[:25]))
    assert isoscore(moments) == pytest.approx(isoscore(X[:25]), abs=1e-12)
    for again in (
        moments,
        pickle.loads(pickle.dumps(moments)),
        Moments().merge(moments),
        Moments().update(X[25:]).merge(moments),
        make(Moments().update(X[:25])).update(X[25:]),
    ):
        assert again.third is again.fourth is None
        assert set(again.to_arrays()) == {"count", "mean", "scatter"}
        with pytest.raises(ValueError, match=r"fourth moment.*Moments\(\)\.update\(rows\)"):
            isoscore(again, bias_corrected=True)
    assert_covariance(again, np.cov(X.T))


def test_second_moment_keeps_the_mean():
    X = cloud(40, 5)
    np.testing.assert_allclose(Moments().update(X).second_moment(), X.T @ X / 40, rtol=1e-12)
    with pytest.raises(ValueError, match="n_samples=0"):
        Moments().second_moment()


def test_lists_are_rows_too():
    assert Moments().update([[1.0, 2.0], [3.0, 5.0]]).mean.tolist() == [2.0, 3.5]


def test_rows_of_little_weight_do_not_cost_precision() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 6))
    weights = np.r_[np.full(600, 1e-30), np.ones(2400)]
    found = Moments().update(X + 1e8 * (weights < 1)[:, None], weights=weights)
    expected = Moments().update(X[600:])
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-6)

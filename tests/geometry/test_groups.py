"""The bias-corrected IsoScore of dependent rows, from sums over their groups."""

import itertools

import numpy as np
import pytest
import torch

from isoadapt.geometry import _groups
from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import unbiased_squares

SPREAD = np.array([3.0, 1.0, 0.5])


def sums_of(X, owners, pivot=None):
    """Sums of rows that are given in the order of the groups."""
    rows = X[np.argsort(owners, kind="stable")]
    sums = GroupSums(torch.tensor(X.mean(0) if pivot is None else pivot), unit=2.0)
    sums.update(lambda start, stop: rows[start:stop], np.unique(owners, return_counts=True)[1])
    return sums


def estimates(X, owners, **kwargs):
    return 16 * torch.stack(sums_of(X, owners, **kwargs).squares()).numpy()


def over_all_quadruples(X, owners):
    """Means of ‖a-b‖²‖c-e‖²/4 and ((a-b)ᵀ(c-e))²/4 over rows of four different groups."""
    rows = [
        four for four in itertools.permutations(range(len(X)), 4) if len({*owners[[*four]]}) == 4
    ]
    a, b, c, e = X[np.array(rows)].swapaxes(0, 1)
    first, second = a - b, c - e
    traces = (first**2).sum(1) * (second**2).sum(1) / 4
    return np.array([traces.mean(), ((first * second).sum(1) ** 2 / 4).mean()])


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (2, 2, 2, 2, 2), (1, 6, 2, 1, 3), (5, 1, 1, 1, 1, 1)]
)
@pytest.mark.parametrize("rows", [256, 4, 1])
def test_sums_give_the_mean_over_all_quadruples(sizes, rows, monkeypatch):
    monkeypatch.setattr(_groups, "_ROWS", rows)
    rng = np.random.default_rng(len(sizes))
    owners = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.normal(size=(len(owners), 3)) * SPREAD + 7
    expected = over_all_quadruples(X, owners)
    for pivot in (None, X[0] + 1):
        np.testing.assert_allclose(estimates(X, owners, pivot=pivot), expected, rtol=1e-9)


def test_rows_that_are_each_a_group_are_independent_rows():
    X = np.random.default_rng(0).normal(size=(40, 3)) * SPREAD
    cov = torch.from_numpy(np.cov(X.T))
    fourth = torch.tensor((((X - X.mean(0)) ** 2).sum(1) ** 2).sum() / 39)
    expected = unbiased_squares(cov.trace(), cov.square().sum(), fourth, 40)
    np.testing.assert_allclose(estimates(X, np.arange(40)), torch.stack(expected), rtol=1e-12)


def test_fewer_than_four_groups_have_no_score():
    X = np.random.default_rng(0).normal(size=(12, 3))
    assert np.isnan(sums_of(X, np.arange(12) % 3).score(3))
    assert sums_of(X, np.arange(12) % 4).score(3) >= 0


def draw(rng, n_groups):
    """Rows of groups of unequal size that share a part of each row; their covariance is known."""
    sizes = np.minimum(1 + rng.pareto(1.2, n_groups).astype(int), 20)
    owners = np.repeat(np.arange(n_groups), sizes)
    shared = rng.standard_t(6, size=(n_groups, 3)) / np.sqrt(1.5)
    own = rng.normal(size=(len(owners), 3))
    return (0.8 * shared[owners] + 0.6 * own) * SPREAD, owners


@pytest.mark.parametrize(
    ("n_groups", "repeats"), [(12, 300), pytest.param(6, 5000, marks=pytest.mark.slow)]
)
def test_both_estimates_are_unbiased(n_groups, repeats):
    rng = np.random.default_rng(0)
    found = np.array([estimates(*draw(rng, n_groups)) for _ in range(repeats)])
    truth = np.array([(SPREAD**2).sum() ** 2, (SPREAD**4).sum()])
    error = found.std(0) / repeats**0.5
    assert (abs(found.mean(0) - truth) < 3 * error).all()
    assert (error < 0.1 * truth).all()

"""The bias-corrected IsoScore of dependent rows, from sums over their groups."""

import numpy as np
import pytest
import torch

from isoadapt.geometry._groups import GroupSums
from isoadapt.geometry._spread import unbiased_squares
from tests.geometry.examples import over_all_quadruples
from tests.small_blocks import small_blocks

SPREAD = np.array([3.0, 1.0, 0.5])


def sums_of(X, owners, pivot=None):
    """Sums of rows that are given in the order of the groups."""
    rows = X[np.argsort(owners, kind="stable")]
    sums = GroupSums(torch.tensor(X.mean(0) if pivot is None else pivot), unit=2.0)
    sums.update(lambda start, stop: rows[start:stop], np.unique(owners, return_counts=True)[1])
    return sums


def estimates(X, owners, **kwargs):
    return 16 * torch.stack(sums_of(X, owners, **kwargs).squares()).numpy()


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 2, 2, 2), (1, 4, 2, 1, 3), (5, 1, 1, 1, 1)])
def test_sums_give_the_mean_over_all_quadruples(sizes):
    rng = np.random.default_rng(len(sizes))
    owners = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.normal(size=(len(owners), 3)) * SPREAD + 7
    expected = over_all_quadruples(X, owners)
    for rows, pivot in ((256, None), (4, X[0] + 1), (1, None)):  # groups in one block or several
        with small_blocks(groups=rows):
            np.testing.assert_allclose(estimates(X, owners, pivot=pivot), expected, rtol=1e-9)


def test_rows_that_are_each_a_group_are_independent_rows():
    X = np.random.default_rng(0).normal(size=(40, 3)) * SPREAD
    cov = torch.from_numpy(np.cov(X.T))
    fourth = torch.tensor((((X - X.mean(0)) ** 2).sum(1) ** 2).sum() / 39)
    expected = unbiased_squares(cov.trace(), cov.square().sum(), fourth, 40)
    np.testing.assert_allclose(estimates(X, np.arange(40)), torch.stack(expected), rtol=1e-12)


def test_fewer_than_four_groups_have_no_score():
    X = np.random.default_rng(0).normal(size=(12, 3))
    for n_groups in (1, 2, 3):
        assert np.isnan(sums_of(X, np.arange(12) % n_groups).score(3))
    assert sums_of(X, np.arange(12) % 4).score(3) >= 0

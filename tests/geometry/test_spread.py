"""Partition function against numpy's eigenvectors, overflow and chunks; and dead dimensions."""

import math

import numpy as np
import pytest
import torch

from isoadapt.geometry._spread import DEAD, dead_dimensions, log_partition
from isoadapt.metrics import partition_dispersion, partition_isotropy
from tests.geometry.examples import cloud
from tests.small_blocks import small_blocks


def axes_of(X):
    """Unit eigenvectors of XᵀX as columns, their largest entries positive."""
    _, V = np.linalg.eigh(X.T @ X)
    return V * np.sign(V[np.abs(V).argmax(0), np.arange(V.shape[1])])


@pytest.mark.parametrize(
    ("shape", "offset"), [((40, 6), 2.0), ((7, 7), 0.0), ((25, 5), 0.0), ((6, 40), 2.0)]
)
def test_both_figures_equal_the_definition(shape, offset):
    X = cloud(*shape, offset=offset)
    Z = np.exp(X @ axes_of(X)).sum(0)
    assert partition_isotropy(X) == pytest.approx(Z.min() / Z.max(), rel=1e-9)
    assert partition_dispersion(X) == pytest.approx(Z.std() / Z.mean(), rel=1e-9)


def test_isotropic_clouds_are_perfect():
    axes = np.concatenate([np.eye(5), -np.eye(5)])
    for X in (axes, np.zeros((3, 4))):
        assert partition_isotropy(X) == pytest.approx(1, abs=1e-12)
        assert partition_dispersion(X) == pytest.approx(0, abs=1e-12)


def test_signs_make_the_largest_entry_positive_and_of_equal_ones_the_first():
    X = np.outer([1.0, 1.0, 2.0], [0.6, -0.8])  # the axis is (-0.6, 0.8), not its opposite
    wanted = np.log([np.exp([-1.0, -1.0, -2.0]).sum(), 3])
    np.testing.assert_allclose(np.sort(log_partition(torch.tensor(X))), np.sort(wanted), atol=1e-12)
    X = np.array([[1.0, -1.0], [2.0, -2.0], [4.0, -4.0]])
    noisy = X * (1 + 1e-14 * np.array([[0, 1], [1, 0], [0, 1]]))
    for points in (X, noisy):
        largest = float(log_partition(torch.tensor(points)).max())
        wanted = np.log(np.exp(np.array([1, 2, 4]) * math.sqrt(2)).sum())
        assert largest == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("scale", [1e4, 1e180])
def test_nothing_overflows(scale):
    X = cloud(40, 6)
    V, X = axes_of(X), X * scale
    log_z = log_partition(torch.tensor(X))
    np.testing.assert_allclose(log_z, (X @ V).max(0), rtol=1e-3)  # log-sum-exp nears the maximum
    assert partition_isotropy(X) == 0
    assert 0 < partition_dispersion(X) <= math.sqrt(5) + 1e-12  # one axis has it all


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_chunks_do_not_matter(chunk):
    X = torch.tensor(cloud(40, 6))
    whole = log_partition(X)
    with small_blocks(partition=chunk):
        torch.testing.assert_close(log_partition(X), whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_dead_are_dimensions_of_no_more_than_a_share_of_the_total_variance(scale):
    variances = np.array([4.0, 0.0, 12.01 * DEAD, 11.99 * DEAD, 4.0, 4.0]) * scale
    expected = [False, True, False, True, False, False]  # the total is 12
    assert dead_dimensions(variances).tolist() == expected
    assert dead_dimensions(torch.from_numpy(variances)).tolist() == expected

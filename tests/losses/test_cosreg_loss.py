"""CosRegLoss against the sum over all pairs, and what it does not see."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.autograd import gradcheck

from isoadapt.losses import CosRegLoss
from tests.losses.examples import cloud


def all_pairs(Z):
    total = 0.0
    for i, a in enumerate(Z):
        for j, b in enumerate(Z):
            if i != j and a.norm() > 0 and b.norm() > 0:
                total += float(a @ b / a.norm() / b.norm())
    return total / len(Z) ** 2


@pytest.mark.parametrize(("n", "d"), [(2, 2), (5, 3), (3, 8), (20, 7)])
def test_equals_the_double_loop(n, d):
    Z = cloud(n, d)
    Z[0] = 0.0
    assert float(CosRegLoss()(Z)) == pytest.approx(all_pairs(Z), abs=1e-14)
    Z[-1] = Z[1]
    assert float(CosRegLoss()(Z)) == pytest.approx(all_pairs(Z), abs=1e-14)


def test_members_are_independent():
    Z = cloud(2, 3, 6, 4)
    values = CosRegLoss()(Z)
    assert values.shape == (2, 3)
    assert float(values[1, 2]) == pytest.approx(all_pairs(Z[1, 2]))


def test_gradient():
    assert gradcheck(CosRegLoss(), cloud(6, 4).requires_grad_())


def test_zero_rows_have_no_gradient_and_disturb_no_other():
    Z = cloud(6, 4)
    with_zero = torch.cat([Z, torch.zeros(1, 4, dtype=Z.dtype)]).requires_grad_()
    (gradient,) = torch.autograd.grad(CosRegLoss()(with_zero), with_zero)
    alone = Z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(CosRegLoss()(alone), alone)
    assert not gradient[-1].any()
    torch.testing.assert_close(gradient[:-1], expected * (6 / 7) ** 2)


def test_single_row_and_no_row_cost_nothing():
    assert float(CosRegLoss()(cloud(1, 4))) == pytest.approx(0.0, abs=1e-15)
    assert float(CosRegLoss()(torch.zeros(0, 4))) == 0.0


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(2, 7))
def test_invariances(seed, n, d):
    """Rotation, order and the length of each row do not count; the mean does."""
    rng = np.random.default_rng(seed)
    Z = cloud(n, d, seed=seed)
    value = float(CosRegLoss()(Z))
    turn = torch.tensor(np.linalg.qr(rng.normal(size=(d, d)))[0])
    lengths = torch.tensor(rng.uniform(0.1, 10, size=(n, 1)))
    for same in (Z @ turn, Z[rng.permutation(n)], Z * lengths):
        assert float(CosRegLoss()(same)) == pytest.approx(value, abs=1e-12)
    far = Z + 1e6 * turn[0]
    assert float(CosRegLoss()(far)) == pytest.approx((n - 1) / n, abs=1e-4)

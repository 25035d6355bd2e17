"""What all penalties have in common: points, members, precision, gradients, invariances, errors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.autograd import gradcheck

from isoadapt import losses
from tests.losses.examples import cloud, value_and_gradient
from tests.refusals import refusals

LOSSES = [losses.CosRegLoss(), losses.IsoScoreLoss(0.1), losses.SpectrumControlLoss(c1=2.0)]
LOSSES += [losses.IsoScoreLoss(form="linear", bias_corrected=True)]
LOSSES += [losses.PersistentEntropyLoss(bars) for bars in ("selected", "all")]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
class TestEveryPenalty:
    @pytest.mark.parametrize("Z", [torch.zeros(5), np.zeros((6, 5))], ids=type)
    def test_points_must_be_a_tensor_of_rows(self, loss, Z):
        with pytest.raises(ValueError, match="Z is"):
            loss(Z)

    def test_each_member_has_the_loss_and_gradient_it_has_alone(self, loss):
        Z = cloud(2, 2, 13, 5)
        values, gradients = value_and_gradient(loss, Z)
        assert values.shape == (2, 2)
        for place in np.ndindex(2, 2):
            alone, its = value_and_gradient(loss, Z[place])
            torch.testing.assert_close(values[place], alone, rtol=0, atol=1e-13)
            torch.testing.assert_close(gradients[place], its, rtol=0, atol=1e-13)

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_points_that_are_not_finite_spoil_their_member_alone(self, loss, bad):
        Z = cloud(3, 13, 5)
        Z[1, 4, 2] = bad
        values, gradients = value_and_gradient(loss, Z)
        assert values.isnan().tolist() == [False, True, False]
        assert gradients[[0, 2]].isfinite().all()
        torch.testing.assert_close(values[2], loss(Z[2]))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_computed_in_float32(self, loss, dtype):
        for Z in (cloud(30, 6).to(dtype), cloud(1, 6).to(dtype)):
            value, gradient = value_and_gradient(loss, Z)
            wide, wide_gradient = value_and_gradient(loss, Z.float())
            assert value.dtype == torch.float32
            assert float(value) == float(wide)
            assert torch.equal(gradient, wide_gradient.to(dtype))

    @pytest.mark.parametrize("shape", [(20, 5), (5, 20)])
    def test_autocast_changes_nothing(self, loss, shape):
        Z = cloud(*shape, dtype=torch.float32)
        expected, expected_gradient = value_and_gradient(loss, Z)
        Z.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(Z)
        (gradient,) = torch.autograd.grad(value, Z)
        torch.testing.assert_close(value.detach(), expected)
        torch.testing.assert_close(gradient, expected_gradient)

    @pytest.mark.parametrize("shape", [(9, 4), (2, 6, 11)])
    def test_gradient_is_right_and_descent_follows_it(self, loss, shape):
        Z = cloud(*shape, decay=2.0)  # decays enough for no clamp to act
        value, gradient = value_and_gradient(loss, Z)
        assert bool((loss(Z - 1e-4 * gradient / gradient.norm()) < value).all())
        assert gradcheck(loss, Z.requires_grad_())

    @settings(max_examples=8, derandomize=True, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(5, 12), st.integers(2, 7))
    def test_neither_rotations_nor_the_order_of_rows_count(self, loss, seed, n, d):
        rng = np.random.default_rng(seed)
        Z = cloud(n, d, seed=seed)
        turn = torch.tensor(np.linalg.qr(rng.normal(size=(d, d)))[0])
        for same in (Z @ turn, Z[rng.permutation(n)]):
            torch.testing.assert_close(loss(same), loss(Z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        losses.IsoScoreLoss,
        lambda: losses.IsoScoreLoss(form="linear", bias_corrected=True),
        losses.PersistentEntropyLoss,
        lambda: losses.PersistentEntropyLoss("all"),
    ],
)
def test_a_member_of_equal_rows_costs_nothing_and_is_counted_in_a_buffer(make):
    loss, again, good = make(), make(), cloud(2, 13, 5)
    Z = torch.stack([good[0], torch.full((13, 5), 0.1, dtype=torch.float64), good[1]])
    values, gradients = value_and_gradient(loss, Z)
    assert float(values[1]) == 0
    assert not gradients[1].any()
    again.load_state_dict(loss.state_dict())
    assert again.n_degenerate == 1
    alone, its = value_and_gradient(make(), good)  # the others are as they are alone
    torch.testing.assert_close(values[[0, 2]], alone, rtol=0, atol=1e-13)
    torch.testing.assert_close(gradients[[0, 2]], its, rtol=0, atol=1e-13)


test_bad_parameters_are_named = refusals(
    (lambda: losses.IsoScoreLoss(zeta=-0.1), "zeta"),
    (lambda: losses.IsoScoreLoss(zeta=torch.tensor([0.5, 1.1])), "zeta"),
    (lambda: losses.IsoScoreLoss(form="mean"), "form"),
    (lambda: losses.PersistentEntropyLoss(bars="some"), "bars"),
    (lambda: losses.SpectrumControlLoss(decay="linear"), "decay"),
    (lambda: losses.SpectrumControlLoss(c1=0.0), "c1"),
    (lambda: losses.SpectrumControlLoss(c2=math.nan), "c2"),
    (lambda: losses.SpectrumControlLoss(gamma=math.nan), "gamma"),
    (lambda: losses.JointLoss(weight=1.0, balance="mean"), "balance"),
    (lambda: losses.JointLoss(weight=1.0, smoothing=0), "smoothing"),
)

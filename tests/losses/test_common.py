"""What all penalties have in common: their points, members and precision."""

import math

import numpy as np
import pytest
import torch

from isoadapt.losses import (
    CosRegLoss,
    IsoScoreLoss,
    PersistentEntropyLoss,
    SpectrumControlLoss,
)
from tests.losses.examples import cloud, value_and_gradient

LOSSES = [
    CosRegLoss(),
    IsoScoreLoss(),
    IsoScoreLoss(form="linear", bias_corrected=True),
    PersistentEntropyLoss(),
    PersistentEntropyLoss("all"),
    SpectrumControlLoss(c1=2.0),
]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
class TestEveryPenalty:
    @pytest.mark.parametrize("Z", [torch.zeros(()), torch.zeros(5), np.zeros((6, 5))], ids=type)
    def test_points_must_be_a_tensor_of_rows(self, loss, Z):
        with pytest.raises(ValueError, match=r"it must be a tensor of shape \(\.\.\., n, d\)"):
            loss(Z)

    def test_each_member_has_the_loss_and_gradient_it_has_alone(self, loss):
        Z = cloud(3, 13, 5)
        values, gradients = value_and_gradient(loss, Z)
        for z, value, gradient in zip(Z, values, gradients, strict=True):
            alone, its = value_and_gradient(loss, z)
            torch.testing.assert_close(value, alone, rtol=0, atol=1e-13)
            torch.testing.assert_close(gradient, its, rtol=0, atol=1e-13)

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


@pytest.mark.parametrize("loss", [IsoScoreLoss, PersistentEntropyLoss])
def test_the_count_of_degenerate_clouds_is_a_buffer(loss):
    counted, again = loss(), loss()
    counted(torch.zeros(3, 8, 5))
    again.load_state_dict(counted.state_dict())
    assert again.n_degenerate == 3
    assert list(again.parameters()) == []

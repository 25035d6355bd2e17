"""IsoScoreLoss: its values, and what it does where IsoScore is not defined."""

import math

import pytest
import torch

from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.losses import IsoScoreLoss
from tests.losses.examples import cloud, value_and_gradient

FORMS = ("log", "linear")


@pytest.mark.parametrize(
    ("members", "zeta", "bias_corrected"), [((), 0.0, False), ((3,), 0.3, False), ((2,), 0.3, True)]
)
def test_values_are_minus_log_and_one_minus_the_score(members, zeta, bias_corrected):
    Z = cloud(*members, 9, 5, decay=1.0)
    prior_cov = torch.cov(cloud(30, 5, seed=1).T)
    score = isoscore_star(Z, prior_cov, zeta, bias_corrected)
    log, linear = (IsoScoreLoss(zeta, form, bias_corrected) for form in FORMS)
    torch.testing.assert_close(log(Z, prior_cov), -score.log(), rtol=0, atol=1e-13)
    torch.testing.assert_close(linear(Z, prior_cov), 1 - score, rtol=0, atol=1e-13)
    assert log.n_degenerate == linear.n_degenerate == 0
    torch.testing.assert_close(IsoScoreLoss()(Z), -isoscore_star(Z).log(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 40])
def test_rank_one_is_floored_before_the_log(n, dtype):
    line = torch.linspace(-1, 3, n, dtype=dtype)[:, None] * torch.arange(1, 9, dtype=dtype)
    value, gradient = value_and_gradient(IsoScoreLoss(), line)
    assert float(value) == pytest.approx(-math.log(1e-6), rel=1e-6)
    assert not gradient.any()
    assert float(IsoScoreLoss(form="linear")(line)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("Z", "parameters"),
    [
        pytest.param(torch.full((8, 5), 0.1), {}, id="constant"),
        pytest.param(torch.full((5000, 7), 0.1), {}, id="constant, many rows"),
        pytest.param(cloud(1, 300).float().expand(6, 300), {}, id="constant, wide"),
        pytest.param(torch.full((8, 5), 1e9), {}, id="constant, large"),
        pytest.param(torch.full((8, 5), 0.1), {"bias_corrected": True}, id="constant, corrected"),
        pytest.param(torch.zeros(8, 5), {}, id="zero"),
        pytest.param(cloud(1, 5).float(), {}, id="single row"),
        pytest.param(cloud(2, 5).float(), {}, id="two rows"),
        pytest.param(cloud(3, 5).float(), {"bias_corrected": True}, id="three rows, corrected"),
        pytest.param(cloud(9, 1).float(), {}, id="one feature"),
    ],
)
def test_degenerate_clouds_cost_nothing_with_zero_gradient_and_are_counted(Z, parameters):
    for form in FORMS:
        loss = IsoScoreLoss(form=form, **parameters)
        value, gradient = value_and_gradient(loss, Z)
        assert float(value) == 0
        assert torch.equal(gradient, torch.zeros_like(Z))
        assert loss.n_degenerate == 1
        loss(torch.stack([Z, Z]))
        assert loss.n_degenerate == 3


def test_two_rows_or_equal_rows_have_a_penalty_where_a_shrinkage_covariance_is_mixed_in():
    loss = IsoScoreLoss(torch.tensor([0.0, 0.3]))
    values, gradients = value_and_gradient(loss, cloud(2, 2, 5, dtype=torch.float32))
    assert float(values[0]) == 0 < float(values[1])
    assert not gradients[0].any()
    assert bool(gradients[1].any())
    assert loss.n_degenerate == 1
    loss, prior_cov = IsoScoreLoss(zeta=0.2, form="linear"), torch.diag(torch.tensor([3.0, 1.0]))
    assert float(loss(torch.full((8, 2), 0.5), prior_cov)) == pytest.approx(1 - 0.6, abs=1e-6)
    assert loss.n_degenerate == 0


def test_points_whose_covariance_overflows_have_no_penalty():
    loss = IsoScoreLoss(zeta=0.2)
    assert loss(cloud(9, 5, dtype=torch.float32) * 1e10).isnan()
    assert loss.n_degenerate == 0

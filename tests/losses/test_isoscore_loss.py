"""IsoScoreLoss: its values, its gradients, and what it does where IsoScore is not defined."""

import math
from functools import partial

import pytest
import torch

from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.losses import IsoScoreLoss
from tests.losses import examples
from tests.losses.examples import value_and_gradient

cloud = partial(examples.cloud, decay=1.0)
gradcheck = partial(torch.autograd.gradcheck, fast_mode=True)  # of random combinations


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("zeta", [0.0, 0.3])
@pytest.mark.parametrize("members", [(), (3,), (2, 3)])
def test_values_are_minus_log_and_one_minus_the_score(members, zeta, bias_corrected):
    Z = cloud(*members, 9, 5)
    prior_cov = torch.cov(cloud(30, 5, seed=1).T)
    score = isoscore_star(Z, prior_cov, zeta, bias_corrected)
    log = IsoScoreLoss(zeta, "log", bias_corrected)
    linear = IsoScoreLoss(zeta, "linear", bias_corrected)
    assert log(Z, prior_cov).shape == members
    torch.testing.assert_close(log(Z, prior_cov), -score.log(), rtol=0, atol=1e-13)
    torch.testing.assert_close(linear(Z, prior_cov), 1 - score, rtol=0, atol=1e-13)
    assert log.n_degenerate == linear.n_degenerate == 0


def test_defaults_are_the_isotropy_layers():
    Z = cloud(9, 5)
    torch.testing.assert_close(IsoScoreLoss()(Z), -isoscore_star(Z).log(), rtol=0, atol=0)


def test_a_more_isotropic_cloud_costs_less_and_descent_makes_it_so():
    Z = cloud(40, 5)
    for form in ("log", "linear"):
        loss = IsoScoreLoss(form=form)
        value, gradient = value_and_gradient(loss, Z)
        assert float(loss(Z - 1e-3 * gradient / gradient.norm())) < float(value)
        assert float(loss(torch.randn(4000, 5, generator=torch.Generator().manual_seed(0)))) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 40])
def test_rank_one_is_floored_before_the_log(n, dtype):
    line = torch.linspace(-1, 3, n, dtype=dtype)[:, None] * torch.arange(1, 9, dtype=dtype)
    value, gradient = value_and_gradient(IsoScoreLoss(), line)
    assert float(value) == pytest.approx(-math.log(1e-6), rel=1e-6)
    assert not gradient.any()
    assert float(IsoScoreLoss(form="linear")(line)) == pytest.approx(1, abs=1e-5)


def test_isotropic_clouds_cost_nothing_and_never_less():
    for d in range(2, 30):
        axes = torch.cat([torch.eye(d), -torch.eye(d)])
        for form in ("log", "linear"):
            assert 0 <= float(IsoScoreLoss(form=form)(axes)) < 1e-6
            assert float(IsoScoreLoss(0.0, form, True)(axes)) == 0


@pytest.mark.parametrize("bias_corrected", [False, True])
@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("shape", [(9, 4), (5, 12), (3, 5, 12), (2, 2, 9, 4)])
def test_gradcheck(shape, form, bias_corrected):
    Z = cloud(*shape).requires_grad_()
    loss = IsoScoreLoss(0.1, form, bias_corrected)
    prior_cov = torch.cov(cloud(30, shape[-1], seed=1).T).requires_grad_()
    assert gradcheck(lambda z: loss(z), Z)
    assert gradcheck(loss, (Z, prior_cov))
    assert loss.n_degenerate == 0


DEGENERATE = {
    "constant": (torch.full((8, 5), 0.1), {}),
    "constant, many rows": (torch.full((5000, 7), 0.1), {}),
    "constant, wide": (torch.full((6, 300), 0.1), {}),
    "constant rows of different entries": (cloud(1, 40, dtype=torch.float32).expand(33, 40), {}),
    "constant, corrected": (torch.full((8, 5), 0.1), {"bias_corrected": True}),
    "zero": (torch.zeros(8, 5), {}),
    "single row": (cloud(1, 5, dtype=torch.float32), {}),
    "two rows": (cloud(2, 5, dtype=torch.float32), {}),
    "three rows, corrected": (cloud(3, 5, dtype=torch.float32), {"bias_corrected": True}),
    "one feature": (cloud(9, 1, dtype=torch.float32), {}),
}


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_clouds_cost_nothing_with_zero_gradient_and_are_counted(case, form):
    Z, parameters = DEGENERATE[case]
    loss = IsoScoreLoss(form=form, **parameters)
    value, gradient = value_and_gradient(loss, Z)
    assert float(value) == 0
    assert torch.equal(gradient, torch.zeros_like(Z))
    assert loss.n_degenerate == 1
    loss(torch.stack([Z, Z]))
    assert loss.n_degenerate == 3


def test_two_rows_have_a_penalty_where_a_shrinkage_covariance_is_mixed_in():
    Z = cloud(2, 2, 5, dtype=torch.float32)
    loss = IsoScoreLoss(torch.tensor([0.0, 0.3]))
    values, gradients = value_and_gradient(loss, Z)
    assert float(values[0]) == 0 < float(values[1])
    assert not gradients[0].any()
    assert bool(gradients[1].any())
    assert loss.n_degenerate == 1


def test_points_whose_covariance_overflows_have_no_penalty():
    loss = IsoScoreLoss(zeta=0.2)
    assert loss(cloud(9, 5, dtype=torch.float32) * 1e10).isnan()
    assert loss.n_degenerate == 0


def test_large_points_that_are_equal_have_no_spread():
    loss = IsoScoreLoss()
    assert float(loss(torch.full((8, 5), 1e9))) == 0
    assert loss.n_degenerate == 1


def test_integers_have_the_penalty_of_equal_floating_point_numbers():
    Z = torch.arange(15).reshape(5, 3) % 4
    assert float(IsoScoreLoss()(Z)) == float(IsoScoreLoss()(Z.float())) > 0


@pytest.mark.parametrize("form", ["log", "linear"])
@pytest.mark.parametrize("bias_corrected", [False, True])
def test_a_member_without_spread_leaves_the_others_as_they_are(form, bias_corrected):
    good = cloud(2, 8, 5, dtype=torch.float32)
    Z = torch.stack([good[0], torch.full((8, 5), 0.1), good[1]])
    loss = IsoScoreLoss(0.0, form, bias_corrected)
    values, gradients = value_and_gradient(loss, Z)
    assert loss.n_degenerate == 1
    assert float(values[1]) == 0
    assert not gradients[1].any()
    alone, its = value_and_gradient(loss, good)
    assert loss.n_degenerate == 1
    torch.testing.assert_close(values[[0, 2]], alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(gradients[[0, 2]], its, rtol=0, atol=1e-6)
    assert bool((values[[0, 2]] > 0).all())


def test_constant_rows_have_a_score_once_a_shrinkage_covariance_is_mixed_in():
    loss = IsoScoreLoss(zeta=0.2, form="linear")
    prior_cov = torch.diag(torch.tensor([3.0, 1.0]))
    assert float(loss(torch.full((8, 2), 0.5), prior_cov)) == pytest.approx(1 - 0.6, abs=1e-6)
    assert loss.n_degenerate == 0


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"zeta": -0.1}, r"zeta=-0.1 must lie in \[0, 1\]"),
        ({"zeta": 1.1}, r"zeta=1.1 must lie in \[0, 1\]"),
        ({"zeta": float("nan")}, "zeta=nan"),
        ({"form": "mean"}, "form='mean' must be 'log' or 'linear'"),
        ({"form": None}, "form=None"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        IsoScoreLoss(**parameters)

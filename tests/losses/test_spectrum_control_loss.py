"""SpectrumControlLoss against singular values from NumPy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.autograd import gradcheck

from isoadapt.losses import SpectrumControlLoss
from tests.losses.examples import cloud


def by_hand(Z, decay, c1, c2=0.01, gamma=None, per_row=True):
    values = np.linalg.svd(np.asarray(Z), compute_uv=False)
    total = 0.0
    for k, value in enumerate(values, start=1):
        sigma = value / math.sqrt(len(Z)) if per_row else value
        if decay == "polynomial":
            target = c1 * k ** (-0.5 if gamma is None else gamma)
        else:
            target = c1 * math.exp(-c2 * k ** (1 if gamma is None else gamma))
        total += (sigma - target) ** 2
    return total


@pytest.mark.parametrize("decay", ["polynomial", "exponential"])
@pytest.mark.parametrize(("n", "d"), [(9, 4), (4, 9), (5, 5), (2, 3)])
@pytest.mark.parametrize("options", [{}, {"c2": 0.3, "gamma": -1.0, "per_row": False}])
def test_equals_the_formula(n, d, decay, options):
    Z = cloud(n, d)
    loss = SpectrumControlLoss(decay, c1=1.7, **options)
    assert float(loss(Z)) == pytest.approx(by_hand(Z, decay, 1.7, **options), rel=1e-12)


def test_scale_comes_from_the_first_call():
    Z = cloud(3, 20, 5)
    loss = SpectrumControlLoss()
    assert loss.c1.isnan()
    first = loss(Z)
    largest = torch.linalg.svdvals(Z)[:, 0] / math.sqrt(20)
    torch.testing.assert_close(loss.c1, largest)
    for member in range(3):
        expected = by_hand(Z[member], "polynomial", float(largest[member]))
        assert float(first[member]) == pytest.approx(expected)
    loss(10 * Z)
    torch.testing.assert_close(loss.c1, largest)
    restored = SpectrumControlLoss()
    restored.load_state_dict(loss.state_dict())
    torch.testing.assert_close(restored(10 * Z), loss(10 * Z))


@pytest.mark.parametrize("first", [0.0, float("nan"), float("inf")])
def test_scale_waits_for_finite_points_that_are_not_all_zero(first):
    Z = cloud(3, 20, 5)
    loss = SpectrumControlLoss()
    early = Z.clone()
    early[1] = first
    early.requires_grad_()
    value = loss(early)
    assert (float(value[1].detach()) == 0) if first == 0 else value[1].isnan()
    (gradient,) = torch.autograd.grad(value[[0, 2]].sum() + value[1].nan_to_num(), early)
    assert gradient[[0, 2]].isfinite().all()
    assert loss.c1.isnan().tolist() == [False, True, False]
    later = loss(2 * Z)
    known = loss.c1.clone()
    assert known.isfinite().all()
    assert float(later[1]) == pytest.approx(
        by_hand(2 * Z[1], "polynomial", float(torch.linalg.svdvals(2 * Z[1])[0]) / math.sqrt(20))
    )
    loss(3 * Z)
    torch.testing.assert_close(loss.c1, known)
    assert float(SpectrumControlLoss()(torch.zeros(0, 5))) == 0


def test_nothing_is_to_be_paid_at_the_target_and_descent_leads_there():
    loss = SpectrumControlLoss("exponential", c1=2.0, c2=0.5, per_row=False)
    Z = torch.diag(loss.target(4))
    assert float(loss(Z)) == pytest.approx(0.0, abs=1e-12)
    Z = cloud(6, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert float(loss((Z - 0.1 * gradient).detach())) < float(loss(Z.detach()))


def test_gradient_also_where_singular_values_are_equal():
    loss = SpectrumControlLoss(c1=2.0)
    assert gradcheck(loss, cloud(6, 4).requires_grad_())
    assert gradcheck(loss, cloud(3, 5).requires_grad_())
    Z = torch.eye(3, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(Z), Z)
    assert gradient.isfinite().all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(2, 7), st.floats(0.1, 10))
def test_invariances(seed, n, d, scale):
    """Rotation and order do not count; scale counts squared, with the target's."""
    rng = np.random.default_rng(seed)
    Z = cloud(n, d, seed=seed)
    loss = SpectrumControlLoss(c1=1.3)
    value = float(loss(Z))
    turn = torch.tensor(np.linalg.qr(rng.normal(size=(d, d)))[0])
    twice = [torch.cat([Z, Z])] if n >= d else []
    for same in (Z @ turn, Z[rng.permutation(n)], *twice):
        assert float(loss(same)) == pytest.approx(value, rel=1e-9)
    scaled = SpectrumControlLoss(c1=1.3 * scale)
    assert float(scaled(scale * Z)) == pytest.approx(scale**2 * value, rel=1e-6)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"decay": "linear"}, "decay='linear' must be 'polynomial' or 'exponential'"),
        ({"c1": 0.0}, "c1=0.0 must be above zero and finite"),
        ({"c2": float("nan")}, "c2=nan must be above zero"),
        ({"gamma": float("nan")}, "gamma=nan must be finite"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        SpectrumControlLoss(**parameters)

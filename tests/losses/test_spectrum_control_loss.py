"""SpectrumControlLoss against singular values from NumPy."""

import math

import numpy as np
import pytest
import torch

from isoadapt.losses import SpectrumControlLoss
from tests.losses.examples import cloud, value_and_gradient


def by_hand(Z, decay, c1, c2=0.01, gamma=None, per_row=True):
    values = np.linalg.svd(Z.numpy(), compute_uv=False) / (math.sqrt(len(Z)) if per_row else 1)
    k = np.arange(1.0, len(values) + 1)
    if decay == "polynomial":
        target = c1 * k ** (-0.5 if gamma is None else gamma)
    else:
        target = c1 * np.exp(-c2 * k ** (1 if gamma is None else gamma))
    return float(((values - target) ** 2).sum())


@pytest.mark.parametrize("decay", ["polynomial", "exponential"])
@pytest.mark.parametrize(("n", "d"), [(9, 4), (4, 9)])
@pytest.mark.parametrize("options", [{}, {"c2": 0.3, "gamma": -1.0, "per_row": False}])
def test_equals_the_formula(n, d, decay, options):
    Z = cloud(n, d)
    loss = SpectrumControlLoss(decay, c1=1.7, **options)
    assert float(loss(Z)) == pytest.approx(by_hand(Z, decay, 1.7, **options), rel=1e-12)


def test_scale_comes_from_the_first_call():
    Z, loss, restored = cloud(3, 20, 5), SpectrumControlLoss(), SpectrumControlLoss()
    values = loss(Z)
    largest = torch.linalg.svdvals(Z)[:, 0] / math.sqrt(20)
    for z, value, scale in zip(Z, values, largest, strict=True):
        assert float(value) == pytest.approx(by_hand(z, "polynomial", float(scale)))
    loss(10 * Z)
    torch.testing.assert_close(loss.c1, largest)
    restored.load_state_dict(loss.state_dict())
    torch.testing.assert_close(restored(10 * Z), loss(10 * Z))


@pytest.mark.parametrize("first", [0.0, math.nan, math.inf])
def test_scale_waits_for_finite_points_that_are_not_all_zero(first):
    Z = cloud(3, 20, 5)
    early = Z.clone()
    early[1] = first
    loss = SpectrumControlLoss()
    values, gradients = value_and_gradient(loss, early)
    assert (float(values[1]) == 0) if first == 0 else values[1].isnan()
    assert gradients[[0, 2]].isfinite().all()
    assert loss.c1.isnan().tolist() == [False, True, False]
    later = loss(2 * Z)
    scales = torch.linalg.svdvals(Z)[:, 0] / math.sqrt(20) * torch.tensor([1, 2, 1])
    torch.testing.assert_close(loss.c1, scales)
    assert float(later[1]) == pytest.approx(by_hand(2 * Z[1], "polynomial", float(scales[1])))


def test_nothing_is_to_be_paid_at_the_target_or_for_no_points():
    loss = SpectrumControlLoss("exponential", c1=2.0, c2=0.5, per_row=False)
    assert float(loss(torch.diag(loss.target(4)))) == pytest.approx(0.0, abs=1e-12)
    assert float(SpectrumControlLoss()(torch.zeros(0, 5))) == 0


def test_gradient_is_finite_where_singular_values_are_equal():
    _, gradient = value_and_gradient(SpectrumControlLoss(c1=2.0), torch.eye(3, dtype=torch.float64))
    assert gradient.isfinite().all()

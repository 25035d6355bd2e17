"""CosRegLoss against the sum over all pairs, and what it does not see."""

import pytest
import torch

from isoadapt.losses import CosRegLoss
from tests.losses.examples import cloud, value_and_gradient


def all_pairs(Z):
    cosines = torch.nn.functional.cosine_similarity(Z[:, None], Z, dim=-1)
    return float(cosines.sum() - cosines.trace()) / len(Z) ** 2


@pytest.mark.parametrize(("n", "d"), [(2, 2), (3, 8), (20, 7)])
def test_equals_the_double_loop(n, d):
    Z = cloud(n, d)
    Z[0] = 0.0
    assert float(CosRegLoss()(Z)) == pytest.approx(all_pairs(Z), abs=1e-14)
    Z[-1] = Z[1]
    assert float(CosRegLoss()(Z)) == pytest.approx(all_pairs(Z), abs=1e-14)


def test_zero_rows_have_no_gradient_and_disturb_no_other():
    Z = cloud(6, 4)
    _, gradient = value_and_gradient(CosRegLoss(), torch.cat([Z, 0 * Z[:1]]))
    _, expected = value_and_gradient(CosRegLoss(), Z)
    assert not gradient[-1].any()
    torch.testing.assert_close(gradient[:-1], expected * (6 / 7) ** 2)


def test_single_row_and_no_row_cost_nothing():
    assert float(CosRegLoss()(cloud(1, 4))) == pytest.approx(0.0, abs=1e-15)
    assert float(CosRegLoss()(torch.zeros(0, 4))) == 0.0


def test_the_length_of_a_row_does_not_count_but_the_mean_does():
    Z = cloud(12, 5)
    value = float(CosRegLoss()(Z))
    lengths = torch.linspace(0.1, 10, 12, dtype=Z.dtype)[:, None]
    assert float(CosRegLoss()(Z * lengths)) == pytest.approx(value, abs=1e-12)
    assert float(CosRegLoss()(Z + 1e6)) == pytest.approx(11 / 12, abs=1e-4)

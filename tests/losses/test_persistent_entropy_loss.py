"""PersistentEntropyLoss: its values, its gradients, and the classes that it leaves out."""

import math

import numpy as np
import pytest
import torch

from isoadapt.geometry import persistence_bars, persistent_entropy, select_bars
from isoadapt.losses import PersistentEntropyLoss
from tests.losses.examples import cloud, value_and_gradient

BARS = ("selected", "all")
LABELS = torch.tensor([0, 2, 2, 0, 0, 2, 0, 2, 0, 2, 2, 2, 0])


def entropies(Z, labels, bars):
    """Sum over the classes, one by one, from the public functions."""
    select = select_bars if bars == "selected" else lambda lengths: lengths
    clouds = [Z[labels == label] for label in labels.unique()]
    return sum(persistent_entropy(select(persistence_bars(own))) for own in clouds if len(own) > 4)


@pytest.mark.parametrize(
    ("shape", "labels", "bars"),
    [
        ((13, 4), None, "selected"),
        ((13, 31), LABELS, "all"),
        ((3, 13, 7), LABELS, "selected"),
        ((2, 3, 13, 20), None, "all"),
    ],
)
def test_value_is_minus_the_entropies_of_the_classes_member_by_member(shape, labels, bars):
    Z = cloud(*shape)
    loss = PersistentEntropyLoss(bars)
    values, gradients = value_and_gradient(loss, Z, labels)
    assert values.shape == shape[:-2]
    assert loss.n_degenerate == 0
    classes = torch.zeros(13, dtype=torch.long) if labels is None else labels
    for place in np.ndindex(shape[:-2]):
        alone = Z[place].requires_grad_()
        wanted = -entropies(alone, classes, bars)
        (gradient,) = torch.autograd.grad(wanted, alone)
        torch.testing.assert_close(values[place], wanted.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(gradients[place], gradient, rtol=0, atol=1e-12)


def test_neither_scale_nor_the_numbers_and_type_of_the_labels_count():
    Z, loss = cloud(13, 6), PersistentEntropyLoss()
    wanted = loss(Z, LABELS)
    assert float(PersistentEntropyLoss("all")(Z, LABELS)) != float(wanted)
    torch.testing.assert_close(loss(0.01 * Z + 3, LABELS), wanted)
    torch.testing.assert_close(loss(Z, 7 - LABELS), wanted)
    for same in (LABELS.to(torch.int8), LABELS.to(torch.uint8), LABELS.numpy(), LABELS > 0):
        assert float(loss(Z, same)) == float(wanted)


# What is left out.


@pytest.mark.parametrize("n", [1, 4, 5])
def test_classes_of_fewer_than_five_points_are_left_out_and_counted(n):
    Z = cloud(8 + n, 5)
    labels = torch.tensor([3] * 8 + [-1] * n)
    loss = PersistentEntropyLoss()
    value, gradient = value_and_gradient(loss, Z, labels)
    counted = n < 5
    assert loss.n_degenerate == counted
    torch.testing.assert_close(value, -entropies(Z, labels, "selected"))
    assert bool(gradient[8:].any()) != counted
    loss(torch.stack([Z, Z]), labels)
    assert loss.n_degenerate == 3 * counted


@pytest.mark.parametrize(
    ("shape", "labels", "dtype"),
    [
        ((4, 3), None, torch.float16),
        ((0, 3), None, torch.float64),
        ((2, 8, 3), torch.arange(8) // 4, torch.float16),
    ],
)
def test_nothing_left_costs_nothing_with_zero_gradient(shape, labels, dtype):
    loss = PersistentEntropyLoss()
    value, gradient = value_and_gradient(loss, cloud(*shape, dtype=dtype), labels)
    assert torch.equal(value, torch.zeros(shape[:-2], dtype=value.dtype))
    assert value.dtype == torch.promote_types(dtype, torch.float32)
    assert gradient.shape == shape
    assert not gradient.any()
    n_classes = 1 if labels is None else len(labels.unique())
    assert loss.n_degenerate == n_classes * math.prod(shape[:-2])


@pytest.mark.parametrize("bars", BARS)
def test_duplicate_rows_count_once_and_gradients_stay_finite(bars):
    Z, loss = cloud(10, 6), PersistentEntropyLoss(bars)
    value, gradient = value_and_gradient(loss, Z[[0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 9]])
    torch.testing.assert_close(value, loss(Z))
    assert gradient.isfinite().all()
    Z = torch.zeros(8, 3)
    Z[:5, 0] = torch.tensor([1.0, 3.0, 1e-30, 7.0, 1e-21])  # whose squares underflow
    value, gradient = value_and_gradient(loss, Z)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("labels", [torch.zeros(13), torch.zeros(13, 1).long(), LABELS[:12]])
def test_other_labels_are_refused(labels):
    with pytest.raises(ValueError, match="labels"):
        PersistentEntropyLoss()(cloud(13, 5), labels)

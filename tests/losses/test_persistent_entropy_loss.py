"""PersistentEntropyLoss: its values, its gradients, and the classes that it leaves out."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from isoadapt.geometry import persistence_bars, persistent_entropy, select_bars
from isoadapt.losses import PersistentEntropyLoss
from tests.losses.examples import cloud, value_and_gradient

LABELS = torch.tensor([0, 2, 2, 0, 0, 2, 0, 2, 0, 2, 2, 2, 0])
SHAPES = [(13, 4), (13, 31), (3, 13, 7), (2, 3, 13, 20)]


def entropies(Z, labels, bars):
    """Sum over the classes, one by one, from the public functions."""
    select = select_bars if bars == "selected" else lambda lengths: lengths
    clouds = [Z[labels == label] for label in labels.unique()]
    return sum(
        persistent_entropy(select(persistence_bars(points))) for points in clouds if len(points) > 4
    )


@pytest.mark.parametrize("bars", ["selected", "all"])
@pytest.mark.parametrize("labels", [None, LABELS])
@pytest.mark.parametrize("shape", SHAPES)
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


def test_default_is_the_selection():
    Z = cloud(13, 5)
    selected, every = PersistentEntropyLoss(), PersistentEntropyLoss("all")
    assert selected.bars == "selected"
    assert float(selected(Z)) != float(every(Z))
    assert float(selected(Z)) == float(PersistentEntropyLoss("selected")(Z))


@pytest.mark.parametrize("bars", ["selected", "all"])
@pytest.mark.parametrize("shape", [(13, 2), (13, 17), (2, 1, 13, 3)])
def test_gradcheck(shape, bars):
    loss = PersistentEntropyLoss(bars)
    assert gradcheck(lambda z: loss(z, LABELS), cloud(*shape).requires_grad_())


@pytest.mark.parametrize("bars", ["selected", "all"])
def test_descent_makes_bars_more_alike(bars):
    Z = cloud(60, 8)
    labels = torch.arange(60) % 2
    loss = PersistentEntropyLoss(bars)
    value, gradient = value_and_gradient(loss, Z, labels)
    assert float(loss(Z - 1e-4 * gradient / gradient.norm(), labels)) < float(value)


def test_equal_bars_cost_least():
    simplex = torch.eye(9, dtype=torch.float64)
    for bars in ("selected", "all"):
        loss = PersistentEntropyLoss(bars)
        assert float(loss(simplex)) == pytest.approx(-math.log(8))
        labels = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0, 0])
        assert float(loss(simplex, labels)) == pytest.approx(-math.log(4))


def test_value_is_invariant_under_similarities_and_order():
    Z = cloud(13, 6)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0))
    turn = torch.linalg.qr(cloud(6, 6, seed=3)).Q
    loss = PersistentEntropyLoss()
    wanted = loss(Z, LABELS)
    torch.testing.assert_close(loss(Z[order], LABELS[order]), wanted)
    torch.testing.assert_close(loss(0.01 * Z @ turn + 3, LABELS), wanted)
    torch.testing.assert_close(loss(Z, 7 - LABELS), wanted)


# What is left out.


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_classes_of_fewer_than_five_points_are_left_out_and_counted(n):
    Z = cloud(8 + n, 5)
    labels = torch.tensor([3] * 8 + [-1] * n)
    loss = PersistentEntropyLoss()
    value, gradient = value_and_gradient(loss, Z, labels)
    counted = n < 5
    assert loss.n_degenerate == counted
    wanted = -entropies(Z, labels, "selected")
    torch.testing.assert_close(value, wanted)
    assert bool(gradient[8:].any()) != counted
    loss(torch.stack([Z, Z]), labels)
    assert loss.n_degenerate == 3 * counted


def test_an_absent_class_costs_nothing():
    Z = cloud(13, 5)
    ones = torch.ones(13, dtype=torch.long)
    loss = PersistentEntropyLoss()
    torch.testing.assert_close(loss(Z, ones), loss(Z), rtol=0, atol=0)
    assert loss.n_degenerate == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "labels"),
    [
        ((4, 3), None),
        ((0, 3), None),
        ((3, 4, 7), None),
        ((8, 3), torch.arange(8)),
        ((2, 8, 3), torch.arange(8) // 4),
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


def test_equal_rows_cost_nothing_and_are_counted():
    for bars in ("selected", "all"):
        loss = PersistentEntropyLoss(bars)
        value, gradient = value_and_gradient(loss, torch.full((9, 4), 0.1))
        assert float(value) == 0
        assert not gradient.any()
        assert loss.n_degenerate == 1


def test_a_member_of_equal_rows_leaves_the_others_as_they_are():
    good = cloud(2, 13, 5)
    Z = torch.stack([good[0], torch.full((13, 5), 0.1, dtype=torch.float64), good[1]])
    loss = PersistentEntropyLoss()
    values, gradients = value_and_gradient(loss, Z, LABELS)
    assert loss.n_degenerate == 2
    assert float(values[1]) == 0
    assert not gradients[1].any()
    alone, its = value_and_gradient(loss, good, LABELS)
    torch.testing.assert_close(values[[0, 2]], alone, rtol=0, atol=0)
    torch.testing.assert_close(gradients[[0, 2]], its, rtol=0, atol=0)


@pytest.mark.parametrize("bars", ["selected", "all"])
def test_duplicate_rows_count_once(bars):
    Z = cloud(10, 6)
    loss = PersistentEntropyLoss(bars)
    value, gradient = value_and_gradient(loss, Z[[0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9, 9, 9]])
    torch.testing.assert_close(value, loss(Z))
    assert gradient.isfinite().all()


# Precision.


def test_float32_gradients_stay_finite_where_squares_underflow():
    Z = torch.zeros(8, 3)
    Z[:5, 0] = torch.tensor([1.0, 3.0, 1e-30, 7.0, 1e-21])
    for bars in ("selected", "all"):
        value, gradient = value_and_gradient(PersistentEntropyLoss(bars), Z)
        assert value.isfinite()
        assert gradient.isfinite().all()


# Labels.


@pytest.mark.parametrize("kind", [torch.int8, torch.int32, torch.uint8, "array"])
def test_any_integers_are_labels(kind):
    Z = cloud(13, 5)
    labels = LABELS.numpy() if kind == "array" else LABELS.to(kind)
    assert float(PersistentEntropyLoss()(Z, labels)) == float(PersistentEntropyLoss()(Z, LABELS))
    halves = LABELS > 0
    assert float(PersistentEntropyLoss()(Z, halves)) == float(PersistentEntropyLoss()(Z, LABELS))


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(13), torch.zeros(13, 2), torch.zeros(13, 1, dtype=torch.long), LABELS[:12]],
)
def test_other_labels_are_refused(labels):
    message = rf"labels has dtype {labels.numpy().dtype} and shape .*13 rows.*pass None"
    with pytest.raises(ValueError, match=message):
        PersistentEntropyLoss()(cloud(13, 5), labels)


@pytest.mark.parametrize("bars", ["some", None, 3])
def test_bad_parameters_are_named(bars):
    with pytest.raises(ValueError, match=f"bars={bars!r} must be 'selected' or 'all'"):
        PersistentEntropyLoss(bars)

"""JointLoss: the rule of its paper, written down again and followed step by step."""

import copy
import math

import pytest
import torch

from isoadapt.losses import JointLoss
from tests.refusals import refusals

N_STEPS = 50


class Rule:
    """One member's balance in plain Python floats.

    L̂_i = L_i·L̄/L̄_i with L̄ = (L̄_1 + L̄_2)/2; L̄_i ← L_i·s/(1+k) + L̄_i·(1 - s/(1+k)), k from 0;
    started at the first loss, updated before use, floored at 1e-3.
    """

    def __init__(self, s):
        self.s, self.k, self.means = s, 0, None

    def update(self, losses):
        sizes = [abs(loss) for loss in losses]
        self.means = self.means or sizes
        step = self.s / (1 + self.k)
        pairs = zip(sizes, self.means, strict=True)
        self.means = [size * step + mean * (1 - step) for size, mean in pairs]
        self.k += 1

    def factors(self):
        first, second = (max(mean, 1e-3) for mean in self.means)
        average = (first + second) / 2
        return average / first, average / second


def random_losses(members=(), dtype=torch.float32):
    """Task losses and penalties of very different sizes, some penalties zero, some negative."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0.7, 6.0], dtype=dtype)
    losses = sizes * torch.rand(N_STEPS, *members, 2, generator=generator, dtype=dtype).exp()
    losses[20:30, ..., 1] = 0
    losses[30:, ..., 1] *= -1
    return losses


@pytest.mark.parametrize(
    ("balance", "smoothing", "s", "weight", "dtype"),
    [
        ("ema", 0.15, 0.15, 2.0, torch.float32),
        ("ema", 0.6, 0.6, -1.5, torch.float64),
        ("ema", 1e-300, 1e-300, 1.0, torch.float32),
        ("cumulative", 0.15, 1.0, 0.1, torch.float64),
        ("cumulative", 0.15, 1.0, -1.5, torch.float32),
        (None, 0.15, 1.0, 0.1, torch.float64),
    ],
)
def test_fifty_steps_follow_the_rule_or_add_the_losses(balance, smoothing, s, weight, dtype):
    joint, rule = JointLoss(weight, balance, smoothing), Rule(s)
    rel = 1e-5 if dtype == torch.float32 else 1e-12
    for step in random_losses(dtype=dtype):
        sizes, losses = step.tolist(), step.clone().requires_grad_().unbind()
        value = joint(*losses)
        rule.update(sizes)
        first, second = rule.factors() if balance else (1.0, 1.0)
        wanted = sizes[0] * first + weight * sizes[1] * second
        assert value.dtype == dtype
        assert value.item() == pytest.approx(wanted, rel=rel, abs=1e-6)
        gradients = torch.autograd.grad(value, losses)
        assert gradients == pytest.approx((first, weight * second), rel=rel)  # none by the means
    assert not balance or joint.means.tolist() == pytest.approx(rule.means, rel=1e-5)
    assert joint.n_steps == (N_STEPS if balance else 0)


def test_members_do_not_see_each_other_and_may_differ():
    weights, smoothings = torch.tensor([0.5, -1.0, 3.0]), torch.tensor([0.05, 0.15, 1.0])
    together = JointLoss(weights, "ema", smoothings)
    alone = [JointLoss(*pair) for pair in zip(weights, ["ema"] * 3, smoothings, strict=True)]
    for step in random_losses((3,)):
        values = together(step[:, 0], step[:, 1])
        expected = [joint(*losses) for joint, losses in zip(alone, step, strict=True)]
        torch.testing.assert_close(values, torch.stack(expected))


def test_a_tiny_loss_is_scaled_by_the_floored_mean():
    joint = JointLoss(1.0, "ema")
    value = joint(torch.tensor(1.0), torch.tensor(1e-5))
    average = (1 + 1e-3) / 2
    assert float(value) == pytest.approx(average + 1e-5 * average / 1e-3, rel=1e-5)


def test_evaluation_uses_the_means_but_does_not_move_them():
    joint, losses = JointLoss(1.0, "ema"), random_losses()
    for task, penalty in losses[:10]:
        joint(task, penalty)
    before = joint.means.clone()
    factors = before.mean() / before
    joint.eval()
    for task, penalty in losses[10:]:
        torch.testing.assert_close(joint(task, penalty), task * factors[0] + penalty * factors[1])
    assert torch.equal(joint.means, before)
    assert joint.n_steps == 10


@pytest.mark.parametrize("members", [(), (3,)])
def test_a_restored_loss_goes_on_as_if_never_interrupted(members):
    weight = torch.full(members, 2.0)
    joint, losses = JointLoss(weight, "ema"), random_losses(members)
    for step in losses[:10]:
        joint(*step.unbind(-1))
    state = copy.deepcopy(joint.state_dict())
    again = JointLoss(weight, "ema")
    again.load_state_dict(state)
    for step in losses[10:]:
        assert torch.equal(again(*step.unbind(-1)), joint(*step.unbind(-1)))
    assert list(joint.parameters()) == []


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_restored_means_stay_on_the_device_of_the_loss():
    joint, again = JointLoss(1.0, "ema"), JointLoss(1.0, "ema")
    joint(torch.tensor(1.0), torch.tensor(2.0))
    again.means = again.means.to("meta")
    again.load_state_dict(joint.state_dict())
    assert again.means.device.type == "meta"


def test_a_step_that_is_not_finite_neither_starts_nor_changes_the_means():
    joint = JointLoss(1.0, "cumulative")
    joint(torch.tensor(math.nan), torch.tensor(1.0))
    assert joint(torch.tensor(2.0), torch.tensor(5.0)).isfinite()
    assert joint.means.tolist() == [2.0, 5.0]
    joint(torch.tensor(1.0), torch.tensor(math.inf))
    assert joint.means.tolist() == [2.0, 5.0]


test_losses_that_are_no_numbers_are_named = refusals(
    ((torch.tensor(1.0), torch.ones(5)), "^penalty"),
    ((torch.tensor(1.0), 2.0), "^penalty"),
    ((torch.tensor(1), torch.tensor(2.0)), "^task_loss"),
    call=lambda losses: JointLoss(1.0)(*losses),
    errors=(TypeError, ValueError),
)

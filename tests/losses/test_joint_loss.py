"""JointLoss: the rule of its paper, written down again and followed step by step."""

import copy
import math

import pytest
import torch

from isoadapt.losses import JointLoss

N_STEPS = 50


class Rule:
    """One member's balance in plain Python floats.

    L̂_i = L_i·L̄/L̄_i with L̄ = (L̄_1 + L̄_2)/2; L̄_i ← L_i·s/(1+k) + L̄_i·(1 - s/(1+k)), k from 0;
    started at the first loss, updated before use, floored at 1e-3.
    """

    def __init__(self, s):
        self.s, self.k, self.means = s, 0, None

    def update(self, losses):
        if self.means is None:
            self.means = list(losses)
        step = self.s / (1 + self.k)
        self.means = [
            loss * step + mean * (1 - step) for loss, mean in zip(losses, self.means, strict=True)
        ]
        self.k += 1

    def factors(self):
        first, second = (max(mean, 1e-3) for mean in self.means)
        average = (first + second) / 2
        return average / first, average / second


def random_losses(members=(), seed=0, dtype=torch.float32):
    """Task losses and penalties of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([0.7, 6.0], dtype=dtype)
    losses = sizes * torch.rand(N_STEPS, *members, 2, generator=generator, dtype=dtype).exp()
    losses[20:30, ..., 1] = 0
    return losses


@pytest.mark.parametrize("weight", [2.0, -1.5, 0.0])
@pytest.mark.parametrize(
    ("balance", "smoothing", "s"),
    [("ema", 0.15, 0.15), ("ema", 0.6, 0.6), ("cumulative", 0.15, 1.0), (None, 0.15, 1.0)],
)
def test_fifty_steps_follow_the_rule_or_add_the_losses_as_they_are(balance, smoothing, s, weight):
    joint, rule = JointLoss(weight, balance, smoothing), Rule(s)
    for task, penalty in random_losses():
        value = joint(task, penalty)
        rule.update((float(task), float(penalty)))
        first, second = rule.factors() if balance else (1.0, 1.0)
        wanted = float(task) * first + weight * float(penalty) * second
        assert float(value) == pytest.approx(wanted, rel=1e-5, abs=1e-6)
        assert balance is None or joint.means.tolist() == pytest.approx(rule.means, rel=1e-5)
    assert joint.n_steps == (N_STEPS if balance else 0)


def test_a_tiny_smoothing_is_admissible():
    assert JointLoss(2.0, "ema", 1e-300).smoothing == 1e-300


@pytest.mark.parametrize("smoothings", [[0.15] * 3, [0.05, 0.15, 1.0]])
@pytest.mark.parametrize("balance", ["ema", "cumulative", None])
def test_members_do_not_see_each_other_and_may_differ(balance, smoothings):
    weights = torch.tensor([0.5, -1.0, 3.0])
    together = JointLoss(weights, balance, torch.tensor(smoothings))
    pairs = zip(weights.tolist(), smoothings, strict=True)
    alone = [JointLoss(weight, balance, smoothing) for weight, smoothing in pairs]
    for step in random_losses((3,)):
        values = together(step[:, 0], step[:, 1])
        assert values.shape == (3,)
        for value, joint, losses in zip(values, alone, step, strict=True):
            assert float(value) == pytest.approx(float(joint(*losses)), rel=1e-5, abs=1e-6)


def test_a_tiny_loss_is_scaled_by_the_floored_mean():
    joint = JointLoss(1.0, "ema")
    value = joint(torch.tensor(1.0), torch.tensor(1e-5))
    average = (1 + 1e-3) / 2
    assert float(value) == pytest.approx(average + 1e-5 * average / 1e-3, rel=1e-5)


def test_balanced_losses_start_at_the_average_of_the_two():
    for balance in ("ema", "cumulative"):
        value = JointLoss(1.0, balance)(torch.tensor(0.5), torch.tensor(7.5))
        assert float(value) == pytest.approx(4.0 + 4.0, rel=1e-6)


def test_the_cumulative_means_are_the_plain_means_of_all_steps():
    joint, losses = JointLoss(1.0, "cumulative"), random_losses()
    for task, penalty in losses:
        joint(task, penalty)
    torch.testing.assert_close(joint.means, losses.mean(0), rtol=1e-5, atol=0)


def test_the_papers_rule_hardly_forgets_its_start():
    # Weight 0.32 after 1000 steps of the rule: what k = 0, …, 999 leave of the start.
    # The first loss is the start and, at k = 0, also the loss: the mean holds 0.37 of it.
    s, n_steps = 0.15, 1000
    kept = math.prod(1 - s / (1 + k) for k in range(n_steps))
    assert kept == pytest.approx(0.32, abs=0.005)
    joint = JointLoss(1.0, "ema", s)
    joint(torch.tensor(1.0), torch.tensor(1.0))
    for _ in range(n_steps - 1):
        joint(torch.tensor(0.0), torch.tensor(3.0))
    weight = kept / (1 - s)
    assert joint.means.tolist() == pytest.approx([weight, 3 - 2 * weight], rel=1e-4)


@pytest.mark.parametrize("balance", ["ema", "cumulative"])
def test_means_carry_no_gradient(balance):
    joint, rule = JointLoss(2.0, balance), Rule(1.0 if balance == "cumulative" else 0.15)
    for step in random_losses()[:5]:
        task, penalty = step.clone().requires_grad_()
        rule.update(step.tolist())
        to_task, to_penalty = torch.autograd.grad(joint(task, penalty), (task, penalty))
        first, second = rule.factors()
        assert float(to_task) == pytest.approx(first, rel=1e-5)
        assert float(to_penalty) == pytest.approx(2 * second, rel=1e-5)
    assert not joint.means.requires_grad


def test_a_reward_keeps_its_sign():
    # A penalty below zero (minus an entropy): its size is balanced, not its sign.
    joint = JointLoss(1.0, "ema")
    assert float(joint(torch.tensor(1.0), torch.tensor(-3.0))) == pytest.approx(2 - 2, abs=1e-6)
    assert joint.means.tolist() == pytest.approx([1, 3])


@pytest.mark.parametrize("balance", ["ema", "cumulative"])
def test_evaluation_uses_the_means_but_does_not_move_them(balance):
    joint, losses = JointLoss(1.0, balance), random_losses()
    for task, penalty in losses[:10]:
        joint(task, penalty)
    before, steps = joint.means.clone(), int(joint.n_steps)
    factors = before.mean() / before
    joint.eval()
    for task, penalty in losses[10:]:
        wanted = float(task * factors[0] + penalty * factors[1])
        assert float(joint(task, penalty)) == pytest.approx(wanted, rel=1e-5)
    assert torch.equal(joint.means, before)
    assert joint.n_steps == steps
    joint.train()
    joint(torch.tensor(100.0), torch.tensor(100.0))
    assert bool((joint.means > before).all())


@pytest.mark.parametrize("members", [(), (3,)])
def test_a_restored_loss_goes_on_as_if_never_interrupted(members):
    weight = torch.full(members, 2.0)
    joint, losses = JointLoss(weight, "ema"), random_losses(members)
    for step in losses[:10]:
        joint(*step.unbind(-1))
    state = copy.deepcopy(joint.state_dict())
    assert set(state) == {"weight", "means", "n_steps"}
    again = JointLoss(weight, "ema")
    again.load_state_dict(state)
    for step in losses[10:]:
        assert torch.equal(again(*step.unbind(-1)), joint(*step.unbind(-1)))


@pytest.mark.parametrize("balance", ["ema", "cumulative"])
def test_a_step_that_is_not_finite_neither_starts_nor_changes_the_means(balance):
    joint = JointLoss(1.0, balance)
    joint(torch.tensor(math.nan), torch.tensor(1.0))
    assert joint(torch.tensor(2.0), torch.tensor(5.0)).isfinite()
    assert joint.means.tolist() == [2.0, 5.0]
    joint(torch.tensor(1.0), torch.tensor(math.inf))
    assert joint.means.tolist() == [2.0, 5.0]


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_restored_means_stay_on_the_device_of_the_loss():
    joint = JointLoss(1.0, "ema")
    joint(torch.tensor(1.0), torch.tensor(2.0))
    again = JointLoss(1.0, "ema")
    again.means = again.means.to("meta")
    again.load_state_dict(joint.state_dict())
    assert again.means.device.type == "meta"


def test_nothing_in_it_is_trained():
    assert list(JointLoss(torch.ones(3), "ema").parameters()) == []


@pytest.mark.parametrize("balance", ["ema", "cumulative", None])
def test_float64_losses_are_joined_in_float64(balance):
    joint, rule = JointLoss(0.1, balance), Rule(1.0 if balance == "cumulative" else 0.15)
    for task, penalty in random_losses(dtype=torch.float64):
        value = joint(task, penalty)
        rule.update((float(task), float(penalty)))
        first, second = (1.0, 1.0) if balance is None else rule.factors()
        assert value.dtype == torch.float64
        wanted = float(task) * first + 0.1 * float(penalty) * second
        assert float(value) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"balance": "mean"}, "balance='mean' must be 'ema', 'cumulative' or None"),
        ({"smoothing": 0}, r"smoothing=0 must lie in \(0, 1\]"),
        ({"smoothing": 1.5}, r"smoothing=1.5 must lie in \(0, 1\]"),
        ({"smoothing": float("nan")}, "smoothing=nan"),
    ],
)
def test_bad_parameters_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        JointLoss(1.0, **parameters)


@pytest.mark.parametrize(
    ("task", "penalty", "error", "word"),
    [
        (torch.tensor(1.0), torch.ones(5), ValueError, r"penalty.*\(5,\).*\(\)"),
        (torch.ones(3), torch.tensor(1.0), ValueError, r"penalty.*\(\).*\(3,\)"),
        (torch.tensor(1.0), 2.0, TypeError, r"penalty.*float"),
        (1.0, torch.tensor(2.0), TypeError, r"task_loss.*float"),
        (torch.tensor(1.0), torch.tensor(2), TypeError, r"penalty.*int64"),
    ],
)
@pytest.mark.parametrize("balance", [None, "ema"])
def test_losses_that_are_no_numbers_are_named(task, penalty, error, word, balance):
    with pytest.raises(error, match=word):
        JointLoss(1.0, balance)(task, penalty)

"""The training loop of skorch over mini-batches on the device, and its state between epochs."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from skorch import NeuralNet
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from isoadapt.adapters._rows import Batches, Rows
from isoadapt.adapters._training._epoch_choice import Run
from isoadapt.adapters._training._networks import Adapted, HeadedNetwork
from isoadapt.adapters._training._problem import Member, Penalty, join_penalties

LARGE_STEP = 1e8
"""Steps run in all threads if n_parameters * (n_rows + UPDATE_ROWS) is at least this number.

Measured by ``python -m benchmarks --only threads`` on a machine without other load: two threads
are at most 1.4 times as fast as one in smaller steps, and 1.5 to 1.7 times in larger ones.
"""

UPDATE_ROWS = 100
"""Number of rows whose multiply-adds take as long as AdamW's update of the parameters."""

_LOCK = threading.Lock()
_HELD: dict[int, int] = {}  # number of threads to restore, by Python thread in one_thread


class OutputRidge(NamedTuple):
    """The weighted mean squared change of each member's head outputs since the start.

    For a linear network it is computed over all training rows, from their moments. Over a batch
    with fewer rows than dimensions the ridge would act in a few directions only, and Adam's
    full-sized steps would change the outputs in the others. For other networks it is computed over
    the batch.
    """

    weights: Tensor  # of each member's change, (K,)
    coef: Tensor  # from the network's inputs to the outputs at the start, (K, n_outputs, d)
    intercept: Tensor  # offset of that map, (K, 1, n_outputs)
    mean: Tensor  # of the inputs, (K or 1, d, 1)
    root: Tensor  # of their shrunk covariance, (K or 1, d, d), or its diagonal (K or 1, 1, d)
    # Whether a softmax follows: then only differences of the outputs count, and squares are summed
    # over the outputs. Otherwise squares are averaged.
    classifies: bool

    @classmethod
    def of(cls, members: Sequence[Member], module: HeadedNetwork) -> Self | None:
        """Take the present outputs as the reference; None if no member has a ridge."""
        weights = [member.ridge for member in members]
        if module.coef is None or module.intercept is None or not any(weights):
            return None
        problems = list({id(member.problem): member.problem for member in members}.values())
        if len(problems) > 1:
            problems = [member.problem for member in members]
        means = [each.coordinates.into(each.moments.mean.numpy()[None]) for each in problems]
        with torch.no_grad():
            coef = module.coef @ module.network.weight
            intercept = module.intercept + module.network.bias @ module.coef.mT
        root = torch.as_tensor(np.stack([each.shrunk_root for each in problems])).to(coef)
        return cls(
            torch.tensor(weights).to(coef),
            coef,
            intercept,
            torch.as_tensor(np.stack(means)).to(coef).mT,
            root[:, None] if root.ndim == 2 else root,
            problems[0].targets is not None and problems[0].targets.ndim == 1,
        )

    def __call__(self, adapted: Adapted, X: Tensor, row_weights: Tensor | None = None) -> Tensor:
        """Return the weighted mean squared changes (K,) on network inputs X (n, d) or (K, n, d)."""
        if adapted.reader is not None:
            coef, intercept = adapted.reader
            change, shift = coef - self.coef, (intercept - self.intercept).mT
            squares = _MeanSquare.apply(change, shift, self.root, self.mean, self.classifies)
            return self.weights * squares
        start = torch.baddbmm(self.intercept, X.expand_as(adapted.points), self.coef.mT)
        squares = _relative((cast(Tensor, adapted.outputs) - start).mT, self.classifies).square()
        squares = squares.sum(-2) if self.classifies else squares.mean(-2)
        if row_weights is not None:
            squares = squares * row_weights
        return self.weights * squares.mean(-1)

    def keep(self, members: Tensor) -> "OutputRidge":
        """Return the ridge of the given members only."""
        shared = len(self.root) == 1
        parts = (self.weights, self.coef, self.intercept)
        weights, coef, intercept = (part[members] for part in parts)
        mean, root = (part if shared else part[members] for part in (self.mean, self.root))
        return OutputRidge(weights, coef, intercept, mean, root, self.classifies)


class _MeanSquare(torch.autograd.Function):
    """Mean square (K,) of Dx + s, for random x of the given mean and covariance root R.

    D has shape (K, n_outputs, d) and s (K, n_outputs, 1). A hand-written gradient replaces many
    small operations, which would take as long as the matrix products of the network.
    """

    @staticmethod
    def forward(
        ctx: Any, coef: Tensor, shift: Tensor, root: Tensor, mean: Tensor, classifies: bool
    ) -> Tensor:
        coef, shift = _relative(coef, classifies), _relative(shift, classifies)
        spread = coef @ root if root.shape[-2] > 1 else coef * root
        shift = torch.baddbmm(shift, coef, mean.expand(len(coef), -1, -1))
        ctx.save_for_backward(spread, shift, root, mean)
        ctx.scale = 1.0 if classifies else 1 / coef.shape[-2]
        return (spread.square().sum((-2, -1)) + shift.square().sum((-2, -1))) * ctx.scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        spread, shift, root, mean = ctx.saved_tensors
        grad = (2 * ctx.scale * grad)[:, None, None]
        to_shift = grad * shift
        to_spread = spread @ root.mT if root.shape[-2] > 1 else spread * root
        return torch.addcmul(to_shift @ mean.mT, grad, to_spread), to_shift, None, None, None


def _relative(outputs: Tensor, classifies: bool) -> Tensor:
    """Subtract from logits (K, n_outputs, m) their class mean; return values unchanged."""
    return outputs - outputs.mean(-2, keepdim=True) if classifies else outputs


class AdapterNet(NeuralNet):
    """The training loop of skorch, with batches from the device and a joint loss as criterion.

    `penalties` has one penalty per member, and `ridge` penalises changes of the head's outputs.
    `penalty` is the penalty of all members together, and `epoch_losses` (K,) are the mean joint
    losses of the last epoch. With `linear_schedule`, the learning rates fall linearly to
    1/max_epochs of `lr`; with `alternates`, odd epochs train the network and even ones the head.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: nn.Module,
        penalties: Sequence[Penalty],
        ridge: OutputRidge | None = None,
        linear_schedule: bool = False,
        alternates: bool = False,
        **kwargs: Any,
    ) -> None:
        self.ridge = ridge
        self.linear_schedule, self.alternates = linear_schedule, alternates
        self.penalties, self.penalty = penalties, join_penalties(penalties)
        super().__init__(module, criterion, verbose=0, **kwargs)

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        """Leave out the timer, the scores and the log of skorch."""
        return []

    def get_split_datasets(
        self, X: Batches, y: None = None, **fit_params: Any
    ) -> tuple[Batches, None]:
        """Train on all given rows; a callback holds the validation rows."""
        return X, None

    def get_iterator(self, dataset: Batches, training: bool = False) -> Batches:
        """Return the batches unchanged."""
        return dataset

    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        """Set the learning rates, and what is trained, in this epoch."""
        super().on_epoch_begin(net, **kwargs)
        number = len(self.history)
        if self.linear_schedule:
            self.optimizer_.factor = 1 - (number - 1) / self.max_epochs
        if self.alternates:
            self.module_.train_parts(network=number % 2 == 1, head=number % 2 == 0)

    def infer(self, x: Tensor, **fit_params: Any) -> Adapted:
        """Adapt a batch, which is already a tensor on the device."""
        return self.module_(x)

    def run_single_epoch(
        self, iterator: Batches | None, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        """Run the batches; the losses are read once at the end, without waiting in between."""
        if iterator is None:
            return
        with torch.no_grad():
            self.penalty.refresh(self.module_.network, iterator)
        self._set_training(True)
        steps = [(step_fn(batch)["loss"], batch.n_rows) for batch in iterator]
        losses, sizes = zip(*steps, strict=True)
        weights = torch.tensor(sizes, dtype=torch.float32, device=self.device)
        self.epoch_losses = weights @ torch.stack(losses) / weights.sum()

    def train_step(self, batch: Rows, **fit_params: Any) -> dict[str, Any]:
        """Take one optimizer step, without a closure."""
        self.optimizer_.zero_grad()
        losses = self.get_loss(self.infer(batch.X), batch)
        losses.sum().backward()
        self.optimizer_.step()
        return {"loss": losses.detach()}

    def get_loss(self, y_pred: Adapted, batch: Rows, *args: Any, **kwargs: Any) -> Tensor:
        """Return the joint losses (K,) on a batch; the ridge is part of the task loss."""
        outputs = y_pred.outputs
        penalty = self.penalty(y_pred.points, batch.y, self.module_.network)
        if outputs is None or batch.y is None:
            return self.criterion_(torch.zeros_like(penalty), penalty)
        loss = task_loss(outputs, batch.y, batch.weights)
        if self.ridge is not None:
            loss = loss + self.ridge(y_pred, batch.X, batch.weights)
        return self.criterion_(loss, penalty)

    @torch.no_grad()
    def evaluate(self, rows: Rows) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the penalties (K,), the heads' outputs, and whether each member is finite (K,)."""
        self._set_training(False)
        module = self.module_
        penalties = self.penalty.on_validation(module.network)
        if penalties is not None:
            weights = [weight.flatten(1).sum(1) for weight in module.network.parameters()]
            finite = torch.stack(weights).sum(0).isfinite()
            return penalties, module.linear_outputs(rows.X), finite
        adapted, outputs, _ = module(rows.X)
        penalties = self.penalty(adapted, rows.y, module.network)
        finite = adapted.sum(list(range(1, adapted.ndim))).isfinite()
        return penalties, outputs, finite

    def step_threads(self, batches: Batches) -> AbstractContextManager[None]:
        """Return a context with one torch thread if training runs in small steps on the CPU."""
        n_parameters = sum(parameter.numel() for parameter in self.module_.parameters())
        n_rows = batches.index.shape[-1] // batches.n_batches
        small = n_parameters * (n_rows + UPDATE_ROWS) < LARGE_STEP
        on_cpu = torch.device(self.device).type == "cpu"
        return one_thread() if small and on_cpu else nullcontext()

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members."""
        index = torch.tensor(members, device=self.device)
        for parameter in self.module_.parameters():
            parameter.data, parameter.grad = parameter.data[index], None
        self.optimizer_.keep(members)
        self.criterion_.weight = self.criterion_.weight[index]
        if isinstance(self.criterion_.smoothing, Tensor):
            self.criterion_.smoothing = self.criterion_.smoothing[index]
        if self.ridge is not None:
            self.ridge = self.ridge.keep(index)
        if self.criterion_.means.ndim == 2:
            self.criterion_.means = self.criterion_.means[index]
        self.penalties = [self.penalties[member] for member in members]
        self.penalty = join_penalties(self.penalties)

    def _set_training(self, training: bool = True) -> None:
        """Switch the modules between training and evaluation only when the mode changes."""
        if self.module_.training != training or self.criterion_.training != training:
            super()._set_training(training)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in the calling Python thread, and restore its number at the end.

    Torch has a number for each Python thread, and one number that a Python thread takes over when
    it first uses torch. The latter is the last number that was set anywhere. A Python thread that
    first uses torch while others are in this context thus starts with one thread. If it enters the
    context too, it leaves it with the number of the others, also if it had set one thread itself.
    """
    here = threading.get_ident()
    if here in _HELD:
        yield
        return
    with _LOCK:
        found = torch.get_num_threads()
        _HELD[here] = max(_HELD.values(), default=1) if found == 1 else found
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            torch.set_num_threads(_HELD.pop(here))


@dataclass
class Training:
    """A training between two epochs; the members `active` are still trained."""

    net: AdapterNet
    batches: Batches
    runs: Sequence[Run]
    validation: Tensor | None = None  # numbers of rows, (m,) or (K, m)
    counts_start: bool = True  # whether the initial weights are evaluated, as epoch 0
    active: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Initialise the network, and evaluate its initial weights."""
        self.active = list(range(len(self.runs)))
        self.net.initialize()
        if self.validation is None or not self.counts_start:
            return
        with self.net.step_threads(self.batches):
            with torch.no_grad():
                self.net.penalty.refresh(self.net.module_.network, self.batches)
            for run, figures in zip(self.runs, self.evaluate(0), strict=True):
                run.history.append({"epoch": 0, **figures})

    def evaluate(self, number: int) -> list[dict[str, float]]:
        """Offer the present weights to the runs as those of an epoch; return what was measured."""
        if self.validation is None:
            return [{} for _ in self.active]
        penalties, outputs, finite = self.net.evaluate(self.batches.rows.take(self.validation))
        # One copy, so that a GPU is waited for once.
        parts = [penalties[:, None], finite[:, None]]
        found = torch.cat(parts if outputs is None else [*parts, outputs.flatten(1)], 1)
        readings = found.cpu().numpy()
        return [
            self.runs[member].consider(
                number,
                float(readings[place, 0]),
                bool(readings[place, 1]),
                None if outputs is None else readings[place, 2:].reshape(outputs.shape[1:]),
                partial(self.net.module_.member_state, place),
            )
            for place, member in enumerate(self.active)
        ]

    def remove(self, stopped: Sequence[int]) -> None:
        """Remove the members in the given places."""
        left = [place for place in range(len(self.active)) if place not in stopped]
        self.active = [self.active[place] for place in left]
        if self.active and stopped:
            self.net.keep(left)
            self.batches.keep(left)
            if self.validation is not None and self.validation.ndim == 2:
                self.validation = self.validation[left]


def task_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean loss (K,) of outputs (K, n, C), which depends on the type of the targets."""
    n_members, n, _ = outputs.shape
    if targets.dtype == torch.bool:
        rows = (F.softplus(outputs) - targets * outputs).mean(-1)
    elif targets.is_floating_point():
        rows = (outputs - targets).square().mean(-1)
    elif n_members == 1 and weights is None:
        return F.cross_entropy(outputs.squeeze(0), targets.flatten()).view(1)
    else:
        flat = targets.expand(n_members, n).flatten()
        rows = F.cross_entropy(outputs.flatten(0, 1), flat, reduction="none").view(n_members, n)
    return (rows if weights is None else rows * weights).mean(-1)

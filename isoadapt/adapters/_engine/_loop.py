"""The training loop of skorch over mini-batches that are already on the device."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt._utils.threads import one_torch_thread
from isoadapt.adapters._engine._network import Adapted, AdapterNetwork
from isoadapt.adapters._engine._task import Penalty, Task, member_problems
from isoadapt.adapters._rows import Batch, Batches

# Steps run in all threads if n_parameters * (n_rows + UPDATE_ROWS) is at least LARGE_STEP. Smaller
# ones hardly gain by a second thread, as ``python -m benchmarks --only threads`` measures.
LARGE_STEP = 1e8
UPDATE_ROWS = 100  # whose multiply-adds take as long as AdamW's update of the parameters


class OutputRidge(NamedTuple):
    """The weighted mean squared change of each member's head outputs, over all training rows."""

    # Over a batch with fewer rows than dimensions it would act in few directions, and Adam's
    # full-sized steps would change the outputs in the others.

    # Whether a softmax follows: then only differences of the outputs count, and squares are summed
    # over the outputs. Otherwise squares are averaged.
    classifies: bool
    weights: Tensor  # of each member's change, (K,)
    coef: Tensor  # from the network's inputs to the outputs at the start, (K, n_outputs, d)
    intercept: Tensor  # offset of that map, (K, 1, n_outputs)
    mean: Tensor  # of the inputs, (K or 1, d, 1)
    root: Tensor  # of their shrunk covariance, (K or 1, d, d), or its diagonal (K or 1, 1, d)

    @classmethod
    @torch.no_grad()
    def of(cls, tasks: Sequence[Task], network: AdapterNetwork) -> Self | None:
        """Take the present outputs as the reference; None if no member has a ridge."""
        weights, reader = [task.ridge for task in tasks], network.reader()
        if reader is None or not any(weights):
            return None
        problems = member_problems(tasks)
        means = [each.coordinates.into(each.moments.mean.numpy()[None]) for each in problems]
        coef, intercept = reader
        root = torch.as_tensor(np.stack([each.shrunk_root for each in problems])).to(coef)
        return cls(
            cast(Any, problems[0].targets).ndim == 1,
            coef.new_tensor(weights),
            coef,
            intercept,
            torch.as_tensor(np.stack(means)).to(coef).mT,
            root[:, None] if root.ndim == 2 else root,
        )

    def __call__(self, reader: tuple[Tensor, Tensor]) -> Tensor:
        """Return the weighted mean squared changes (K,) of heads that read the inputs so."""
        change, shift = reader[0] - self.coef, (reader[1] - self.intercept).mT
        spread = change @ self.root if self.root.shape[-2] > 1 else change * self.root
        shift = torch.baddbmm(shift, change, self.mean.expand(len(change), -1, -1))
        parts = torch.cat([spread, shift], -1)
        if self.classifies:
            return self.weights * (parts - parts.mean(-2, keepdim=True)).square().sum((-2, -1))
        return self.weights * parts.square().mean(-2).sum(-1)

    def keep(self, members: Tensor) -> "OutputRidge":
        """Return the ridge of the given members only, which may share parts of length 1."""
        parts = (part if len(part) == 1 else part[members] for part in self[1:])
        return OutputRidge(self.classifies, *parts)


class Alternation(Callback):
    """Trains the layer in odd epochs and the head in even ones."""

    def on_epoch_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """Choose the parameters that this epoch trains."""
        odd = len(net.history) % 2 == 1
        net.module_.train_parts(layer=odd, head=not odd)


class AdapterNet(NeuralNet):
    """The training loop of skorch, with batches from the device and a joint loss as criterion."""

    epoch_losses: Tensor  # (K,), mean joint losses of the last epoch, which are read at its end

    def __init__(
        self,
        module: nn.Module,
        criterion: nn.Module,
        penalties: Sequence[Penalty],
        ridge: OutputRidge | None = None,
        **kwargs: Any,
    ) -> None:
        self.penalties, self.ridge = penalties, ridge
        self.penalty = penalties[0].join(penalties[1:])
        off = ("epoch_timer", "train_loss", "valid_loss", "print_log")
        super().__init__(
            module,
            criterion,
            train_split=None,  # the validation rows choose the epoch, see Training
            iterator_train=lambda batches, batch_size: batches,
            verbose=0,
            **{f"callbacks__{name}": None for name in off},
            **kwargs,
        )

    def run_single_epoch(
        self, iterator: Batches | None, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        """Run the batches as skorch does, but without reading the loss of each."""
        if iterator is None:
            return
        self._set_training(training)
        losses, sizes = [], []
        for batch in iterator:
            self.notify("on_batch_begin", batch=batch, training=training)
            step = step_fn(batch, **fit_params)
            losses.append(step["loss"].detach())
            sizes.append(batch.X.shape[-2])
            self.notify("on_batch_end", batch=batch, training=training, **step)
        weights = torch.tensor(sizes, dtype=torch.float32, device=self.device)
        self.epoch_losses = weights @ torch.stack(losses) / weights.sum()

    def train_step_single(self, batch: Batch, **fit_params: Any) -> dict[str, Any]:
        """Compute the joint losses (K,) of a batch and their gradients."""
        adapted = self.module_(batch.X)
        losses = self.get_loss(adapted, batch)
        losses.sum().backward()
        return {"loss": losses, "y_pred": adapted}

    def get_loss(self, y_pred: Adapted, y_true: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Return the joint losses (K,) on a batch; the ridge is part of the task loss."""
        penalty = self.penalty(y_pred.points, y_true.y, self.module_.layer)
        loss = torch.zeros_like(penalty)
        if y_pred.outputs is not None:
            loss = task_loss(y_pred.outputs, cast(Tensor, y_true.y), y_true.weights)
        if self.ridge is not None:
            loss = loss + self.ridge(cast(tuple[Tensor, Tensor], y_pred.reader))
        return self.criterion_(loss, penalty)

    @torch.no_grad()
    def evaluate(self, rows: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the penalties (K,) of validation rows, and the outputs of the heads or None."""
        self._set_training(False)
        points, outputs, _ = self.module_(rows.X)
        return self.penalty(points, rows.y, self.module_.layer), outputs

    def step_threads(self, batches: Batches) -> AbstractContextManager[None]:
        """Return a context with one torch thread if training runs in small steps on the CPU."""
        n_parameters = sum(parameter.numel() for parameter in self.module_.parameters())
        n_rows = batches.index.shape[-1] // batches.n_batches
        small = n_parameters * (n_rows + UPDATE_ROWS) < LARGE_STEP
        return one_torch_thread() if small and self.device.type == "cpu" else nullcontext()

    def keep(self, members: Sequence[int]) -> None:
        """Keep only the given members."""
        index = torch.tensor(members, device=self.device)
        for parameter in self.module_.parameters():
            parameter.data, parameter.grad = parameter.data[index], None
        self.optimizer_.keep(members)
        criterion = self.criterion_
        criterion.weight = criterion.weight[index]
        criterion.smoothing = criterion.smoothing[index]
        if criterion.means.ndim == 2:
            criterion.means = criterion.means[index]
        self.ridge = None if self.ridge is None else self.ridge.keep(index)
        self.penalties = [self.penalties[member] for member in members]
        self.penalty = self.penalties[0].join(self.penalties[1:])


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

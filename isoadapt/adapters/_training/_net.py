"""The mini-batch solver: the training loop of skorch over tensors that are on the device."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from skorch import NeuralNet
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt._utils.threads import one_thread_if_small
from isoadapt.adapters._training._batches import Batches, Rows
from isoadapt.adapters._training._networks import Adapted
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._ridge import OutputRidge


class AdapterNet(NeuralNet):
    """The training loop of skorch, with batches from the device and a joint loss as criterion.

    `task_loss` maps outputs (K, n, C), targets and weights to one loss per member, `penalties` has
    one penalty per member, and `ridge` penalises changes of the head's outputs. `penalty` is the
    penalty of all members together, and `epoch_losses` (K,) are the mean joint losses of the last
    epoch.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: nn.Module,
        task_loss: Callable[..., Tensor],
        penalties: Sequence[Penalty],
        ridge: OutputRidge | None = None,
        **kwargs: Any,
    ) -> None:
        self.task_loss = task_loss
        self.ridge = ridge
        self.penalty = penalties[0].join(penalties[1:])
        shared = self.penalty is penalties[0]  # then the state set in training is shared too
        self.penalties = [self.penalty] * len(penalties) if shared else penalties
        super().__init__(module, criterion, **kwargs)

    def get_split_datasets(
        self, X: Batches, y: None = None, **fit_params: Any
    ) -> tuple[Batches, None]:
        """Train on all given rows; a callback holds the validation rows."""
        return X, None

    def get_iterator(self, dataset: Batches, training: bool = False) -> Batches:
        """Return the batches unchanged."""
        return dataset

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

    def get_loss(
        self,
        y_pred: Adapted,
        batch: Rows,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Return the joint losses (K,) on a batch; the ridge is part of the task loss."""
        outputs = y_pred.outputs
        penalty = self.penalty(y_pred.points, batch.y, self.module_.network)
        if outputs is None or batch.y is None:
            return self.criterion_(torch.zeros_like(penalty), penalty)
        task_loss = self.task_loss(outputs, batch.y, batch.weights)
        if self.ridge is not None:
            task_loss = task_loss + self.ridge(y_pred, batch.X, batch.weights)
        return self.criterion_(task_loss, penalty)

    def step_threads(self, batches: Batches) -> AbstractContextManager[None]:
        """Return a context with one torch thread if training runs in small steps on the CPU."""
        if torch.device(self.device).type != "cpu":
            return nullcontext()
        n_parameters = sum(parameter.numel() for parameter in self.module_.parameters())
        return one_thread_if_small(n_parameters, batches.index.shape[-1] // batches.n_batches)

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
        self.penalty = self.penalties[0].join(self.penalties[1:])

    def _set_training(self, training: bool = True) -> None:
        """Switch the modules between training and evaluation only when the mode changes."""
        if self.module_.training != training or self.criterion_.training != training:
            super()._set_training(training)


def classification_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the cross-entropy (K,) of logits (K, n, C) for class numbers (n,) or (K, n).

    The row weights, (n,) or (K, n), have mean 1 over all rows.
    """
    n_members, n, _ = outputs.shape
    if n_members == 1 and weights is None:
        return F.cross_entropy(outputs.squeeze(0), targets.flatten()).view(1)
    flat = targets.expand(n_members, n).flatten()
    rows = F.cross_entropy(outputs.flatten(0, 1), flat, reduction="none").view(n_members, n)
    return (rows if weights is None else rows * weights).mean(-1)


def regression_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean squared error (K,) of outputs (K, n, C) for values (n, C) or (K, n, C).

    The row weights, (n,) or (K, n), have mean 1 over all rows.
    """
    squares = (outputs - targets).square()
    return (squares if weights is None else squares * weights[..., None]).mean((-2, -1))

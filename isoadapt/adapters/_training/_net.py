"""The mini-batch solver: skorch's loop over tensors that already lie on the device."""

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
    """The loop of skorch, with batches from the device and a joint loss as criterion.

    Parameters
    ----------
    module : Module
        What is trained, such as HeadedNetwork: from points to adapted ones and the head's outputs.
    criterion : JointLoss
        Joins task loss and penalty.
    task_loss : callable
        (outputs (K, n, C), targets[, weights]) -> one loss for each member.
    penalties : sequence of Penalty
        Of the adapted points, one for each member.
    ridge : OutputRidge or None, default=None
        Holds the outputs of the head to those at the start.
    **kwargs : dict
        For :class:`skorch.NeuralNet`.

    Attributes
    ----------
    penalty : Penalty
        That of all members.
    epoch_losses : Tensor of shape (K,)
        Mean joint losses of the last epoch.
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
        shared = self.penalty is penalties[0]  # so is, then, the state that training gives it
        self.penalties = [self.penalty] * len(penalties) if shared else penalties
        super().__init__(module, criterion, **kwargs)

    def get_split_datasets(
        self, X: Batches, y: None = None, **fit_params: Any
    ) -> tuple[Batches, None]:
        """Train on all rows given: the callback holds those for validation."""
        return X, None

    def get_iterator(self, dataset: Batches, training: bool = False) -> Batches:
        """Take the batches as they are."""
        return dataset

    def infer(self, x: Tensor, **fit_params: Any) -> Adapted:
        """Adapt a batch that is a tensor already."""
        return self.module_(x)

    def run_single_epoch(
        self, iterator: Batches | None, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        """Run the batches; the losses are looked at once, at the end, so none waits for them."""
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
        """Take one step; AdamW needs no closure."""
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
        """Joint loss of each member on a batch; the ridge is a part of the task loss."""
        outputs = y_pred.outputs
        penalty = self.penalty(y_pred.points, batch.y, self.module_.network)
        if outputs is None or batch.y is None:
            return self.criterion_(torch.zeros_like(penalty), penalty)
        task_loss = self.task_loss(outputs, batch.y, batch.weights)
        if self.ridge is not None:
            task_loss = task_loss + self.ridge(y_pred, batch.X, batch.weights)
        return self.criterion_(task_loss, penalty)

    def step_threads(self, batches: Batches) -> AbstractContextManager[None]:
        """Let torch use one thread if the steps are small; a GPU's leave the threads alone.

        Parameters
        ----------
        batches : Batches
            To train on.

        Returns
        -------
        context manager
            For the steps.
        """
        if torch.device(self.device).type != "cpu":
            return nullcontext()
        n_parameters = sum(parameter.numel() for parameter in self.module_.parameters())
        return one_thread_if_small(n_parameters, batches.index.shape[-1] // batches.n_batches)

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the members.

        Parameters
        ----------
        members : sequence of int
            Which.
        """
        index = torch.tensor(members, device=self.device)
        for parameter in self.module_.parameters():
            parameter.data, parameter.grad = parameter.data[index], None
        self.optimizer_.keep(members)
        self.criterion_.weight = self.criterion_.weight[index]
        if self.ridge is not None:
            self.ridge = self.ridge.keep(index)
        if self.criterion_.means.ndim == 2:
            self.criterion_.means = self.criterion_.means[index]
        self.penalties = [self.penalties[member] for member in members]
        self.penalty = self.penalties[0].join(self.penalties[1:])

    def _set_training(self, training: bool = True) -> None:
        """Walk through the modules only when the mode changes."""
        if self.module_.training != training or self.criterion_.training != training:
            super()._set_training(training)


def classification_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of each member.

    Parameters
    ----------
    outputs : Tensor of shape (K, n, C)
        Logits.
    targets : Tensor of shape (n,) or (K, n)
        Class numbers.
    weights : Tensor of shape (n,) or (K, n), default=None
        Factors of the rows' losses, of mean 1 over all rows.

    Returns
    -------
    Tensor of shape (K,)
        Means over the rows.
    """
    n_members, n, _ = outputs.shape
    if n_members == 1 and weights is None:
        return F.cross_entropy(outputs.squeeze(0), targets.flatten()).view(1)
    flat = targets.expand(n_members, n).flatten()
    rows = F.cross_entropy(outputs.flatten(0, 1), flat, reduction="none").view(n_members, n)
    return (rows if weights is None else rows * weights).mean(-1)


def regression_loss(outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean squared error of each member.

    Parameters
    ----------
    outputs : Tensor of shape (K, n, C)
        Predictions.
    targets : Tensor of shape (n, C) or (K, n, C)
        Values.
    weights : Tensor of shape (n,) or (K, n), default=None
        Factors of the rows' losses, of mean 1 over all rows.

    Returns
    -------
    Tensor of shape (K,)
        Means over the rows and outputs.
    """
    squares = (outputs - targets).square()
    return (squares if weights is None else squares * weights[..., None]).mean((-2, -1))

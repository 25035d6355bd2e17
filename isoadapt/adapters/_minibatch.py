"""The mini-batch solver: skorch's loop over tensors that already lie on the device."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from skorch import NeuralNet
from torch import Tensor, nn
from torch.nn import functional as F

from isoadapt.adapters._network import LinearNetwork


class Rows(NamedTuple):
    """Embeddings and targets on the training device."""

    X: Tensor
    y: Tensor | None

    def take(self, index: Tensor) -> "Rows":
        """Select rows.

        Parameters
        ----------
        index : Tensor of shape (m,)
            Which.

        Returns
        -------
        Rows
            Those rows.
        """
        return Rows(self.X[index], None if self.y is None else self.y[index])


class Penalty:
    """Penalty of adapted points.

    Parameters
    ----------
    loss : callable
        From points (K, n, d) to one penalty for each member (K,).
    """

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        self.loss = loss

    def refresh(self, network: LinearNetwork, rows: Rows) -> None:
        """Look at the network before an epoch; here nothing is to be seen.

        Parameters
        ----------
        network : LinearNetwork
            As it is now.
        rows : Rows
            All rows that are trained on.
        """

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        """Compute the penalty of a batch.

        Parameters
        ----------
        points : Tensor of shape (K, n, d)
            Adapted points.
        targets : Tensor of shape (n,) or (n, n_outputs), or None
            Class numbers, or values.
        network : LinearNetwork
            That adapted them.

        Returns
        -------
        Tensor of shape (K,)
            One penalty for each member.
        """
        return self.loss(points)


class Batches:
    """Shuffled batches of nearly equal size, sliced on the device.

    Parameters
    ----------
    rows : Rows
        All rows.
    batch_size : int
        Largest size of a batch.
    generator : torch.Generator
        Shuffles, anew in each pass.
    """

    def __init__(self, rows: Rows, batch_size: int, generator: torch.Generator) -> None:
        self.rows, self.generator = rows, generator
        self.n_batches = math.ceil(len(rows.X) / batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        order = torch.randperm(len(self.rows.X), generator=self.generator)
        for index in order.to(self.rows.X.device).tensor_split(self.n_batches):
            yield tuple(self.rows.take(index))  # type: ignore[misc]


class AdapterNet(NeuralNet):
    """The loop of skorch, with batches from the device and a joint loss as criterion.

    Parameters
    ----------
    module : Module
        What is trained, such as HeadedNetwork: from points to adapted ones and the head's outputs.
    criterion : JointLoss
        Joins task loss and penalty.
    task_loss : callable
        (outputs (K, n, C), targets) -> one loss for each member.
    penalty : Penalty
        Of the adapted points.
    generator : torch.Generator
        Shuffles the batches.
    **kwargs : dict
        For :class:`skorch.NeuralNet`.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: nn.Module,
        task_loss: Callable[[Tensor, Tensor], Tensor],
        penalty: Penalty,
        generator: torch.Generator,
        **kwargs: Any,
    ) -> None:
        self.task_loss = task_loss
        self.penalty = penalty
        self.generator = generator
        super().__init__(module, criterion, **kwargs)

    def get_split_datasets(self, X: Rows, y: None = None, **fit_params: Any) -> tuple[Rows, None]:
        """Train on all rows given: the callback holds those for validation."""
        return X, None

    def get_iterator(self, dataset: Rows, training: bool = False) -> Batches:
        """Slice the batches on the device."""
        return Batches(dataset, self.batch_size, self.generator)

    def infer(self, x: Tensor, **fit_params: Any) -> tuple[Tensor, Tensor | None]:
        """Adapt a batch that is a tensor already."""
        return self.module_(x)

    def run_single_epoch(
        self, iterator: Batches | None, training: bool, prefix: str, step_fn: Any, **fit_params: Any
    ) -> None:
        """Run the batches and look at the loss once, at the end: no batch waits for the device."""
        if iterator is None:
            return
        with torch.no_grad():
            self.penalty.refresh(self.module_.network, iterator.rows)
        total = torch.zeros((), device=self.device)
        for batch in iterator:
            total += step_fn(batch)["loss"].detach() * len(batch[0])
        self.history.record(f"{prefix}_loss", float(total) / len(iterator.rows.X))

    def train_step(self, batch: tuple[Tensor, Tensor | None], **fit_params: Any) -> dict[str, Any]:
        """Take one step; AdamW needs no closure."""
        self.optimizer_.zero_grad()
        step = self.train_step_single(batch)
        self.optimizer_.step()
        return step

    def _set_training(self, training: bool = True) -> None:
        """Walk through the modules only when the mode changes."""
        if self.module_.training != training or self.criterion_.training != training:
            super()._set_training(training)

    def get_loss(
        self, y_pred: tuple[Tensor, Tensor | None], y_true: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Joint loss, summed over the members."""
        adapted, outputs = y_pred
        penalty = self.penalty(adapted, y_true, self.module_.network)
        task = torch.zeros_like(penalty) if outputs is None else self.task_loss(outputs, y_true)
        return self.criterion_(task, penalty).sum()


def classification_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each member.

    Parameters
    ----------
    outputs : Tensor of shape (K, n, C)
        Logits.
    targets : Tensor of shape (n,)
        Class numbers.

    Returns
    -------
    Tensor of shape (K,)
        Means over the rows.
    """
    n_members, n, _ = outputs.shape
    if n_members == 1:
        return F.cross_entropy(outputs.squeeze(0), targets).view(1)
    rows = F.cross_entropy(outputs.flatten(0, 1), targets.repeat(n_members), reduction="none")
    return rows.view(n_members, n).mean(-1)


def regression_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of each member.

    Parameters
    ----------
    outputs : Tensor of shape (K, n, C)
        Predictions.
    targets : Tensor of shape (n, C)
        Values.

    Returns
    -------
    Tensor of shape (K,)
        Means over the rows and outputs.
    """
    return (outputs - targets).square().mean((-2, -1))


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Turn an array into a tensor to train with.

    Parameters
    ----------
    array : ndarray
        Of floats, or of class numbers.
    device : torch.device
        Where to.

    Returns
    -------
    Tensor
        In float32, or int64.
    """
    dtype = torch.float32 if array.dtype.kind == "f" else torch.int64
    return torch.as_tensor(array, dtype=dtype, device=device)

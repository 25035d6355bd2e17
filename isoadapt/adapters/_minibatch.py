"""The mini-batch solver: skorch's loop over tensors that already lie on the device."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import check_scoring
from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from isoadapt.adapters._network import LinearNetwork
from isoadapt.heads import LinearHead

Score = Callable[[NDArray[Any], NDArray[Any]], float]
"""(outputs of the head (m, C), row numbers (m,)) -> task score of those rows."""


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


def make_score(head: LinearHead, y: NDArray[Any], scoring: Any = None) -> Score:
    """Score the outputs of a head by the task's metric.

    Parameters
    ----------
    head : LinearHead
        Whose outputs.
    y : ndarray of shape (n,) or (n, n_outputs)
        True labels or values.
    scoring : str, callable or None, default=None
        As in scikit-learn; None is accuracy or R².

    Returns
    -------
    callable
        See `Score`.
    """
    if scoring is None and head.classes_ is not None:
        targets = head.encode(y)
        return lambda outputs, index: float(np.mean(outputs.argmax(1) == targets[index]))
    n_outputs = len(head.coef_)
    reader = LinearHead(np.eye(n_outputs), np.zeros(n_outputs), head.classes_)
    scorer = check_scoring(reader, scoring=scoring)
    return lambda outputs, index: float(scorer(reader, outputs, y[index]))


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


@dataclass
class Epoch:
    """One epoch as a candidate: its validation score, its weighted penalty and the weights."""

    number: int
    score: float
    cost: float
    state: dict[str, Tensor] = field(repr=False)


class Selection(Callback):
    """Early stopping that prefers isotropy among epochs that do the task equally well.

    Among the epochs within one bootstrap standard error of the best validation score, the one
    with the lowest weighted penalty is chosen, at equal penalty the one with the best score.
    States stay in memory; epochs out of the running are dropped.

    Parameters
    ----------
    rows : Rows
        For validation.
    score : callable or None
        See `Score`; None where there is no head, when the lowest weighted penalty wins.
    weight : float
        Of the penalty in the joint loss.
    patience : int
        How many epochs without a new choice end the training.
    rng : RandomState
        Draws the bootstrap samples.
    """

    def __init__(
        self,
        rows: Rows,
        score: Score | None,
        weight: float,
        patience: int,
        rng: np.random.RandomState,
    ) -> None:
        self.rows, self.score, self.weight = rows, score, weight
        self.patience, self.rng = patience, rng
        self.candidates: list[Epoch] = []
        self.best, self.error = -math.inf, 0.0

    @property
    def chosen(self) -> Epoch:
        """The epoch to keep."""
        return min(self.candidates, key=lambda epoch: (epoch.cost, -epoch.score))

    def done(self, epoch: int) -> bool:
        """Whether the choice has stood for `patience` epochs."""
        return epoch - self.chosen.number >= self.patience

    @torch.no_grad()
    def evaluate(self, net: AdapterNet, number: int) -> Epoch:
        """Take the present weights in as a candidate."""
        net._set_training(False)
        adapted, outputs = net.module_(self.rows.X)
        penalty = net.penalty(adapted, self.rows.y, net.module_.network)
        cost = self.weight * float(penalty)
        if not bool(adapted.isfinite().all()):
            score = -math.inf
        elif self.score is None:
            score = -cost
        else:
            score = self._task_score(self.score, outputs[0].cpu().numpy())
        self.best = max(self.best, score)
        state = {name: value.clone() for name, value in net.module_.state_dict().items()}
        epoch = Epoch(number, score, cost, state)
        self.candidates = [
            candidate
            for candidate in [*self.candidates, epoch]
            if candidate.score >= self.best - self.error
        ]
        return epoch

    def on_epoch_end(self, net: AdapterNet, **kwargs: Any) -> None:
        """Evaluate the epoch and note it in the history."""
        epoch = self.evaluate(net, len(net.history))
        net.history.record("valid_score", epoch.score)
        net.history.record("valid_cost", epoch.cost)

    def _task_score(self, score: Score, outputs: NDArray[Any]) -> float:
        n = len(outputs)
        try:
            value = score(outputs, np.arange(n))
        except ValueError as error:
            raise ValueError(f"scoring cannot judge the {n} validation rows: {error}") from error
        if not math.isfinite(value):
            raise ValueError(
                f"scoring gives {value} on the {n} validation rows, perhaps for want of a class: "
                "use more rows, another scoring, or validation_fraction=None"
            )
        if value > self.best:
            samples = self.rng.randint(n, size=(200, n))
            draws = [_defined(score, outputs[index], index) for index in samples]
            kept = [draw for draw in draws if math.isfinite(draw)]
            self.error = float(np.std(kept)) if kept else 0.0
        return value


def _defined(score: Score, outputs: NDArray[Any], index: NDArray[Any]) -> float:
    """Score a bootstrap sample; NaN where it lacks a class that the metric needs."""
    try:
        return score(outputs, index)
    except ValueError:
        return math.nan


class Alternation(Callback):
    """Train the adapter in odd epochs and the head in even ones."""

    def on_epoch_begin(self, net: AdapterNet, **kwargs: Any) -> None:
        """Choose what this epoch trains."""
        odd = len(net.history) % 2 == 1
        net.module_.train_parts(network=odd, head=not odd)


def train(
    net: AdapterNet, rows: Rows, max_epochs: int, selection: Selection | None, verbose: int
) -> int:
    """Run the epochs and leave the chosen weights in the net.

    Parameters
    ----------
    net : AdapterNet
        Not initialised yet.
    rows : Rows
        To train on.
    max_epochs : int
        How many epochs at most.
    selection : Selection or None
        Chooses among the epochs; None keeps the last.
    verbose : int
        Above 0 a progress bar is shown on a terminal.

    Returns
    -------
    int
        Number of the epoch kept.
    """
    net.initialize()
    hidden = not (verbose and sys.stderr.isatty())
    for number in tqdm(range(1, max_epochs + 1), desc="epochs", disable=hidden):
        net.fit_loop(rows, epochs=1)
        if selection is not None and selection.done(number):
            break
    if selection is None:
        return max_epochs
    net.module_.load_state_dict(selection.chosen.state)
    return selection.chosen.number

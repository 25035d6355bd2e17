"""Training with an eye on the task: which epoch to keep, and when to stop."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import check_scoring
from skorch.callbacks import Callback
from torch import Tensor
from tqdm import tqdm

from isoadapt.adapters._minibatch import AdapterNet, Rows
from isoadapt.heads import LinearHead

Score = Callable[[NDArray[Any], NDArray[Any]], float]
"""(outputs of the head (m, C), row numbers (m,)) -> task score of those rows."""


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

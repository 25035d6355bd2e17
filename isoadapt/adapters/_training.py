"""Training with an eye on the task: which epoch to keep, and when to stop."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import check_scoring, r2_score
from skorch.callbacks import Callback
from torch import Tensor
from tqdm import tqdm

from isoadapt.adapters._maps import Floats
from isoadapt.adapters._minibatch import AdapterNet, Batches, Rows
from isoadapt.heads import LinearHead

_ROUNDING = 1e-12  # relative deviation up to which values count as constant

Score = Callable[[NDArray[Any], NDArray[Any]], float]
"""(outputs of the head (m, C), row numbers (m,)) -> task score of those rows."""


class TargetUnits(NamedTuple):
    """Origin and unit in which a task loss takes the values of a regression, for each output.

    In these units the mean squared error is one minus R², whatever the values' offset and scale.
    Class numbers and logits are left as they are.
    """

    center: Floats
    scale: Floats

    @classmethod
    def of(cls, targets: NDArray[Any] | None) -> "TargetUnits":
        """Take mean and standard deviation of targets (n,) or (n, n_outputs).

        Outputs without variance get the unit of the others.
        """
        if targets is None or targets.ndim == 1:
            return cls(np.zeros(1), np.ones(1))
        center, deviations = targets.mean(axis=0), targets.std(axis=0)
        constant = deviations <= _ROUNDING * np.abs(center)
        others = np.sqrt(np.mean(deviations[~constant] ** 2)) if not constant.all() else 1.0
        return cls(center, np.where(constant, others, deviations))

    def targets(self, targets: NDArray[Any] | None) -> NDArray[Any] | None:
        """Give targets in these units."""
        if targets is None or targets.ndim == 1:
            return targets
        return (targets - self.center) / self.scale

    def head(self, head: LinearHead) -> LinearHead:
        """Give a head whose outputs are in these units."""
        intercept = (head.intercept_ - self.center) / self.scale
        return LinearHead(head.coef_ / self.scale[:, None], intercept, head.classes_)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Undo :meth:`head`."""
        intercept = head.intercept_ * self.scale + self.center
        return LinearHead(head.coef_ * self.scale[:, None], intercept, head.classes_)

    def outputs(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Give outputs (n, n_outputs) in the units of the values."""
        return outputs * self.scale + self.center


def make_score(
    head: LinearHead, y: NDArray[Any], scoring: Any = None, units: TargetUnits | None = None
) -> Score:
    """Score the outputs of a head by the task's metric.

    Parameters
    ----------
    head : LinearHead
        Whose outputs.
    y : ndarray of shape (n,) or (n, n_outputs)
        True labels or values.
    scoring : str, callable or None, default=None
        As in scikit-learn; None is accuracy or R², the latter over outputs with variance.
    units : TargetUnits, default=None
        In which the outputs that are scored are; None: those of `y`.

    Returns
    -------
    callable
        See `Score`.
    """
    units = TargetUnits.of(None) if units is None else units
    if scoring is None:
        targets = head.targets(y)
        if head.classes_ is not None:
            return lambda outputs, index: float(np.mean(outputs.argmax(1) == targets[index]))
        targets = cast(NDArray[Any], units.targets(targets))
        varying = np.ptp(targets, axis=0) > _ROUNDING
        if varying.any():
            targets = targets[:, varying]
            return lambda outputs, index: r2_score(targets[index], outputs[:, varying])
    n_outputs = len(head.coef_)
    reader = LinearHead(np.eye(n_outputs), np.zeros(n_outputs), head.classes_)
    scorer = check_scoring(reader, scoring=scoring)
    return lambda outputs, index: float(scorer(reader, units.outputs(outputs), y[index]))


@dataclass
class Epoch:
    """One epoch as a candidate: its validation score, its weighted penalty and the weights."""

    number: int
    score: float
    cost: float
    state: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def beats(self, other: "Epoch") -> bool:
        """Whether the other one cannot be chosen while this one can."""
        mine, others = (self.cost, -self.score), (other.cost, -other.score)
        return self.score >= other.score and (mine, self.number) < (others, other.number)


class Selection:
    """Early stopping of a member that prefers isotropy among epochs that do the task equally well.

    Among the epochs within one bootstrap standard error of the best validation score, the one
    with the lowest weighted penalty is chosen, at equal penalty the one with the best score.
    States stay in memory, but only of epochs that may still be chosen.

    Parameters
    ----------
    score : callable or None
        See `Score`; None where there is no head, when the lowest weighted penalty wins.
    weight : float
        Of the penalty in the joint loss.
    patience : int or None
        How many epochs without a new choice end the training; None never does.
    rng : RandomState
        Draws the bootstrap samples.
    """

    def __init__(
        self, score: Score | None, weight: float, patience: int | None, rng: np.random.RandomState
    ) -> None:
        self.score, self.weight = score, weight
        self.patience, self.rng = patience, rng
        self.candidates: list[Epoch] = []
        self.best, self.error = -math.inf, 0.0

    @property
    def chosen(self) -> Epoch:
        """The epoch to keep."""
        return min(self.candidates, key=lambda epoch: (epoch.cost, -epoch.score))

    def done(self, epoch: int) -> bool:
        """Whether the choice has stood for `patience` epochs."""
        return self.patience is not None and epoch - self.chosen.number >= self.patience

    def consider(
        self,
        number: int,
        penalty: float,
        finite: bool,
        outputs: NDArray[Any] | None,
        state: Callable[[], dict[str, Tensor]],
    ) -> Epoch:
        """Judge an epoch by what it makes of the validation rows, and keep it if it may be chosen.

        Parameters
        ----------
        number : int
            Of the epoch, from 1.
        penalty : float
            Of the adapted rows.
        finite : bool
            Whether these are finite.
        outputs : ndarray of shape (m, C) or None
            What the head makes of them.
        state : callable
            Copies the present weights.

        Returns
        -------
        Epoch
            As judged.
        """
        cost = self.weight * penalty
        if not finite:
            score = -math.inf
        elif self.score is None or outputs is None:
            score = -cost
        else:
            score = self._task_score(self.score, outputs)
        self.best = max(self.best, score)
        epoch = Epoch(number, score, cost)
        kept = [each for each in self.candidates if each.score >= self.best - self.error]
        if score >= self.best - self.error and not any(each.beats(epoch) for each in kept):
            epoch.state = state()
            kept = [*(each for each in kept if not epoch.beats(each)), epoch]
        self.candidates = kept
        return epoch

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


@dataclass
class Run:
    """The training of one member: how its epochs are judged, what they were, which was kept."""

    selection: Selection | None
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0


class Judge(Callback):
    """Judges each epoch of each member on validation rows.

    Parameters
    ----------
    rows : Rows
        All rows there are.
    index : Tensor of shape (m,) or (K, m)
        Those for validation: the same for all members, or each member's own.
    selections : sequence of Selection
        One for each member.

    Attributes
    ----------
    epochs : list of Epoch
        The last one of each member.
    """

    def __init__(self, rows: Rows, index: Tensor, selections: Sequence[Selection]) -> None:
        self.rows, self.index, self.selections = rows, index, list(selections)

    @torch.no_grad()
    def on_epoch_end(self, net: AdapterNet, **kwargs: Any) -> None:
        """Evaluate the present weights and offer them as candidates."""
        net._set_training(False)
        rows = self.rows.take(self.index)
        adapted, outputs = net.module_(rows.X)
        penalties = net.penalty(adapted, rows.y, net.module_.network).tolist()
        finite = adapted.flatten(1).isfinite().all(1).tolist()
        readings = None if outputs is None else outputs.cpu().numpy()
        self.epochs = [
            selection.consider(
                len(net.history),
                penalties[member],
                finite[member],
                None if readings is None else readings[member],
                partial(net.module_.member_state, member),
            )
            for member, selection in enumerate(self.selections)
        ]

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the members.

        Parameters
        ----------
        members : sequence of int
            Which.
        """
        if self.index.ndim == 2:
            self.index = self.index[members]
        self.selections = [self.selections[member] for member in members]


class Alternation(Callback):
    """Train the adapter in odd epochs and the head in even ones."""

    def on_epoch_begin(self, net: AdapterNet, **kwargs: Any) -> None:
        """Choose what this epoch trains."""
        odd = len(net.history) % 2 == 1
        net.module_.train_parts(network=odd, head=not odd)


def epochs_bar(max_epochs: int, verbose: int) -> tqdm:
    """Show the epochs of a fit, on a terminal only.

    Parameters
    ----------
    max_epochs : int
        How many there are at most.
    verbose : int
        Whether to show anything.

    Returns
    -------
    tqdm
        A bar, to be used in a ``with`` block.
    """
    hidden = not (verbose and sys.stderr.isatty())
    return tqdm(total=max_epochs, desc="epochs", disable=hidden)


def train(
    net: AdapterNet,
    batches: Batches,
    runs: Sequence[Run],
    judge: Judge | None,
    max_epochs: int,
    *,
    tick: Callable[[int], Any],
    finish: Callable[[int, int], Any] = lambda member, place: None,
) -> None:
    """Run the epochs; members that have stopped drop out.

    Parameters
    ----------
    net : AdapterNet
        Not initialised yet.
    batches : Batches
        To train on.
    runs : sequence of Run
        One for each member, filled in.
    judge : Judge or None
        Among its callbacks; None keeps the last epoch.
    max_epochs : int
        How many epochs at most.
    tick : callable
        Told, after each epoch, how many members have stopped.
    finish : callable
        Told the number of each member that has stopped and its present place in the net, which
        holds the weights to keep.
    """
    net.initialize()
    active = list(range(len(runs)))
    with ExitStack() as threads:
        for number in range(1, max_epochs + 1):
            threads.enter_context(net.step_threads(batches))
            started = time.perf_counter()
            net.fit_loop(batches, epochs=1)
            losses = net.epoch_losses.tolist()
            seconds = (time.perf_counter() - started) / len(active)
            stopped = []
            for place, member in enumerate(active):
                run = runs[member]
                entry = {"epoch": number, "train_loss": losses[place]}
                if judge is not None:
                    epoch = judge.epochs[place]
                    entry |= {"valid_score": epoch.score, "valid_cost": epoch.cost}
                run.history.append(entry | {"dur": seconds})
                run.best_epoch = number
                if number == max_epochs or (run.selection and run.selection.done(number)):
                    stopped.append(place)
                    if run.selection is not None:
                        chosen = run.selection.chosen
                        run.best_epoch = chosen.number
                        net.module_.load_member(place, chosen.state)
                    finish(member, place)
            tick(len(stopped))
            left = [place for place in range(len(active)) if place not in stopped]
            active = [active[place] for place in left]
            if not active:
                return
            if stopped:
                for part in (net, batches, judge):
                    if part is not None:
                        part.keep(left)

"""Training with an eye on the task: which epoch to keep, and when to stop."""

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
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
    def of(cls, targets: NDArray[Any] | None, weights: NDArray[Any] | None = None) -> "TargetUnits":
        """Take mean and standard deviation of targets (n,) or (n, n_outputs), weighted.

        Outputs without variance get the unit of the others.
        """
        if targets is None or targets.ndim == 1:
            return cls(np.zeros(1), np.ones(1))
        center = np.average(targets, axis=0, weights=weights)
        deviations = np.sqrt(np.average((targets - center) ** 2, axis=0, weights=weights))
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
    head: LinearHead,
    y: NDArray[Any],
    scoring: Any = None,
    units: TargetUnits | None = None,
    weights: NDArray[Any] | None = None,
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
    weights : ndarray of shape (n,), default=None
        How often each row counts. A `scoring` that takes no weights judges each row that often.

    Returns
    -------
    callable
        See `Score`.
    """
    units = TargetUnits.of(None) if units is None else units
    if scoring is None:
        targets = head.targets(y)
        if head.classes_ is not None:
            return lambda outputs, index: float(
                np.average(outputs.argmax(1) == targets[index], weights=_at(weights, index))
            )
        targets = cast(NDArray[Any], units.targets(targets))
        varying = np.ptp(targets, axis=0) > _ROUNDING
        if varying.any():
            targets = targets[:, varying]
            return lambda outputs, index: r2_score(
                targets[index], outputs[:, varying], sample_weight=_at(weights, index)
            )
    n_outputs = len(head.coef_)
    reader = LinearHead(np.eye(n_outputs), np.zeros(n_outputs), head.classes_)
    scorer = check_scoring(reader, scoring=scoring)

    def score(outputs: NDArray[Any], index: NDArray[Any]) -> float:
        found, options = units.outputs(outputs), {}
        if weights is not None and takes_weights(scorer):
            options = {"sample_weight": weights[index]}
        elif weights is not None:
            times = weights[index].astype(np.int64)
            found, index = found.repeat(times, axis=0), index.repeat(times)
        return float(scorer(reader, found, y[index], **options))

    return score


def takes_weights(scorer: Any) -> bool:
    """Tell whether a scorer takes ``sample_weight``.

    Parameters
    ----------
    scorer : callable
        As ``check_scoring`` gives it.

    Returns
    -------
    bool
        Judged by the signature of the scorer, or of the metric in it.
    """
    kinds = inspect.signature(getattr(scorer, "_score_func", scorer)).parameters.values()
    return any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in kinds)


def _at(weights: NDArray[Any] | None, index: NDArray[Any]) -> NDArray[Any] | None:
    return None if weights is None else weights[index]


@dataclass
class Epoch:
    """One epoch as a candidate: its validation score, its weighted penalty and the weights."""

    number: int
    score: float
    cost: float
    state: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def figures(self) -> dict[str, float]:
        """Score and penalty under their names in the history of a fit."""
        return {"valid_score": self.score, "valid_cost": self.cost}


class Selection:
    """Early stopping of a member: the last epoch that does the task as well as the best is kept.

    It is the last whose validation score lies within one bootstrap standard error of the best
    score, that of the start included; if no epoch does, the one with the best score. Values of the
    penalty play no part, so that a control without a penalty is chosen by the same rule. Only the
    weights of one epoch stay in memory.

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

    Attributes
    ----------
    start : Epoch or None
        What the weights at the start are worth; None if that was not asked.
    chosen : Epoch or None
        The epoch to keep; None before the first.
    best, error : float
        The best score so far and its standard error.
    """

    def __init__(
        self, score: Score | None, weight: float, patience: int | None, rng: np.random.RandomState
    ) -> None:
        self.score, self.weight = score, weight
        self.patience, self.rng = patience, rng
        self.start: Epoch | None = None
        self.chosen: Epoch | None = None
        self.best, self.error = -math.inf, 0.0

    def done(self, epoch: int) -> bool:
        """Whether the choice has stood for `patience` epochs."""
        if self.patience is None or self.chosen is None:
            return False
        return epoch - self.chosen.number >= self.patience

    def consider(
        self,
        number: int,
        penalty: float,
        finite: bool,
        outputs: NDArray[Any] | None,
        state: Callable[[], dict[str, Tensor]],
    ) -> Epoch:
        """Judge an epoch by what it makes of the validation rows, and keep it if it is chosen.

        Parameters
        ----------
        number : int
            Of the epoch, from 1; 0 for the start, which is never chosen.
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
        if number == 0:
            self.start = epoch
        elif (
            self.chosen is None
            or self._is_as_good(epoch)
            or (not self._is_as_good(self.chosen) and score > self.chosen.score)
        ):
            epoch.state = state()
            self.chosen = epoch
        return epoch

    def _is_as_good(self, epoch: Epoch) -> bool:
        """Whether an epoch does the task as well as the best, but for one standard error."""
        return epoch.score >= self.best - self.error

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

    def stops(self, epoch: int) -> bool:
        """Whether training ends after an epoch because the choice has stood for long."""
        return self.selection is not None and self.selection.done(epoch)

    def choose(self, last: int) -> Epoch | None:
        """Settle the epoch to keep; None is the last one, whose weights are there."""
        chosen = None if self.selection is None else self.selection.chosen
        self.best_epoch = last if chosen is None else chosen.number
        return chosen

    def doubts(self, max_epochs: int) -> list[Warning]:
        """Give warnings about an epoch that harms the task, or that came too early."""
        selection = self.selection
        if selection is None or selection.score is None:
            return []
        found = [_harm(selection), _haste(selection, self.history, max_epochs)]
        return [doubt for doubt in found if doubt is not None]


def _harm(selection: Selection) -> UserWarning | None:
    """Warn where the kept epoch is worse than the start by more than a standard error."""
    start, chosen, error = selection.start, selection.chosen, selection.error
    if start is None or chosen is None or chosen.score >= start.score - error:
        return None
    return UserWarning(
        f"this fit harms the task: the validation score is {start.score:.4g} before training and "
        f"{chosen.score:.4g} at the epoch kept ({chosen.number}), lower by more than one standard "
        f"error ({error:.2g}). Use LogitPreservingWhitening, which changes no prediction, "
        "ridge='auto' or a larger ridge, a smaller lr, or more rows"
    )


def _haste(
    selection: Selection, history: Sequence[Mapping[str, float]], max_epochs: int
) -> ConvergenceWarning | None:
    """Warn where the last epoch is kept and the score rose until then by more than its error."""
    chosen, window = selection.chosen, max(1, max_epochs // 3)
    if chosen is None or chosen.number < max_epochs:
        return None
    before = max(entry["valid_score"] for entry in history if entry["epoch"] <= max_epochs - window)
    if chosen.score <= before + selection.error:
        return None
    return ConvergenceWarning(
        f"training ended at max_epochs={max_epochs} while the validation score was still rising: "
        f"from {before:.4g} to {chosen.score:.4g} in the last {window} epoch(s), by more than one "
        f"standard error ({selection.error:.2g}). Increase max_epochs or lr"
    )


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
    counts_start : bool, default=True
        Whether the weights at the start are judged too, as epoch 0.

    Attributes
    ----------
    epochs : list of Epoch
        The last one of each member.
    """

    def __init__(
        self,
        rows: Rows,
        index: Tensor,
        selections: Sequence[Selection],
        counts_start: bool = True,
    ) -> None:
        self.rows, self.index, self.selections = rows, index, list(selections)
        self.counts_start = counts_start

    @torch.no_grad()
    def judge_start(self, net: AdapterNet, batches: Batches, runs: Sequence["Run"]) -> None:
        """Evaluate the weights at the start and note them as epoch 0."""
        net.penalty.refresh(net.module_.network, batches)
        self.judge(net, 0)
        for run, epoch in zip(runs, self.epochs, strict=True):
            run.history.append({"epoch": 0, **epoch.figures()})

    def on_epoch_end(self, net: AdapterNet, **kwargs: Any) -> None:
        """Evaluate the present weights and offer them as candidates."""
        self.judge(net, len(net.history))

    @torch.no_grad()
    def judge(self, net: AdapterNet, number: int) -> None:
        """Evaluate the present weights as those of an epoch; 0 is the start."""
        net._set_training(False)
        rows = self.rows.take(self.index)
        adapted, outputs = net.module_(rows.X)
        penalties = net.penalty(adapted, rows.y, net.module_.network).tolist()
        finite = adapted.flatten(1).isfinite().all(1).tolist()
        readings = None if outputs is None else outputs.cpu().numpy()
        self.epochs = [
            selection.consider(
                number,
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


class LinearDecay(Callback):
    """Let the learning rates fall linearly from epoch to epoch, so that Adam's steps settle."""

    def __init__(self, max_epochs: int) -> None:
        self.max_epochs = max_epochs

    def on_epoch_begin(self, net: AdapterNet, **kwargs: Any) -> None:
        """Set the rates of this epoch: the full ones in the first, 1/max_epochs in the last."""
        net.optimizer_.factor = 1 - (len(net.history) - 1) / self.max_epochs


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
    if judge is not None and judge.counts_start:
        judge.judge_start(net, batches, runs)
    active = list(range(len(runs)))
    with ExitStack() as threads:
        for number in range(1, max_epochs + 1):
            threads.enter_context(net.step_threads(batches))
            started = time.perf_counter()
            net.fit_loop(batches, epochs=1)
            seconds = (time.perf_counter() - started) / len(active)
            _note_epoch(net, [runs[member] for member in active], judge, number, seconds)
            stopped = [
                place
                for place, member in enumerate(active)
                if number == max_epochs or runs[member].stops(number)
            ]
            for place in stopped:
                chosen = runs[active[place]].choose(number)
                if chosen is not None:
                    net.module_.load_member(place, chosen.state)
                finish(active[place], place)
            tick(len(stopped))
            left = [place for place in range(len(active)) if place not in stopped]
            active = [active[place] for place in left]
            if not active:
                return
            if stopped:
                for part in (net, batches, judge):
                    if part is not None:
                        part.keep(left)


def _note_epoch(
    net: AdapterNet, runs: Sequence[Run], judge: Judge | None, number: int, seconds: float
) -> None:
    """Add an entry to the history of each member."""
    for place, (run, loss) in enumerate(zip(runs, net.epoch_losses.tolist(), strict=True)):
        entry = {"epoch": number, "train_loss": loss}
        if judge is not None:
            entry |= judge.epochs[place].figures()
        run.history.append(entry | {"dur": seconds})

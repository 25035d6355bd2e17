"""Which epoch of a member to keep, when to stop, and what to warn of."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from isoadapt.adapters._training._task_score import Score

_ROUNDING = 1e-5  # relative, of scores: outputs are computed in float32


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
    """Early stopping of a member: which epoch to keep.

    It is the last one whose validation score is within one bootstrap standard error of the best
    score, that of the start included; if there is none, the one with the best score. Values of the
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
    least_error : float, default=0.0
        The standard error is no smaller: where all rows are right, the bootstrap gives 0.

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
        self,
        score: Score | None,
        weight: float,
        patience: int | None,
        rng: np.random.RandomState,
        least_error: float = 0.0,
    ) -> None:
        self.score, self.weight, self.least_error = score, weight, least_error
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
                f"scoring gives {value} on the {n} validation rows, perhaps because a class is "
                "missing: use more rows, another scoring, or validation_fraction=None"
            )
        if value > self.best:
            samples = self.rng.randint(n, size=(200, n))
            draws = [_defined(score, outputs[index], index) for index in samples]
            kept = [draw for draw in draws if math.isfinite(draw)]
            spread = float(np.std(kept)) if kept else 0.0
            self.error = max(spread, self.least_error, _ROUNDING * abs(value))
        return value


def _defined(score: Score, outputs: NDArray[Any], index: NDArray[Any]) -> float:
    """Score a bootstrap sample; NaN where it lacks a class that the metric needs."""
    try:
        return score(outputs, index)
    except ValueError:
        return math.nan


@dataclass
class Run:
    """The training of one member: how its epochs are judged, what they were, which was kept.

    With `n_epochs`, their number is settled, and the last one is kept.
    """

    selection: Selection | None
    n_epochs: int | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0

    def stops(self, epoch: int) -> bool:
        """Whether training ends after an epoch, the choice having stood for long or settled."""
        if self.n_epochs is not None:
            return epoch >= self.n_epochs
        return self.selection is not None and self.selection.done(epoch)

    def choose(self, last: int) -> Epoch | None:
        """Settle the epoch to keep; None is the last one, whose weights are there."""
        chosen = None if self.selection is None else self.selection.chosen
        self.best_epoch = last if chosen is None else chosen.number
        return chosen

    def doubts(self, max_epochs: int) -> list[Warning]:
        """Warn if the kept epoch scores below the start, or the score still rose at max_epochs."""
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
        "a larger ridge, a smaller lr, or more rows or epochs"
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

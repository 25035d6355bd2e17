"""The choice of the epoch to keep, early stopping, and warnings about a fit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from isoadapt.adapters._training._task_score import Accuracy, Score

_ROUNDING = 1e-5  # relative rounding error of scores: outputs are computed in float32
_N_DRAWS = 200  # bootstrap samples


@dataclass
class Epoch:
    """One epoch as a candidate: its validation score, its weighted penalty and its weights."""

    number: int
    score: float
    cost: float
    state: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def figures(self) -> dict[str, float]:
        """Return score and penalty under their names in the history of a fit."""
        return {"valid_score": self.score, "valid_cost": self.cost}


class Selection:
    """Early stopping of one member: the choice of the epoch to keep.

    The last epoch is chosen whose validation score is within one standard error of the best score,
    that of the start included; if there is none, the epoch with the best score. The value of the
    penalty is not used, so that a control without a penalty is chosen by the same rule. Without
    `score`, which means without a head, the lowest weighted penalty is best. After `patience`
    epochs without a new choice training stops. Only the weights of one epoch are kept in memory.
    """

    def __init__(
        self,
        score: Score | None,
        weight: float,
        patience: int | None,
        rng: np.random.RandomState,
        least_error: float = 0.0,
    ) -> None:
        self.score, self.weight = score, weight
        self.least_error = least_error  # if all rows are right, their standard error is 0
        self.patience, self.rng = patience, rng
        self.start: Epoch | None = None
        self.chosen: Epoch | None = None
        self.best, self.error = -math.inf, 0.0

    def done(self, epoch: int) -> bool:
        """Whether the choice has not changed for `patience` epochs."""
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
        """Score an epoch on the validation rows, and keep it if it is chosen.

        `penalty` is that of the adapted rows. `finite` says whether these are finite, or the
        weights if they were not computed. `outputs` (m, C) are the head's, and `state` copies the
        present weights. Epoch 0 is the start, which is never chosen.
        """
        cost = self.weight * penalty
        if finite and self.score is not None and outputs is not None:
            score = self._task_score(self.score, outputs)
        else:
            score = -math.inf if not finite or math.isnan(cost) else -cost
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
        """Whether an epoch scores within one standard error of the best score."""
        return epoch.score >= self.best - self.error

    def _task_score(self, score: Score, outputs: NDArray[Any]) -> float:
        n = len(outputs)
        try:
            value = score(outputs, np.arange(n))
        except ValueError as error:
            raise ValueError(f"scoring failed on the {n} validation rows: {error}") from error
        if not math.isfinite(value):
            raise ValueError(
                f"scoring returned {value} on the {n} validation rows, perhaps because they lack "
                "a class: use more rows, another scoring, or validation_fraction=None"
            )
        if value > self.best:
            spread = self._standard_error(score, outputs)
            self.error = max(spread, self.least_error, _ROUNDING * abs(value))
        return value

    def _standard_error(self, score: Score, outputs: NDArray[Any]) -> float:
        """Standard error of a score, by a bootstrap unless it is an accuracy."""
        if isinstance(score, Accuracy):
            return score.standard_error(outputs)
        n = len(outputs)
        samples = self.rng.randint(n, size=(_N_DRAWS, n))
        draws = [_defined(score, outputs[index], index) for index in samples]
        kept = [draw for draw in draws if math.isfinite(draw)]
        return float(np.std(kept)) if kept else 0.0


def _defined(score: Score, outputs: NDArray[Any], index: NDArray[Any]) -> float:
    """Score a bootstrap sample; NaN if it lacks a class that the metric needs."""
    try:
        return score(outputs, index)
    except ValueError:
        return math.nan


@dataclass
class Run:
    """The training of one member: its selection, its history and the number of the kept epoch.

    With `n_epochs`, training runs for that many epochs and the last one is kept.
    """

    selection: Selection | None
    n_epochs: int | None = None
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0

    def stops(self, epoch: int) -> bool:
        """Whether training ends after an epoch."""
        if self.n_epochs is not None:
            return epoch >= self.n_epochs
        return self.selection is not None and self.selection.done(epoch)

    def choose(self, last: int) -> Epoch | None:
        """Return the epoch to keep; None means the last one, whose weights are in the network."""
        chosen = None if self.selection is None else self.selection.chosen
        self.best_epoch = last if chosen is None else chosen.number
        return chosen

    def kept_loss_is_finite(self) -> bool:
        """Whether the training loss of the kept epoch is finite."""
        losses = {row["epoch"]: row.get("train_loss", 0.0) for row in self.history}
        return math.isfinite(losses[self.best_epoch])

    def warnings(self, max_epochs: int) -> list[Warning]:
        """Warnings for a kept epoch worse than the start and a score still rising at the end."""
        selection = self.selection
        if selection is None or selection.score is None:
            return []
        found = [
            _lower_score_warning(selection),
            _max_epochs_warning(selection, self.history, max_epochs),
        ]
        return [warning for warning in found if warning is not None]


def _lower_score_warning(selection: Selection) -> UserWarning | None:
    """Warn if the kept epoch scores below the start by more than one standard error."""
    start, chosen, error = selection.start, selection.chosen, selection.error
    if start is None or chosen is None or chosen.score >= start.score - error:
        return None
    return UserWarning(
        f"this fit harms the task: the validation score is {start.score:.4g} before training and "
        f"{chosen.score:.4g} at the kept epoch ({chosen.number}), which is lower by more than one "
        f"standard error ({error:.2g}). Use LogitPreservingWhitening, which changes no prediction, "
        "a larger ridge, a smaller lr, or more rows or epochs"
    )


def _max_epochs_warning(
    selection: Selection, history: Sequence[Mapping[str, float]], max_epochs: int
) -> ConvergenceWarning | None:
    """Warn if the last epoch is kept and the score was still rising significantly."""
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

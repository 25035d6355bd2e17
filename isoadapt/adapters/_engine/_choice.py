"""The choice of the epoch to keep, from the task's metric on the validation rows."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import check_scoring
from torch import Tensor

from isoadapt.adapters._maps import Floats
from isoadapt.heads import LinearHead

_CONSTANT = 1e-12  # values with a smaller relative deviation count as constant
_ROUNDING = 1e-5  # relative rounding error of scores: outputs are computed in float32
_N_DRAWS = 200  # bootstrap samples

Score = Callable[[NDArray[Any], NDArray[Any]], float]
"""Maps outputs of the head (m, C) and row numbers (m,) to the score of these rows."""


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Accuracy as a `Score`, with its standard error in closed form."""

    targets: NDArray[Any]  # class numbers (m,), or whether each label applies (m, C)
    weights: NDArray[Any] | None = None  # frequencies, (m,)

    def __call__(self, outputs: NDArray[Any], index: NDArray[Any]) -> float:
        """Return the accuracy of outputs (m', C) of the rows with the given numbers (m',)."""
        right = self._right(outputs, index)
        return float(np.average(right, weights=_at(self.weights, index)))

    def standard_error(self, outputs: NDArray[Any]) -> float:
        """Return the standard error of the accuracy of all outputs (m, C), in closed form."""
        right = self._right(outputs)
        weights = np.ones(len(right)) if self.weights is None else self.weights
        deviations = right - np.average(right, weights=weights)
        return float(np.linalg.norm(weights * deviations) / weights.sum())

    def _right(self, outputs: NDArray[Any], index: Any = slice(None)) -> NDArray[np.bool_]:
        if self.targets.ndim == 2:
            return ((outputs > 0) == self.targets[index]).all(axis=1)
        return outputs.argmax(axis=1) == self.targets[index]


class TargetUnits(NamedTuple):
    """Origin and unit of each output of a regression, in which the mean squared error is 1 - R²."""

    center: Floats
    scale: Floats

    @classmethod
    def of(cls, targets: NDArray[Any] | None, weights: NDArray[Any] | None = None) -> "TargetUnits":
        """Take the weighted mean and standard deviation of values (n, n_outputs)."""
        if targets is None or targets.dtype.kind != "f":
            return cls(np.zeros(1), np.ones(1))
        center = np.average(targets, axis=0, weights=weights)
        deviations = np.sqrt(np.average((targets - center) ** 2, axis=0, weights=weights))
        constant = deviations <= _CONSTANT * np.abs(center)
        others = np.sqrt(np.mean(deviations[~constant] ** 2)) if not constant.all() else 1.0
        return cls(center, np.where(constant, others, deviations))

    def targets(self, targets: NDArray[Any] | None) -> NDArray[Any] | None:
        """Convert targets to these units."""
        if targets is None or targets.dtype.kind != "f":
            return targets
        return (targets - self.center) / self.scale

    def head(self, head: LinearHead) -> LinearHead:
        """Convert a head so that its outputs are in these units."""
        intercept = (head.intercept_ - self.center) / self.scale
        return head._with(head.coef_ / self.scale[:, None], intercept)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Undo :meth:`head`."""
        intercept = head.intercept_ * self.scale + self.center
        return head._with(head.coef_ * self.scale[:, None], intercept)

    def outputs(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Convert outputs (n, n_outputs) from these units to those of the values."""
        return outputs * self.scale + self.center


def make_score(
    head: LinearHead,
    y: NDArray[Any],
    targets: NDArray[Any],
    scoring: Any = None,
    units: TargetUnits | None = None,
    weights: NDArray[Any] | None = None,
) -> Score:
    """Return a function that scores outputs of `head`, in `units`, with the metric of the task.

    `targets` are y as class numbers (m,), or values or booleans (m, n_outputs).
    """
    units = TargetUnits.of(None) if units is None else units
    if targets.dtype.kind != "f" and scoring in (None, "accuracy"):
        return Accuracy(targets, weights)
    if targets.dtype.kind == "f" and scoring is None:
        values = (targets - units.center) / units.scale
        varying = np.ptp(values, axis=0) > _CONSTANT
        if varying.any():
            values = values[:, varying]
            return lambda outputs, index: _r2(
                values[index], outputs[:, varying], _at(weights, index)
            )
    n_outputs = len(head.coef_)
    reader = head._with(np.eye(n_outputs), np.zeros(n_outputs))
    scorer = check_scoring(reader, scoring=scoring)

    def score(outputs: NDArray[Any], index: NDArray[Any]) -> float:
        found, options = units.outputs(outputs), {}
        if weights is not None and takes_weights(scorer):
            options = {"sample_weight": weights[index]}
        elif weights is not None:
            times = weights[index].astype(np.int64)
            found, index = found.repeat(times, axis=0), index.repeat(times)
        value = scorer(reader, found, y[index], **options)
        try:
            return float(value)
        except TypeError as error:
            raise TypeError(
                f"scoring={scoring!r} returned {value!r}, but must return one number; pass a "
                "metric with a single value"
            ) from error

    return score


def _r2(y: NDArray[Any], outputs: NDArray[Any], weights: NDArray[Any] | None) -> float:
    """Return R² as scikit-learn's r2_score, without its checks: 200 samples are scored an epoch."""
    if len(y) < 2:
        return math.nan
    if not np.isfinite(outputs).all():
        raise ValueError("the outputs of the head contain NaN or infinity")
    y, outputs = y.astype(np.float64), outputs.astype(np.float64)
    left, total = (y - outputs) ** 2, (y - np.average(y, axis=0, weights=weights)) ** 2
    weights = np.ones(len(y)) if weights is None else weights
    left, total = weights @ left, weights @ total
    constant = total == 0
    return float(np.mean(np.where(constant, left == 0, 1 - left / np.where(constant, 1, total))))


def takes_weights(scorer: Any) -> bool:
    """Whether a scorer, or the metric inside it, has a parameter ``sample_weight``."""
    kinds = inspect.signature(getattr(scorer, "_score_func", scorer)).parameters.values()
    return any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in kinds)


def _at(weights: NDArray[Any] | None, index: NDArray[Any]) -> NDArray[Any] | None:
    return None if weights is None else weights[index]


class Epoch(NamedTuple):
    """One epoch as a candidate: its validation score, and its weights if it is kept."""

    number: int
    score: float
    state: dict[str, Tensor]


class EpochChoice:
    """The epochs of one member: their history, early stopping, and which of them is kept.

    The last epoch is chosen whose validation score is within one standard error of the best score,
    that of the start included; if there is none, the epoch with the best score. The value of the
    penalty is not used, so that a control without a penalty is chosen by the same rule. Without
    `score`, which means without a head, the lowest weighted penalty is best. After `patience`
    epochs without a new choice training stops. Only the weights of one epoch are kept in memory.
    Without validation rows, training ends after `n_epochs`, and the last epoch is kept.
    """

    def __init__(
        self,
        score: Score | None = None,
        weight: float = 1.0,
        patience: int | None = None,
        rng: np.random.RandomState | None = None,
        least_error: float = 0.0,
        n_epochs: int | None = None,
    ) -> None:
        self.score, self.weight, self.patience, self.rng = score, weight, patience, rng
        self.least_error = least_error  # if all rows are right, their standard error is 0
        self.n_epochs = n_epochs
        self.history: list[dict[str, float]] = []
        self.start: Epoch | None = None
        self.chosen: Epoch | None = None
        self.best, self.error, self.best_epoch = -math.inf, 0.0, 0

    def consider(
        self,
        number: int,
        penalty: float,
        finite: bool,
        outputs: NDArray[Any] | None,
        state: Callable[[], dict[str, Tensor]],
    ) -> dict[str, float]:
        """Score an epoch on the validation rows, keep it if it is chosen, and return its figures.

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
        if number == 0:
            self.start = Epoch(0, score, {})
        elif (
            self.chosen is None
            or self._is_as_good(score)
            or (not self._is_as_good(self.chosen.score) and score > self.chosen.score)
        ):
            self.chosen = Epoch(number, score, state())
        return {"valid_score": score, "valid_cost": cost}

    def stops(self, epoch: int) -> bool:
        """Whether training ends after an epoch."""
        if self.n_epochs is not None:
            return epoch >= self.n_epochs
        if self.patience is None or self.chosen is None:
            return False
        return epoch - self.chosen.number >= self.patience

    def choose(self, last: int) -> dict[str, Tensor] | None:
        """Return the weights to keep; None means those of the last epoch, in the network."""
        self.best_epoch = last if self.chosen is None else self.chosen.number
        return None if self.chosen is None else self.chosen.state

    def kept_loss_is_finite(self) -> bool:
        """Whether the training loss of the kept epoch is finite."""
        losses = {row["epoch"]: row.get("train_loss", 0.0) for row in self.history}
        return math.isfinite(losses[self.best_epoch])

    def warnings(self, max_epochs: int) -> list[Warning]:
        """Warn if the kept epoch is worse than the start, or if the score still rose at the end."""
        start, chosen, error = self.start, self.chosen, self.error
        if self.score is None or chosen is None:
            return []
        found: list[Warning] = []
        if start is not None and chosen.score < start.score - error:
            figures = _written(start.score, chosen.score)
            found.append(
                UserWarning(
                    f"this fit harms the task: the validation score is {figures[0]} before "
                    f"training and {figures[1]} at the kept epoch ({chosen.number}), which "
                    f"is lower by more than one standard error ({error:.2g}). Use "
                    "LogitPreservingWhitening, which changes no prediction, a larger ridge, a "
                    "smaller lr, or more rows or epochs"
                )
            )
        window = max(1, max_epochs // 3)
        earlier = [row for row in self.history if row["epoch"] <= max_epochs - window]
        before = max((row["valid_score"] for row in earlier), default=math.inf)
        if chosen.number >= max_epochs and chosen.score > before + error:
            figures = _written(before, chosen.score)
            found.append(
                ConvergenceWarning(
                    f"training ended at max_epochs={max_epochs} while the validation score was "
                    f"still rising: from {figures[0]} to {figures[1]} in the last {window} "
                    f"epoch(s), by more than one standard error ({error:.2g}). Increase "
                    "max_epochs or lr"
                )
            )
        return found

    def _is_as_good(self, score: float) -> bool:
        """Whether a score is within one standard error of the best score."""
        return score >= self.best - self.error

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
        n, rng = len(outputs), cast(np.random.RandomState, self.rng)
        samples = rng.randint(n, size=(_N_DRAWS, n))
        draws = [_defined(score, outputs[index], index) for index in samples]
        kept = [draw for draw in draws if math.isfinite(draw)]
        return float(np.std(kept)) if kept else 0.0


def _defined(score: Score, outputs: NDArray[Any], index: NDArray[Any]) -> float:
    """Score a bootstrap sample; NaN if it lacks a class that the metric needs."""
    try:
        return score(outputs, index)
    except ValueError:
        return math.nan


def _written(*scores: float) -> list[str]:
    """Write different scores with four digits, or with as many more as show the difference."""
    written = ([f"{score:.{digits}g}" for score in scores] for digits in range(4, 18))
    return next(texts for texts in written if len(set(texts)) > 1)

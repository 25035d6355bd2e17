"""The choice of the epoch to keep, from the task's metric on the validation rows."""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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


class Score:
    """A metric of the task, which scores outputs (m, C) of the validation rows numbered (m,)."""

    def __init__(self, metric: Callable[[NDArray[Any], NDArray[Any]], float]) -> None:
        self.metric = metric

    def __call__(self, outputs: NDArray[Any]) -> float:
        """Return the score of the head's outputs for all validation rows."""
        return self.metric(outputs, np.arange(len(outputs)))

    def standard_error(self, outputs: NDArray[Any], rng: np.random.RandomState) -> float:
        """Return the standard error of the score, by a bootstrap."""
        draws = []
        for index in rng.randint(len(outputs), size=(_N_DRAWS, len(outputs))):
            try:
                draws.append(self.metric(outputs[index], index))
            except ValueError:  # the sample lacks a class that the metric needs
                continue
        finite = [draw for draw in draws if math.isfinite(draw)]
        return float(np.std(finite)) if finite else 0.0


class Accuracy(Score):
    """Accuracy, whose standard error has a closed form and is at least one row's share."""

    def __init__(self, targets: NDArray[Any], weights: NDArray[Any] | None = None) -> None:
        self.targets = targets  # class numbers (m,), or whether each label applies (m, C)
        self.weights = np.ones(len(targets)) if weights is None else weights

    def __call__(self, outputs: NDArray[Any]) -> float:
        return float(np.average(self._right(outputs), weights=self.weights))

    def standard_error(self, outputs: NDArray[Any], rng: Any = None) -> float:
        right = self._right(outputs)
        deviations = self.weights * (right - np.average(right, weights=self.weights))
        return max(float(np.linalg.norm(deviations) / self.weights.sum()), 1 / len(right))

    def _right(self, outputs: NDArray[Any]) -> NDArray[np.bool_]:
        if self.targets.ndim == 2:
            return ((outputs > 0) == self.targets).all(axis=1)
        return outputs.argmax(axis=1) == self.targets


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


def make_score(
    head: LinearHead,
    y: NDArray[Any],
    targets: NDArray[Any],
    units: TargetUnits,
    weights: NDArray[Any] | None,
    scoring: Any,
) -> Score:
    """Return the metric of the task for outputs of `head` in `units` and its targets of y."""
    if targets.dtype.kind != "f" and scoring in (None, "accuracy"):
        return Accuracy(targets, weights)
    if targets.dtype.kind == "f" and scoring is None:
        values = cast(Floats, units.targets(targets))
        varying = np.ptp(values, axis=0) > _CONSTANT
        if varying.any():
            values, shares = values[:, varying], np.ones(len(y)) if weights is None else weights
            return Score(lambda found, k: _r2(values[k], found[:, varying], shares[k]))
    n_outputs = len(head.coef_)
    reader = head._with(np.eye(n_outputs), np.zeros(n_outputs))
    scorer = check_scoring(reader, scoring=scoring)

    def metric(outputs: NDArray[Any], index: NDArray[Any]) -> float:
        found, options = outputs * units.scale + units.center, {}
        if weights is not None and takes_weights(scorer):
            options = {"sample_weight": weights[index]}
        elif weights is not None:
            times = weights[index].astype(np.int64)
            found, index = found.repeat(times, axis=0), index.repeat(times)
        return float(scorer(reader, found, y[index], **options))

    return Score(metric)


def _r2(y: NDArray[Any], outputs: NDArray[Any], weights: NDArray[Any]) -> float:
    """Return R² as scikit-learn's r2_score, without its checks: 200 samples are scored an epoch."""
    y, outputs = y.astype(np.float64), outputs.astype(np.float64)
    left, total = (y - outputs) ** 2, (y - np.average(y, axis=0, weights=weights)) ** 2
    left, total = weights @ left, weights @ total
    constant = total == 0
    return float(np.mean(np.where(constant, left == 0, 1 - left / np.where(constant, 1, total))))


def takes_weights(scorer: Any) -> bool:
    """Whether a scorer, or the metric inside it, has a parameter ``sample_weight``."""
    kinds = inspect.signature(getattr(scorer, "_score_func", scorer)).parameters.values()
    return any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in kinds)


@dataclass(eq=False)
class EpochChoice:
    """The epochs of one member: their history, and the one to keep by the rule of `scoring`."""

    max_epochs: int
    patience: int | None
    score: Score | None
    weight: float  # of the penalty
    rng: np.random.RandomState  # draws the bootstrap samples
    history: list[dict[str, float]] = field(default_factory=list)
    best: float = -math.inf  # score of an epoch, the start included
    error: float = 0.0  # its standard error
    best_epoch: int = 0  # the kept one; the start, epoch 0, is not kept
    kept_score: float = -math.inf
    state: dict[str, Tensor] = field(default_factory=dict)  # the kept weights

    def consider(
        self,
        number: int,
        penalty: float,
        outputs: NDArray[Any] | None,
        state: Callable[[], dict[str, Tensor]],
    ) -> dict[str, float]:
        """Score outputs (m, C), or the penalty, of an epoch, and keep its weights if chosen."""
        cost = self.weight * penalty
        score = -cost if math.isfinite(cost) else -math.inf  # worse than all others
        if self.score is not None and outputs is not None:
            finite = np.isfinite(outputs).all()
            score = self._task_score(self.score, outputs) if finite else -math.inf
        self.best = max(self.best, score)
        better = not self._is_as_good(self.kept_score) and score > self.kept_score
        if number and (not self.best_epoch or self._is_as_good(score) or better):
            self.keep(number, state, score)
        return {"valid_score": score, "valid_cost": cost}

    def keep(
        self, number: int, state: Callable[[], dict[str, Tensor]], score: float = math.nan
    ) -> None:
        """Keep the present weights."""
        self.best_epoch, self.kept_score, self.state = number, score, state()

    def stops(self, epoch: int) -> bool:
        """Whether training ends after an epoch."""
        return epoch >= self.max_epochs or epoch - self.best_epoch >= (self.patience or math.inf)

    def warnings(self) -> Iterator[Warning]:
        """Warn if the kept epoch is worse than the start, or if the score still rose at the end."""
        if self.score is None:
            return
        scores, kept = [row["valid_score"] for row in self.history], self.kept_score
        if kept < scores[0] - self.error:
            yield UserWarning(
                f"this fit harms the task: the validation score is {scores[0]:.4g} before training "
                f"and lower by {scores[0] - kept:.2g} at the kept epoch ({self.best_epoch}), by "
                f"more than one standard error ({self.error:.2g}). Use LogitPreservingWhitening, "
                "which changes no prediction, a larger ridge, a smaller lr, or more rows or epochs"
            )
        window = max(1, self.max_epochs // 3)
        before = max(scores[: self.max_epochs - window + 1])
        if self.best_epoch == self.max_epochs and kept > before + self.error:
            yield ConvergenceWarning(
                f"training ended at max_epochs={self.max_epochs} while the validation score was "
                f"still rising: to {kept:.4g}, by {kept - before:.2g} in the last {window} "
                f"epoch(s), more than one standard error ({self.error:.2g}). Increase max_epochs "
                "or lr"
            )

    def _is_as_good(self, score: float) -> bool:
        """Whether a score is within one standard error of the best score."""
        return score >= self.best - self.error

    def _task_score(self, score: Score, outputs: NDArray[Any]) -> float:
        """Score outputs (m, C), and estimate the standard error of a score that is the best yet."""
        value = score(outputs)
        if not math.isfinite(value):
            raise ValueError(
                f"scoring returned {value} on the {len(outputs)} validation rows, perhaps because "
                "they lack a class: use more rows, another scoring, or validation_fraction=None"
            )
        if value > self.best:
            self.error = max(score.standard_error(outputs, self.rng), _ROUNDING * abs(value))
        return value

"""The task's metric on the outputs of a head, and the units of the targets."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import check_scoring

from isoadapt.adapters._maps import Floats
from isoadapt.heads import LinearHead

_ROUNDING = 1e-12  # values with a smaller relative deviation count as constant

Score = Callable[[NDArray[Any], NDArray[Any]], float]
"""Maps outputs of the head (m, C) and row numbers (m,) to the score of these rows."""


@dataclass(frozen=True, eq=False)
class Accuracy:
    """Accuracy as a `Score`, with its standard error in closed form."""

    targets: NDArray[Any]  # class numbers, (m,)
    weights: NDArray[Any] | None = None  # frequencies, (m,)

    def __call__(self, outputs: NDArray[Any], index: NDArray[Any]) -> float:
        """Return the accuracy of outputs (m', C) of the rows with the given numbers (m',)."""
        right = outputs.argmax(1) == self.targets[index]
        return float(np.average(right, weights=_at(self.weights, index)))

    def standard_error(self, outputs: NDArray[Any]) -> float:
        """Return the standard error of the accuracy of all outputs (m, C).

        It is the one that a bootstrap of the rows estimates; with weights, to first order.
        """
        right = outputs.argmax(1) == self.targets
        weights = np.ones(len(right)) if self.weights is None else self.weights
        deviations = right - np.average(right, weights=weights)
        return float(np.linalg.norm(weights * deviations) / weights.sum())


class TargetUnits(NamedTuple):
    """Origin and unit of each output of a regression in the task loss.

    In these units the mean squared error is 1 - R², whatever the offset and scale of the values.
    Class numbers and logits are left unchanged.
    """

    center: Floats
    scale: Floats

    @classmethod
    def of(cls, targets: NDArray[Any] | None, weights: NDArray[Any] | None = None) -> "TargetUnits":
        """Take the weighted mean and standard deviation of targets (n,) or (n, n_outputs).

        Outputs without variance get the root mean square of the other outputs' units.
        """
        if targets is None or targets.ndim == 1:
            return cls(np.zeros(1), np.ones(1))
        center = np.average(targets, axis=0, weights=weights)
        deviations = np.sqrt(np.average((targets - center) ** 2, axis=0, weights=weights))
        constant = deviations <= _ROUNDING * np.abs(center)
        others = np.sqrt(np.mean(deviations[~constant] ** 2)) if not constant.all() else 1.0
        return cls(center, np.where(constant, others, deviations))

    def targets(self, targets: NDArray[Any] | None) -> NDArray[Any] | None:
        """Convert targets to these units."""
        if targets is None or targets.ndim == 1:
            return targets
        return (targets - self.center) / self.scale

    def head(self, head: LinearHead) -> LinearHead:
        """Convert a head so that its outputs are in these units."""
        intercept = (head.intercept_ - self.center) / self.scale
        return LinearHead(head.coef_ / self.scale[:, None], intercept, head.classes_)

    def outer_head(self, head: LinearHead) -> LinearHead:
        """Undo :meth:`head`."""
        intercept = head.intercept_ * self.scale + self.center
        return LinearHead(head.coef_ * self.scale[:, None], intercept, head.classes_)

    def outputs(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Convert outputs (n, n_outputs) from these units to those of the values."""
        return outputs * self.scale + self.center


def make_score(
    head: LinearHead,
    y: NDArray[Any],
    scoring: Any = None,
    units: TargetUnits | None = None,
    weights: NDArray[Any] | None = None,
) -> Score:
    """Return a function that scores outputs of `head` with the metric of the task.

    `scoring` None means accuracy, or R² over the outputs with variance. `units` are those of the
    outputs, by default those of the true values `y`. `weights` (n,) are frequencies; a `scoring`
    without sample_weight gets each row that often.
    """
    units = TargetUnits.of(None) if units is None else units
    named = "accuracy" if scoring is None else scoring
    if head.classes_ is not None and isinstance(named, str) and named == "accuracy":
        return Accuracy(head._targets(y), weights)
    if head.classes_ is None and scoring is None:
        targets = head._targets(y)
        targets = cast(NDArray[Any], units.targets(targets))
        varying = np.ptp(targets, axis=0) > _ROUNDING
        if varying.any():
            targets = targets[:, varying]
            return lambda outputs, index: _r2(
                targets[index], outputs[:, varying], _at(weights, index)
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

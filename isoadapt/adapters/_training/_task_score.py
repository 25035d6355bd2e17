"""The task's metric on the outputs of a head, and the units of its targets."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import check_scoring, r2_score

from isoadapt.adapters._maps import Floats
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
        value = scorer(reader, found, y[index], **options)
        try:
            return float(value)
        except TypeError as error:
            raise TypeError(
                f"scoring={scoring!r} gives {value!r}, but must give one number for each call"
            ) from error

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

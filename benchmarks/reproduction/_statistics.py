"""Confidence intervals, p-values and power for paired differences; bootstrap over dev rows."""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, nct, t

from isoadapt.model_selection._compare._paired_tests import holm as holm

LEVEL = 0.05
ROUNDING = 1e-12  # a smaller difference between figures is a rounding error
N_DRAWS = 2_000

Floats = NDArray[np.float64]
Predictions = tuple[NDArray[np.bool_], NDArray[np.bool_]]  # labels and predicted classes


class Interval(NamedTuple):
    """The mean of differences and its t-interval."""

    mean: float
    low: float
    high: float


def t_interval(steps: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the mean of two or more differences and its interval with confidence 1 - level."""
    mean, error = _mean_and_error(steps)
    half = t.ppf(1 - level / 2, len(steps) - 1) * error
    return Interval(mean, mean - half, mean + half)


def p_above(steps: Sequence[float], bound: float = 0.0) -> float:
    """Return twice the one-sided p-value for the mean being above a bound.

    It is at most `level` if and only if the t-interval lies above the bound, but 1 if all
    differences are equal: they do not tell how much they vary.
    """
    mean, error = _mean_and_error(steps)
    if error == 0:
        return 1.0
    return min(1.0, 2 * float(t.sf((mean - bound) / error, len(steps) - 1)))


def power(effect: float, n: int) -> float:
    """Return the probability that the interval of n differences is above 0; effect in sd."""
    needed = t.ppf(1 - LEVEL / 2, n - 1)
    return float(nct.sf(needed, n - 1, effect * math.sqrt(n)))


def needed(n: int, family: int) -> float:
    """Return the mean of n differences, in sd, that the first of a family needs after Holm."""
    return float(t.ppf(1 - LEVEL / family / 2, n - 1)) / math.sqrt(n)


def power_range(steps: Sequence[float], size: float) -> tuple[float, float]:
    """Return the power for a mean of `size`, over the 95 % interval of the standard deviation.

    The interval is that of normal differences: (n - 1) s² / σ² follows χ² with n - 1 degrees.
    """
    n = len(steps)
    sd = float(np.std(steps, ddof=1))
    bounds = [sd * math.sqrt((n - 1) / chi2.ppf(q, n - 1)) for q in (LEVEL / 2, 1 - LEVEL / 2)]
    low, high = (power(abs(size) / bound, n) for bound in bounds)
    return low, high


def _mean_and_error(steps: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, 0 for equal differences."""
    if len(steps) < 2:
        raise ValueError(f"{len(steps)} differences have no spread; 2 are needed")
    error = (
        0.0 if np.ptp(steps) < ROUNDING else float(np.std(steps, ddof=1)) / math.sqrt(len(steps))
    )
    return float(np.mean(steps)), error


def pack(labels: NDArray[Any], predicted: NDArray[Any]) -> dict[str, Any]:
    """Encode binary labels and predictions as JSON, with one bit each."""
    return {
        "rows": len(labels),
        "labels": _packed(labels),
        "predicted": _packed(predicted),
    }


def unpack(packed: Mapping[str, Any]) -> Predictions:
    """Decode labels and predictions."""
    labels, predicted = (
        np.unpackbits(
            np.frombuffer(base64.b64decode(packed[name]), np.uint8), count=packed["rows"]
        ).astype(bool)
        for name in ("labels", "predicted")
    )
    return labels, predicted


def _packed(classes: NDArray[Any]) -> str:
    if not np.isin(classes, (0, 1)).all():
        raise ValueError(f"classes {np.unique(classes)} cannot be packed; only 0 and 1 can")
    return base64.b64encode(np.packbits(classes.astype(bool))).decode()


def accuracy(counts: Floats) -> Floats:
    """Compute the accuracy from counts of true and false positives, false and true negatives."""
    tp, _, _, tn = counts
    return (tp + tn) / counts.sum(0)


def matthews(counts: Floats) -> Floats:
    """Compute Matthews' correlation from the same counts; 0 if a class is absent."""
    tp, fp, fn, tn = counts
    root = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return np.divide(tp * tn - fp * fn, root, out=np.zeros_like(root), where=root > 0)


SCORES: dict[str, Callable[[Floats], Floats]] = {"accuracy": accuracy, "matthews": matthews}


def bootstrap(
    before: Sequence[Predictions],
    after: Sequence[Predictions],
    score: str,
    n_draws: int = N_DRAWS,
) -> tuple[float, float]:
    """Return the percentile interval of the mean difference over seeds, by a bootstrap of dev rows.

    Each draw has the same rows for all seeds and both conditions.
    """
    draws = _draws(len(before[0][0]), n_draws)
    scores = [
        np.mean([SCORES[score](_counts(draws, *seed)) for seed in side], axis=0)
        for side in (before, after)
    ]
    low, high = np.quantile(scores[1] - scores[0], [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


@lru_cache(maxsize=2)
def _draws(n: int, n_draws: int) -> Floats:
    """Return how often each of n rows is drawn, in draws that depend only on n and n_draws."""
    generator = np.random.default_rng(0)
    return generator.multinomial(n, np.full(n, 1 / n), size=n_draws).astype(np.float64)


def _counts(draws: Floats, labels: NDArray[np.bool_], predicted: NDArray[np.bool_]) -> Floats:
    """Count true and false positives, false and true negatives per draw, shape (4, n_draws)."""
    kinds = np.stack(
        [labels & predicted, ~labels & predicted, labels & ~predicted, ~labels & ~predicted]
    )
    return kinds.astype(np.float64) @ draws.T

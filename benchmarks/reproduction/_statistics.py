"""Intervals and p-values of differences between runs with the same seed, and their formats."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

LEVEL = 0.05
SEEDS_NEEDED = 3
ROUNDING = 1e-12  # a smaller difference between figures is a rounding error


class Interval(NamedTuple):
    """The mean of differences and its 95 % t-interval."""

    mean: float
    low: float
    high: float


def t_interval(steps: Sequence[float]) -> Interval:
    """Return the mean of two or more differences and its interval, of width 0 if all are equal."""
    mean = float(np.mean(steps))
    if np.ptp(steps) < ROUNDING:
        return Interval(mean, mean, mean)
    found = ttest_1samp(steps, 0.0).confidence_interval(1 - LEVEL)
    return Interval(mean, float(found.low), float(found.high))


def p_above(steps: Sequence[float]) -> float:
    """Return twice the one-sided p-value for the mean being above 0.

    It is at most `LEVEL` if and only if the interval lies above 0, but 1 if all differences are
    equal: they do not tell how much they vary.
    """
    if np.ptp(steps) < ROUNDING:
        return 1.0
    return min(1.0, 2 * float(ttest_1samp(steps, 0.0, alternative="greater").pvalue))


def format_interval(steps: Sequence[float]) -> str:
    """Format the mean of differences and its interval; rounding errors become 0."""
    mean, low, high = (f"{round(value, 12):+z.3g}" for value in t_interval(steps))
    return f"{mean} [{low}, {high}]"


def mean_sd(values: Iterable[float]) -> str:
    """Format mean ± standard deviation of the values that are not NaN, or a single one alone."""
    found = [value for value in values if not math.isnan(value)]
    if not found:
        return "–"
    mean = float(np.mean(found))
    return f"{mean:.4g}" if len(found) == 1 else _with_spread(mean, float(np.std(found, ddof=1)))


def _with_spread(mean: float, sd: float) -> str:
    """Format mean ± sd, with two digits of the sd and at most four digits of the mean."""
    if sd <= 1e-9 * abs(mean):
        return f"{mean:.4g} ± 0"
    if max(abs(mean), sd) < 1e-4:
        return f"{mean:.2g} ± {sd:.2g}"
    places = min(_places(sd, 2), _places(mean, 4)) if mean else _places(sd, 2)
    spread = f"{sd:.{_places(sd, 2)}f}" if sd >= 1e-5 else f"{sd:.2g}"
    return f"{mean:.{places}f} ± {spread}"


def _places(value: float, n_digits: int) -> int:
    """Return the decimal places that show `n_digits` digits of a number."""
    return max(0, n_digits - 1 - math.floor(math.log10(abs(value))))

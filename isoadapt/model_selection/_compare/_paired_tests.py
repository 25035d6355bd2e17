"""Paired tests: corrected resampled t, bootstrap, sign flips, and Holm's adjustment."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm, t

LEVEL = 0.05
N_DRAWS = 5_000
ROUNDING = 1e-9  # smaller differences of scores count as zero

_N_FLIPS = 9_999
_MOST_FLIPPED = 200  # above, the sum of flipped differences is taken as normal
_COUNTS = 4_000_000  # entries of a block of counts

Floats = NDArray[np.float64]


class Effect(NamedTuple):
    """An estimate with its interval of confidence 0.95 and, for a difference, its p-value."""

    estimate: float
    low: float
    high: float
    p_value: float = math.nan


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values with the method of Holm (1979); NaN is left out of the family."""
    values = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(values), np.nan)
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    scaled = values[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def corrected_t(values: Floats, ratio: float) -> Effect:
    """Corrected resampled t test of values (J,), one for each split of a cross-validation.

    Nadeau and Bengio (2003): the variance of the mean is (1/J + ratio) times that of the values,
    where `ratio` is the number of test rows divided by the number of training rows. Values that are
    all equal give no estimate of their error: the p-value is then 1.
    """
    values = np.where(np.abs(values) < ROUNDING, 0.0, values)
    n, mean = len(values), float(values.mean())
    spread = 0.0 if np.ptp(values) < ROUNDING else float(values.std(ddof=1))
    error = math.sqrt(1 / n + ratio) * spread
    if error == 0:
        return Effect(mean, mean, mean, 1.0)
    half = float(t.ppf(1 - LEVEL / 2, n - 1)) * error
    return Effect(mean, mean - half, mean + half, 2 * float(t.sf(abs(mean) / error, n - 1)))


def sign_flip_p(differences: Floats, seed: int) -> float:
    """Two-sided p-value that paired differences (n,) are symmetric about zero.

    The sum is compared with its distribution under random signs: exactly if all differences that
    are not zero have the same size (then it is McNemar's exact test), and else by random flips or,
    for many differences, by the normal distribution.
    """
    nonzero = differences[np.abs(differences) > ROUNDING]
    n, total = len(nonzero), abs(float(nonzero.sum()))
    if n == 0:
        return 1.0
    sizes = np.abs(nonzero)
    if np.ptp(sizes) < ROUNDING:
        return _binomial_p(n, int((nonzero > 0).sum()))
    if n > _MOST_FLIPPED:
        return 2 * float(norm.sf(total / math.sqrt(float((nonzero**2).sum()))))
    signs = np.random.default_rng(seed).integers(0, 2, size=(_N_FLIPS, n)) * 2.0 - 1.0
    as_far = np.abs(signs @ sizes) >= total - ROUNDING
    return (1 + int(as_far.sum())) / (1 + _N_FLIPS)


def _binomial_p(n: int, n_positive: int) -> float:
    """Two-sided exact p-value of a number of positive signs among n."""
    return min(1.0, 2 * float(binom.cdf(min(n_positive, n - n_positive), n, 0.5)))


def welch_p(estimate: float, errors: Floats, strata: Sequence[int]) -> float:
    """Two-sided p-value of Welch's t test that a sum of means over strata of units is zero.

    The errors (n_units,) of the units, by stratum, add up to that of the estimate. If they are all
    zero, every unit changed alike, which is taken as that many equal signs.
    """
    parts = np.split(errors, np.cumsum(strata)[:-1])
    if abs(estimate) < ROUNDING or min(strata) < 2:
        return 1.0
    variances = np.array([len(part) / (len(part) - 1) * part @ part for part in parts])
    total = float(variances.sum())
    if total < ROUNDING**2:
        return _binomial_p(min(strata), 0)
    degrees = total**2 / float((variances**2 / (np.array(strata) - 1)).sum())
    return 2 * float(t.sf(abs(estimate) / math.sqrt(total), degrees))


def bootstrap_effect(estimate: float, draws: Floats) -> Effect:
    """Percentile interval of bootstrap draws (B,), and the p-value of a difference from zero.

    The p-value is twice the smaller share of the draws on one side of zero. Draws without a score,
    such as R² of equal values, are left out.
    """
    draws = draws[~np.isnan(draws)]
    if not len(draws):
        return Effect(estimate, math.nan, math.nan)
    draws = np.where(np.abs(draws) < ROUNDING, 0.0, draws)
    low, high = np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2])
    rarer = min(np.count_nonzero(draws <= 0), np.count_nonzero(draws >= 0))
    p_value = min(1.0, 2 * (1 + rarer) / (1 + len(draws)))
    return Effect(estimate, float(low), float(high), p_value)


class Units(NamedTuple):
    """What a bootstrap draws: items by their unit, and the sizes of the strata of units.

    Units are numbered by stratum: first those of the first stratum.
    """

    of_item: NDArray[np.int64]  # (n_items,)
    strata: tuple[int, ...]

    @classmethod
    def rows(cls, *sizes: int) -> "Units":
        """Every item is a unit, in strata of these sizes."""
        return cls(np.arange(sum(sizes)), sizes)

    def sums(self, values: Floats) -> Floats:
        """Sum of values (n_items,) over the items of each unit."""
        return np.bincount(self.of_item, values, sum(self.strata)).astype(np.float64)

    def counts(self, seed: int, n_draws: int = N_DRAWS) -> Iterator[Floats]:
        """How often each item is drawn, in blocks of shape (n_block, n_items)."""
        rng = np.random.default_rng(seed)
        size = max(1, _COUNTS // max(1, sum(self.strata), len(self.of_item)))
        for start in range(0, n_draws, size):
            n_block = min(size, n_draws - start)
            drawn = [_drawn(rng, n_units, n_block) for n_units in self.strata]
            yield np.concatenate(drawn, axis=1)[:, self.of_item].astype(np.float64)


def _drawn(rng: np.random.Generator, n_units: int, n_draws: int) -> NDArray[np.int64]:
    """How often each of n units is among n that are drawn, shape (n_draws, n_units)."""
    chosen = rng.integers(n_units, size=(n_draws, n_units))
    chosen += n_units * np.arange(n_draws)[:, None]
    return np.bincount(chosen.ravel(), minlength=n_draws * n_units).reshape(n_draws, n_units)

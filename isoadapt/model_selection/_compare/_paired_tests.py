"""Paired tests of methods: what they achieve item by item, how it is resampled, and p-values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest, norm, t

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
    return t_effect(mean, math.sqrt(1 / n + ratio) * spread, n - 1)


def t_effect(estimate: float, error: float, degrees: int) -> Effect:
    """Interval and p-value of an estimate with a standard error, by the t distribution."""
    if error == 0:
        return Effect(estimate, estimate, estimate, 1.0)
    half = float(t.ppf(1 - LEVEL / 2, degrees)) * error
    p_value = 2 * float(t.sf(abs(estimate) / error, degrees))
    return Effect(estimate, estimate - half, estimate + half, p_value)


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
        return float(binomtest(int((nonzero > 0).sum()), n).pvalue)
    if n > _MOST_FLIPPED:
        return 2 * float(norm.sf(total / math.sqrt(float((nonzero**2).sum()))))
    signs = np.random.default_rng(seed).integers(0, 2, size=(_N_FLIPS, n)) * 2.0 - 1.0
    as_far = np.abs(signs @ sizes) >= total - ROUNDING
    return (1 + int(as_far.sum())) / (1 + _N_FLIPS)


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
        return float(binomtest(0, min(strata)).pvalue)
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


def joined(labels: NDArray[Any], *others: NDArray[Any]) -> NDArray[np.int64]:
    """Clusters (n,) of items, which have in common one of their `labels`, or one of the `others`.

    Clusters are numbered in the order of `labels` (n,), so they are `labels` if these are numbers
    from 0 on and nothing else is in common. Other labels may also be equal in different places.
    """
    names, own = np.unique(labels, return_inverse=True)
    values, nodes = np.unique(np.concatenate(others), return_inverse=True)
    ends = np.tile(own, len(others)), len(names) + nodes
    graph = coo_array((np.ones(len(nodes)), ends), shape=(len(names) + len(values),) * 2)
    return connected_components(graph, directed=False)[1][own].astype(np.int64)


class Units(NamedTuple):
    """What a bootstrap draws: items by unit, numbered by stratum, and the sizes of the strata."""

    of_item: NDArray[np.int64]  # (n_items,)
    strata: tuple[int, ...]

    @classmethod
    def rows(cls, *sizes: int) -> Units:
        """Every item is a unit, in strata of these sizes."""
        return cls.clusters(*map(np.arange, sizes))

    @classmethod
    def clusters(cls, *strata: NDArray[Any]) -> Units:
        """The items of a cluster, in strata of their labels, are a unit."""
        numbers = [np.unique(labels, return_inverse=True)[1] for labels in strata]
        sizes = tuple(int(each.max()) + 1 for each in numbers)
        starts = np.cumsum((0, *sizes[:-1]))
        return cls(np.concatenate([n + s for n, s in zip(numbers, starts, strict=True)]), sizes)

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


# --- what a method achieves in a use --------------------------------------------------------------


class Evidence(ABC):
    """Figures of one method in one use, item by item."""

    @abstractmethod
    def score(self) -> float:
        """Score of all items."""

    @abstractmethod
    def draws(self, counts: Floats) -> Floats:
        """Scores (n_draws,) of items that are drawn `counts` (n_draws, n_items) times."""

    def p_value(self, other: Any, units: Units, seed: int) -> float | None:
        """P-value that the score is that of `other`; None is that of the percentile bootstrap.

        With few items, or a few changed ones, a percentile bootstrap rejects too often.
        """
        return None


@dataclass(frozen=True)
class Mean(Evidence):
    """A mean of values (n,), such as correct predictions or reciprocal ranks."""

    values: Floats

    def score(self) -> float:
        """Mean."""
        return float(self.values.mean())

    def draws(self, counts: Floats) -> Floats:
        """Weighted means."""
        return counts @ self.values / counts.sum(axis=1)

    def p_value(self, other: Mean, units: Units, seed: int) -> float:
        """By sign flips of the differences of the units."""
        return sign_flip_p(units.sums(self.values - other.values), seed)


@dataclass(frozen=True)
class TwoMeans(Evidence):
    """AUROC by its two placements: how an inlier (n,) and an outlier (m,) are ranked on average.

    Draws are those of its Hájek projection, whose variance is that of DeLong et al. (1988).
    """

    inside: Floats
    outside: Floats

    def score(self) -> float:
        """AUROC."""
        return float(self.inside.mean())

    def draws(self, counts: Floats) -> Floats:
        """AUROC of drawn inliers and outliers, which are the first and the last items."""
        first, last = np.split(counts, [len(self.inside)], axis=1)
        parts = Mean(self.inside).draws(first) + Mean(self.outside).draws(last)
        return parts - self.score()

    def p_value(self, other: TwoMeans, units: Units, seed: int) -> float:
        """By Welch's t test of the terms whose sum is the error of the difference."""
        steps = (self.inside - other.inside, self.outside - other.outside)
        errors = np.concatenate([(step - step.mean()) / len(step) for step in steps])
        return welch_p(self.score() - other.score(), units.sums(errors), units.strata)


@dataclass(frozen=True)
class Determination(Evidence):
    """R² of predictions (n, n_outputs), the mean over the outputs."""

    targets: Floats
    predictions: Floats

    def score(self) -> float:
        """R²."""
        return float(self.draws(np.ones((1, len(self.targets))))[0])

    def draws(self, counts: Floats) -> Floats:
        """R² of drawn rows."""
        n = counts.sum(axis=1, keepdims=True)
        centred = self.targets - self.targets.mean(axis=0)
        squares = counts @ centred**2
        total = squares - (counts @ centred) ** 2 / n
        varied = total > ROUNDING * squares
        errors = counts @ (self.targets - self.predictions) ** 2
        return (1 - errors / np.where(varied, total, np.nan)).mean(axis=1)

    def p_value(self, other: Determination, units: Units, seed: int) -> float:
        """By sign flips of terms whose mean is the difference."""
        after, before = ((each.targets - each.predictions) ** 2 for each in (self, other))
        variance = self.targets.var(axis=0)
        gains = ((before - after) / np.where(variance > 0, variance, np.nan)).mean(axis=1)
        return sign_flip_p(units.sums(gains), seed)


@dataclass(frozen=True)
class RankCorrelation(Evidence):
    """Spearman correlation of two columns (n,); 0 if all values of one of them are equal."""

    first: Floats
    second: Floats

    def score(self) -> float:
        """Correlation."""
        return float(self.draws(np.ones((1, len(self.first))))[0])

    def draws(self, counts: Floats) -> Floats:
        """Correlations of drawn pairs, whose ranks are those among the drawn pairs."""
        ranks = [_ranks(values, counts) for values in (self.first, self.second)]
        n = counts.sum(axis=1, keepdims=True)
        first, second = (each - (counts * each).sum(axis=1, keepdims=True) / n for each in ranks)
        product = (counts * first * second).sum(axis=1)
        squares = [(counts * each**2).sum(axis=1) for each in (first, second)]
        norm = np.sqrt(squares[0] * squares[1])
        return np.divide(product, norm, out=np.zeros_like(norm), where=norm > 0)

    def errors(self) -> Floats:
        """Errors (n,) of the pairs, which add up to that of the correlation."""
        ranks = [_ranks(each, np.ones((1, len(each)))) for each in (self.first, self.second)]
        first, second = (each - each.mean() for each in ranks)
        terms = first * second - _ranks(self.first, second) - _ranks(self.second, first)
        scale = math.sqrt(float((first**2).sum() * (second**2).sum()))
        return (terms - terms.mean())[0] / (scale or math.inf)


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Mean ranks (n_draws, n) of values (n,) that occur `counts` times."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))
    in_class = np.add.reduceat(counts[:, order], starts, axis=1)
    return (np.cumsum(in_class, axis=1) - (in_class - 1) / 2)[:, place]


class BootstrapUse:
    """Intervals and tests of all methods in a use by a paired bootstrap of its units."""

    def __init__(self, evidence: Mapping[str, Evidence], units: Units, seed: int) -> None:
        self.evidence, self.units, self.seed = evidence, units, seed
        self.n_units = sum(units.strata)
        blocks: dict[str, list[Floats]] = {name: [] for name in evidence}
        for counts in units.counts(seed):
            for name, each in evidence.items():
                blocks[name].append(each.draws(counts))
        self.drawn = {name: np.concatenate(parts) for name, parts in blocks.items()}

    def interval(self, name: str) -> Effect:
        """Score of a method with its interval."""
        return bootstrap_effect(self.evidence[name].score(), self.drawn[name])

    def difference(self, name: str, reference: str) -> Effect:
        """Score of a method minus that of another one."""
        after, before = self.evidence[name], self.evidence[reference]
        effect = bootstrap_effect(
            after.score() - before.score(), self.drawn[name] - self.drawn[reference]
        )
        p_value = after.p_value(before, self.units, self.seed)
        return effect if p_value is None else effect._replace(p_value=p_value)


class SplitUse:
    """Intervals and tests of all methods by their scores on the splits of a cross-validation."""

    def __init__(self, scores: dict[str, Floats], ratio: float, n_units: int) -> None:
        self.values, self.ratio, self.n_units = scores, ratio, n_units

    def interval(self, name: str) -> Effect:
        """Score of a method with its interval."""
        return self._effect(self.values[name])

    def difference(self, name: str, reference: str) -> Effect:
        """Score of a method minus that of another one."""
        return self._effect(self.values[name] - self.values[reference])

    def _effect(self, values: Floats) -> Effect:
        return corrected_t(values, self.ratio)


class LinkedUse(SplitUse):
    """T tests of all methods by pairs, which depend on each other if they share an end.

    The variance of a sum of errors is the sum of the products of those of all pairs that share one
    (Aronow et al. 2015). Units are the ends that different pairs share, and all other pairs.
    """

    def __init__(self, evidence: Mapping[str, RankCorrelation], ends: NDArray[np.int64]) -> None:
        self.values = {name: np.append(e.score(), e.errors()) for name, e in evidence.items()}
        pairs, of_item = np.unique(np.sort(ends, axis=0), axis=1, return_inverse=True)
        numbers = np.tile(np.arange(pairs.shape[1]), 2)
        self.links = csr_array((np.ones(len(numbers)), (pairs.ravel(), numbers))).sign()
        self.of_item, self.two = of_item.ravel(), self.links.sum(axis=0) == 2
        shared = self.links.sum(axis=1) > 1
        self.n_units = int(shared.sum() + (self.links.T @ shared == 0).sum())

    def _effect(self, values: Floats) -> Effect:
        errors, degrees = values[1:], self.n_units - 1  # without degrees of freedom, all is NaN
        sums = np.bincount(self.of_item, errors)
        squares = ((self.links @ sums) ** 2).sum() - (sums[self.two] ** 2).sum()
        variance = max(float(squares), float(errors @ errors)) * self.n_units / max(degrees, 1)
        error = math.sqrt(variance) if variance > ROUNDING**2 else 0.0
        return t_effect(float(values[0]), error, degrees)

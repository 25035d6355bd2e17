"""What a method achieves in a use, item by item, as a statistic that can be resampled."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isoadapt.model_selection._compare._paired_tests import (
    ROUNDING,
    Effect,
    Floats,
    Units,
    bootstrap_effect,
    corrected_t,
    sign_flip_p,
    welch_p,
)


class Evidence(Protocol):
    """Figures of one method in one use."""

    def score(self) -> float:
        """Score of all items."""

    def draws(self, counts: Floats) -> Floats:
        """Scores (n_draws,) of items that are drawn `counts` (n_draws, n_items) times."""


@dataclass(frozen=True)
class Mean:
    """A mean of values (n,), such as correct predictions or reciprocal ranks."""

    values: Floats

    def score(self) -> float:
        """Mean."""
        return float(self.values.mean())

    def draws(self, counts: Floats) -> Floats:
        """Weighted means."""
        return counts @ self.values / counts.sum(axis=1)


@dataclass(frozen=True)
class TwoMeans:
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

    def errors(self, other: "TwoMeans") -> Floats:
        """Terms (n + m,) whose sum is the error of the AUROC minus that of `other`."""
        steps = (self.inside - other.inside, self.outside - other.outside)
        return np.concatenate([(step - step.mean()) / len(step) for step in steps])


@dataclass(frozen=True)
class Determination:
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

    def gains(self, other: "Determination") -> Floats:
        """Terms (n,) whose mean is the R² minus that of `other`."""
        after, before = ((each.targets - each.predictions) ** 2 for each in (self, other))
        variance = self.targets.var(axis=0)
        return ((before - after) / np.where(variance > 0, variance, np.nan)).mean(axis=1)


@dataclass(frozen=True)
class RankCorrelation:
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


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Mean ranks (n_draws, n) of values (n,) that occur `counts` times."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))
    in_class = np.add.reduceat(counts[:, order], starts, axis=1)
    return (np.cumsum(in_class, axis=1) - (in_class - 1) / 2)[:, place]


@dataclass(frozen=True)
class Sample:
    """The items of a use that all methods share, and draws of them."""

    units: Units
    seed: int

    def draws(self, evidence: dict[str, Evidence]) -> dict[str, Floats]:
        """Scores (n_draws,) of every method on the same draws."""
        blocks: dict[str, list[Floats]] = {name: [] for name in evidence}
        for counts in self.units.counts(self.seed):
            for name, each in evidence.items():
                blocks[name].append(each.draws(counts))
        return {name: np.concatenate(parts) for name, parts in blocks.items()}


class BootstrapUse:
    """Intervals and tests of all methods in a use by a paired bootstrap of its items.

    Differences of means and of R² are tested by sign flips instead, and those of AUROC by Welch's t
    test: with few items, or a few changed ones, a percentile bootstrap rejects too often.
    """

    def __init__(self, evidence: dict[str, Evidence], sample: Sample) -> None:
        self.evidence, self.sample = evidence, sample
        self.drawn = sample.draws(evidence)

    def interval(self, name: str) -> Effect:
        """Score of a method with its interval."""
        return bootstrap_effect(self.evidence[name].score(), self.drawn[name])

    def difference(self, name: str, reference: str) -> Effect:
        """Score of a method minus that of another one."""
        after, before = self.evidence[name], self.evidence[reference]
        effect = bootstrap_effect(
            after.score() - before.score(), self.drawn[name] - self.drawn[reference]
        )
        units, seed = self.sample.units, self.sample.seed
        if isinstance(after, Mean) and isinstance(before, Mean):
            sums = units.sums(after.values - before.values)
            return effect._replace(p_value=sign_flip_p(sums, seed))
        if isinstance(after, Determination) and isinstance(before, Determination):
            return effect._replace(p_value=sign_flip_p(units.sums(after.gains(before)), seed))
        if isinstance(after, TwoMeans) and isinstance(before, TwoMeans):
            errors = units.sums(after.errors(before))
            return effect._replace(p_value=welch_p(effect.estimate, errors, units.strata))
        return effect


class SplitUse:
    """Intervals and tests of all methods by their scores on the splits of a cross-validation."""

    def __init__(self, scores: dict[str, NDArray[np.float64]], ratio: float) -> None:
        self.scores, self.ratio = scores, ratio

    def interval(self, name: str) -> Effect:
        """Mean score of a method with its interval."""
        return corrected_t(self.scores[name], self.ratio)

    def difference(self, name: str, reference: str) -> Effect:
        """Mean score of a method minus that of another one."""
        return corrected_t(self.scores[name] - self.scores[reference], self.ratio)

"""Tests of scores and of differences by the influence of each item, and p-values of families."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, coo_array, csr_array, eye_array, vstack
from scipy.sparse.csgraph import connected_components
from scipy.stats import binomtest, t

LEVEL = 0.05
ROUNDING = 1e-9  # smaller differences of scores count as zero
FEWEST_UNITS = 30  # that change, so that a t test holds its level if a tenth change much
_MOSTLY = 0.9  # of the changed units; a few may be of equal rows with different labels
_FEW_CHANGES = 10  # changed units below which accuracies are compared by McNemar's exact test

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


# --- a score, and the influence of each item on it ------------------------------------------------


class Evidence(NamedTuple):
    """A score, and the influence (n_items,) of the items on it, whose sum is its error."""

    score: float
    influence: Floats

    def minus(self, other: "Evidence") -> "Evidence":
        """Difference of two scores of the same items."""
        return Evidence(self.score - other.score, self.influence - other.influence)


def mean(values: Floats) -> Evidence:
    """Mean of values (n,), such as correct predictions or reciprocal ranks."""
    score = float(values.mean())
    return Evidence(score, (values - score) / len(values))


def two_means(inside: Floats, outside: Floats) -> Evidence:
    """AUROC by placements of inliers (n,) and outliers (m,), with DeLong's variance (1988)."""
    parts = [mean(each) for each in (inside, outside)]
    return Evidence(parts[0].score, np.concatenate([part.influence for part in parts]))


def determination(targets: Floats, predictions: Floats) -> Evidence:
    """R² of predictions (n,) or (n, n_outputs), the mean over the outputs."""
    targets, predictions = (each.reshape(len(each), -1) for each in (targets, predictions))
    squares, errors = (targets - targets.mean(axis=0)) ** 2, (targets - predictions) ** 2
    total = squares.sum(axis=0)
    ratio = errors.sum(axis=0) / total
    return Evidence(float(1 - ratio.mean()), ((ratio * squares - errors) / total).mean(axis=1))


def rank_correlation(first: Floats, second: Floats) -> Evidence:
    """Spearman correlation of two columns (n,); 0 if all values of one of them are equal."""
    columns, n = (first, second), len(first)
    ranks = [_below(each, np.ones(n)) - n / 2 for each in columns]
    norms = [float(np.linalg.norm(each)) for each in ranks]
    if not all(norms):
        return Evidence(0.0, np.zeros(n))
    a, b = (each / norm for each, norm in zip(ranks, norms, strict=True))
    score = float(a @ b)
    # An item adds its own product, and moves the ranks of the items above it.
    moved = [_below(c, u - score * v) for c, u, v in ((first, b, a), (second, a, b))]
    influence = a * b - score * (a**2 + b**2) / 2 - moved[0] / norms[0] - moved[1] / norms[1]
    return Evidence(score, influence - influence.mean())


def _below(values: Floats, weights: Floats) -> Floats:
    """Sum (n,) of the weights of the items with smaller values, and half of equal ones."""
    _, place = np.unique(values, return_inverse=True)
    mass = np.bincount(place, weights)
    return (np.cumsum(mass) - mass / 2)[place]


# --- independent units of items ------------------------------------------------------------------


def joined(labels: NDArray[Any], *others: NDArray[Any]) -> NDArray[np.int64]:
    """Clusters (n,), in the order of `labels`, of items that share a label, or one of `others`."""
    names, own = np.unique(labels, return_inverse=True)
    values, nodes = np.unique(np.concatenate(others), return_inverse=True)
    ends = np.tile(own, len(others)), len(names) + nodes
    graph = coo_array((np.ones(len(nodes)), ends), shape=(len(names) + len(values),) * 2)
    return connected_components(graph, directed=False)[1][own].astype(np.int64)


def clusters(*labels: NDArray[Any]) -> csr_array:
    """Units (n_units, n_items) of equal labels, of one kind of items after the other."""
    codes = [np.unique(each, return_inverse=True)[1] for each in labels if len(each)]
    parts = [csr_array((np.ones(len(each)), (each, np.arange(len(each))))) for each in codes]
    return csr_array(block_diag(parts))


def linked(ends: NDArray[np.int64]) -> tuple[csr_array, NDArray[np.int64]]:
    """Units of different pairs, by shared ends, and the number (n,) of each of the ends (2, n)."""
    pairs, numbers = np.unique(np.sort(ends, axis=0), axis=1, return_inverse=True)
    n = pairs.shape[1]
    of_ends = csr_array((np.ones(2 * n), (pairs.ravel(), np.tile(np.arange(n), 2)))).sign()
    shared = of_ends[of_ends.sum(axis=1) > 1]
    alone = eye_array(n, format="csr")[shared.sum(axis=0) == 0]
    return csr_array(vstack([shared, alone])), numbers.ravel()


# --- tests ---------------------------------------------------------------------------------------


def t_effect(estimate: float, error: float, degrees: float) -> Effect:
    """Interval and p-value of an estimate with a standard error, by the t distribution."""
    half = float(t.ppf(1 - LEVEL / 2, degrees)) * error
    p_value = 2 * float(t.sf(abs(estimate) / max(error, ROUNDING), degrees))
    if error < ROUNDING or abs(estimate) < ROUNDING:  # all items change alike
        p_value = 1.0
    return Effect(estimate, estimate - half, estimate + half, p_value)


def corrected_t(evidence: Evidence, ratio: float) -> Effect:
    """Test the mean over splits by Nadeau and Bengio (2003); ratio of test to training rows."""
    n = len(evidence.influence)
    spread = n * float(np.linalg.norm(evidence.influence)) / math.sqrt(n - 1)
    return t_effect(evidence.score, math.sqrt(1 / n + ratio) * spread, n - 1)


def cluster_t(evidence: Evidence, units: csr_array) -> Effect:
    """T test of a score or of a difference, by the sums of the influences of units of items."""
    # Aronow et al. (2015), corrected by Bell and McCaffrey (2002); Satterthwaite's degrees of
    # freedom, from fourth moments, are fewer where some units decide, as for rare changes.
    n, size = units.shape[0], units.sum(axis=1)
    if n < 2:
        return Effect(evidence.score, math.nan, math.nan)
    squares = (units @ evidence.influence) ** 2 / (1 - size / size.sum())
    total, again = float(squares.sum()), units.sum(axis=0) - 1
    error = math.sqrt(max(total - float(again @ evidence.influence**2), total / 2))
    moments = total**2 / float(squares @ squares) if error > ROUNDING else 1.0
    return t_effect(evidence.score, error, min(max(3 * (moments - 1), 1.0), n - 1))


def mcnemar(evidence: Evidence, units: csr_array) -> Effect:
    """Like `cluster_t` for accuracies, but an exact test where few units change, or all alike."""
    effect, steps = cluster_t(evidence, units), changes(evidence, units)
    better, changed = int((steps > ROUNDING).sum()), int((np.abs(steps) > ROUNDING).sum())
    if changed and (changed < _FEW_CHANGES or effect.high - effect.low < ROUNDING):
        return effect._replace(p_value=float(binomtest(better, changed).pvalue))
    return effect


def changes(evidence: Evidence, units: csr_array) -> Floats:
    """Sums (n_units,) over the items of the difference that the evidence of a mean is of."""
    return units @ (evidence.influence * len(evidence.influence) + evidence.score)


def rests_on_few(evidence: Evidence, units: csr_array, of_predictions: bool = False) -> bool:
    """Whether so few units change that a sample may lack the large changes among them."""
    steps, sizes = np.abs(changes(evidence, units)), units.sum(axis=1)
    changed = steps > ROUNDING
    if not changed.any() or np.count_nonzero(changed) >= FEWEST_UNITS:
        return False
    whole = np.isclose(steps[changed], sizes[changed])  # such predictions have no larger changes
    return not of_predictions or float(whole.mean()) < _MOSTLY


class Tests(NamedTuple):
    """The evidence of all methods in a use, and how scores and differences are tested."""

    evidence: Mapping[str, Evidence]
    effect: Callable[[Evidence], Effect]
    n_units: int
    is_untested: Callable[[Evidence], bool] = lambda _: False  # of a difference
    metric: str = ""
    highest: float = 1.0  # that a score can be

    def interval(self, name: str) -> Effect:
        """Score of a method with its interval."""
        effect = self.effect(self.evidence[name])
        return effect._replace(high=min(effect.high, self.highest))

    def difference(self, name: str, reference: str) -> Effect:
        """Score of a method minus the score of a reference."""
        evidence = self.evidence[name].minus(self.evidence[reference])
        effect = self.effect(evidence)
        return effect._replace(p_value=math.nan) if self.is_untested(evidence) else effect

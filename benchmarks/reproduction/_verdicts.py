"""Whether a claim holds: figures taken seed by seed, and the verdict they allow."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

from benchmarks.reproduction._cells import NOT_RUN, QUICK, Judge, Judged, Record, Suite

SEEDS_NEEDED = 3
LEVEL = 0.05

Fields = Mapping[str, Any]


def verdict(judged: Judged, suite: Suite) -> str:
    """Return the word for the table: `holds` or `fails` needs 3 seeds of more than a smoke run."""
    if judged == NOT_RUN:
        return "not run"
    if judged.n_seeds == 0:
        return "not testable here"
    if suite.name == QUICK.name or judged.n_seeds < SEEDS_NEEDED or judged.holds is None:
        return "smoke only"
    return "**holds**" if judged.holds else "**fails**"


def selected(records: Sequence[Record], fields: Fields) -> list[Record]:
    """Return the records whose fields have the given values."""
    wanted = fields.items()
    return [record for record in records if all(record[name] == value for name, value in wanted)]


def by_seed(records: Sequence[Record], fields: Fields, figure: str) -> dict[int, float]:
    """Return a figure of each seed, where it is a number."""
    found = {record["seed"]: record["figures"].get(figure) for record in selected(records, fields)}
    return {
        seed: float(value)
        for seed, value in sorted(found.items())
        if value is not None and not math.isnan(value)
    }


def mean_sd(values: Sequence[float]) -> str:
    """Write mean ± standard deviation; of one value the value alone."""
    if not values:
        return "–"
    mean = _digits(float(np.mean(values)))
    return mean if len(values) < 2 else f"{mean} ± {float(np.std(values, ddof=1)):.1g}"


def _digits(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.2e}"


class Pairs(NamedTuple):
    """The same figure before and after, of the seeds that have both."""

    before: list[float]
    after: list[float]

    @property
    def steps(self) -> list[float]:
        """Differences, seed by seed."""
        return [after - before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def shown(self) -> str:
        """Both means with their spread."""
        return f"{mean_sd(self.before)} → {mean_sd(self.after)}"


def paired(records: Sequence[Record], before: Fields, after: Fields, figure: str) -> Pairs:
    """Take a figure under two conditions, seed by seed."""
    first, second = by_seed(records, before, figure), by_seed(records, after, figure)
    seeds = [seed for seed in first if seed in second]
    return Pairs([first[seed] for seed in seeds], [second[seed] for seed in seeds])


def moves(before: Fields, after: Fields, figure: str, sign: int, by: float = 1.0) -> Judge:
    """Judge that a positive figure rises (`sign` 1) or falls (-1) in every seed.

    The means must differ by the factor `by` at least.
    """

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        moved = sum(sign * step > 0 for step in pairs.steps)
        low, high = sorted([np.mean(pairs.before), np.mean(pairs.after)])
        factor = high / low if low > 0 else math.inf
        reason = f"in {moved} of {n} seeds, by a factor of {factor:.3g}"
        if by > 1:
            reason += f" (at least {by:.3g} asked)"
        return Judged(pairs.shown, bool(moved == n and factor >= by), n, reason)

    return judge


def gains(before: Fields, after: Fields, figure: str) -> Judge:
    """Judge that a noisy figure rises: one-sided paired t-test over the seeds at 0.05."""

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        gain = f"{np.mean(pairs.steps):+.3g}"
        if n < SEEDS_NEEDED:
            return Judged(pairs.shown, None, n, f"{gain}; too few seeds for a test")
        if np.ptp(pairs.steps) == 0:
            return Judged(pairs.shown, pairs.steps[0] > 0, n, f"{gain} in every seed")
        p = float(ttest_1samp(pairs.steps, 0.0, alternative="greater").pvalue)
        return Judged(pairs.shown, p < LEVEL, n, f"{gain}, p = {p:.2g} (paired, one-sided)")

    return judge

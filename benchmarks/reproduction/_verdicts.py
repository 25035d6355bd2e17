"""Verdicts on claims, from the intervals of differences that are paired by seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._pairs import Pairs, difference
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    Fields,
    defined,
    format_means,
    matching_records,
    mean_of,
    n_planned,
    paired,
)
from benchmarks.reproduction._statistics import (
    LEVEL,
    Interval,
    bootstrap,
    p_above,
    power,
    t_interval,
    unpack,
)
from benchmarks.reproduction._tables import score_of

SEEDS_NEEDED = 3
HOLDS, FAILS, NOT_SHOWN = "holds", "fails", "not shown"
WAITING, NOT_JUDGED, NOT_TESTABLE = "waiting", "not judged", "not testable here"


class Power(NamedTuple):
    """Probability to show a difference of the paper's size."""

    probability: float
    size: float

    def __str__(self) -> str:
        return f"{self.probability:.2f} for {self.size:+.3g}"


class Judged(NamedTuple):
    """The judgement of a claim from the figures.

    `means` are the figures of `ours` without their spread, if that is shorter.
    `p` is twice the one-sided p-value, so that it is at most 0.05 if and only if the interval lies
    on the claimed side.
    """

    ours: str
    outcome: str
    n_seeds: int = 0
    interval: str = ""
    p: float | None = None
    power: Power | None = None
    bootstrap: str = ""
    reason: str = ""
    means: str = ""


# The argument is one record per planned cell. A cell that failed has an `error` instead of
# `figures`, and a cell that has not run has neither.
ClaimJudge = Callable[[Sequence[Record]], Judged]


class Headline(NamedTuple):
    """The words for a claim on the first page; those of lower rank come first in a paper."""

    words: str
    rank: int = 0


class Claim(NamedTuple):
    """A line in the table of verdicts of a paper; the base of `task` must have learned.

    A claim with a `headline` is shown on the first page of the report too, beside the claims on
    other tasks that have the same.
    """

    where: str
    claim: str
    theirs: str
    judge: ClaimJudge
    task: str | None = None
    headline: Headline | None = None


def not_testable(reason: str) -> ClaimJudge:
    """Return the judge of a claim that cannot be tested here."""
    return lambda records: Judged("–", NOT_TESTABLE, reason=reason)


def verdict(judged: Judged, adjusted: float | None = None) -> str:
    """Return the verdict for the table, given p after Holm's adjustment."""
    if judged.outcome == HOLDS and adjusted is not None and adjusted > LEVEL:
        return "holds, but not after Holm"
    return f"**{judged.outcome}**" if judged.outcome in (HOLDS, FAILS) else judged.outcome


def judge_steps(
    steps: Mapping[int, float],
    planned: int,
    ours: str,
    *,
    sign: int = 1,
    size: float | None = None,
    choices: int = 1,
    reason: str = "",
) -> Judged:
    """Judge that the mean of differences, by seed, is above 0 (`sign` 1) or below (-1).

    `size` is the difference in the paper, for the power. If the condition is the best of several,
    the level is divided by their number and p is multiplied by it (Bonferroni).
    """
    known = defined([*steps.values()])
    n, undefined = len(known), len(steps) - len(known)
    if n < SEEDS_NEEDED:
        return waiting(ours, n, undefined)
    oriented = [sign * step for step in known]
    low, high = t_interval(oriented, LEVEL / choices)[1:]
    outcome = HOLDS if low > 0 else FAILS if high < 0 else NOT_SHOWN
    if outcome == HOLDS and undefined:
        outcome = NOT_SHOWN
    reasons = [
        reason,
        f"in {sum(step > 0 for step in oriented)} of {len(steps)} seeds"
        if any(oriented)
        else "no difference in any seed",
        f"{undefined} undefined" if undefined else "",
        f"level divided by {choices} for the choice" if choices > 1 else "",
        f"{len(steps)} of {planned} seeds so far" if len(steps) < planned else "",
    ]
    return Judged(
        ours,
        outcome,
        n,
        format_interval(t_interval(known, LEVEL / choices)),
        min(1.0, choices * p_above(oriented)),
        _power(known, size, choices),
        reason="; ".join(filter(None, reasons)),
    )


def waiting(ours: str, n: int, undefined: int = 0) -> Judged:
    """Return the judgement for too few seeds."""
    failed = f", {undefined} more undefined" if undefined else ""
    return Judged(ours, WAITING, n, reason=f"{n} of {SEEDS_NEEDED} seeds needed{failed}")


def format_interval(interval: Interval) -> str:
    """Format a mean with its interval."""
    return f"{interval.mean:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"


def _power(steps: Sequence[float], size: float | None, choices: int) -> Power | None:
    if size is None or np.ptp(steps) == 0:  # without a spread there is nothing to compare it with
        return None
    effect = abs(size) / float(np.std(steps, ddof=1))
    return Power(power(effect, len(steps), LEVEL / choices), size)


def moves(
    before: Fields,
    after: Fields,
    figure: str,
    sign: int,
    by: float = 1.0,
    *,
    size: float | None = None,
    choices: int = 1,
) -> ClaimJudge:
    """Judge that a figure rises (`sign` 1) or falls (-1), at least by the factor `by`.

    With a factor, the differences are those to the figure before multiplied by the factor.
    """
    factor = by if sign > 0 else 1 / by

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        steps = pairs.steps(lambda start, end: end - factor * start)
        asked = ""
        if by != 1 and steps:
            limit = factor * mean_of([*pairs.before.values()])
            asked = f" (asked: at {'least' if sign > 0 else 'most'} {limit:.4g})"
        judged = judge_steps(
            steps,
            n_planned(records, before, after),
            format_means(pairs) + asked,
            sign=sign,
            size=size,
            choices=choices,
        )
        from_factor = f" from {factor:.3g} times before" if by != 1 and judged.interval else ""
        return judged._replace(
            interval=judged.interval + from_factor,
            bootstrap=_over_dev_rows(records, before, after, figure, pairs),
            means=format_means(pairs, spread=False) + asked if steps else "",
        )

    return judge


def _over_dev_rows(
    records: Sequence[Record], before: Fields, after: Fields, figure: str, pairs: Pairs[int]
) -> str:
    """Format the bootstrap interval of the mean difference of a metric; empty for other figures."""
    score = score_of(figure, before["task"])
    if score is None or not pairs.before:
        return ""
    sides = [
        [
            unpack(record["figures"]["dev"])
            for record in matching_records(records, fields)
            if record["seed"] in pairs.before and "dev" in record.get("figures", {})
        ]
        for fields in (before, after)
    ]
    if not len(sides[0]) == len(sides[1]) == len(pairs.before):
        return ""
    low, high = bootstrap(*sides, score)
    return f"[{low:+.3g}, {high:+.3g}]"


def stays(
    before: Fields, after: Fields, figure: str, most: float, as_factor: bool = False
) -> ClaimJudge:
    """Judge that a figure changes by at most `most`, as a difference or a factor."""
    margin = math.log(most) if as_factor else most

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        steps = pairs.steps(_log_ratio if as_factor else difference)
        known = defined([*steps.values()])
        n, undefined = len(known), len(steps) - len(known)
        if n < SEEDS_NEEDED:
            return waiting(format_means(pairs), n, undefined)
        interval = t_interval(known)
        inside = -margin <= interval.low and interval.high <= margin
        outside = interval.low > margin or interval.high < -margin
        outcome = FAILS if outside else HOLDS if inside and not undefined else NOT_SHOWN
        p = max(p_above(known, -margin), p_above([-step for step in known], -margin))
        what = "log ratio" if as_factor else "difference"
        reason = f"{what} within ±{margin:.3g} claimed"
        if undefined:
            reason += f"; {undefined} undefined"
        drawn = _over_dev_rows(records, before, after, figure, pairs)
        return Judged(
            format_means(pairs),
            outcome,
            n,
            format_interval(interval),
            p,
            bootstrap=drawn,
            reason=reason,
        )

    return judge


def _log_ratio(before: float, after: float) -> float:
    return math.log(after / before) if before > 0 and after > 0 else math.nan


def none_better(
    comparisons: Mapping[str, tuple[Fields, Fields]], figure: str, margin: float
) -> ClaimJudge:
    """Judge that no condition exceeds the one it is compared with by more than a margin.

    The claim holds if every interval ends below the margin. It fails if one interval lies above the
    margin at the level divided by the number of comparisons. A comparison with an undefined seed
    counts as not run.
    """

    def judge(records: Sequence[Record]) -> Judged:
        every = {
            name: [*paired(records, before, after, figure).steps().values()]
            for name, (before, after) in comparisons.items()
        }
        found = {
            name: steps
            for name, steps in every.items()
            if len(defined(steps)) == len(steps) >= SEEDS_NEEDED
        }
        ours = "; ".join(_mean_change(*item) for item in every.items() if defined(item[1]))
        run = f"{len(found)} of {len(comparisons)} comparisons have {SEEDS_NEEDED} seeds"
        fewest = min(len(defined(steps)) for steps in every.values())
        if not found:
            return Judged(ours or "–", WAITING, fewest, reason=run)
        strict = LEVEL / len(comparisons)
        better = [name for name, steps in found.items() if t_interval(steps, strict).low > margin]
        highest = max(t_interval(steps).high for steps in found.values())
        limits = f"upper limits up to {highest:+.3g}"
        n = min(map(len, found.values()))
        if better:
            reason = f"{run}; better: {', '.join(better)}"
            return Judged(ours, FAILS, n, limits, p=1.0, reason=reason)
        if len(found) < len(comparisons):
            return Judged(ours, WAITING, fewest, reason=run)
        p = max(p_above([-step for step in steps], -margin) for steps in found.values())
        return Judged(ours, HOLDS if highest <= margin else NOT_SHOWN, n, limits, p, reason=run)

    return judge


def _mean_change(name: str, steps: Sequence[float]) -> str:
    """Format the mean difference of a comparison, with the number of seeds if they are few."""
    n = len(defined(steps))
    few = "" if n >= SEEDS_NEEDED else f" ({n} of {SEEDS_NEEDED} seeds)"
    return f"{name} {mean_of(steps):+.3g}{few}"

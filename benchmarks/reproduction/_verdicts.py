"""Verdicts on claims, from the intervals of differences that are paired by seed."""

import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.reproduction._cells import JSON, Record
from benchmarks.reproduction._choice import PUBLISHED, learned
from benchmarks.reproduction._figures import (
    SEEDS_NEEDED,
    WORDS,
    Fields,
    Pairs,
    defined,
    difference,
    format_means,
    has_collapsed,
    matching_records,
    mean_of,
    n_planned,
    paired,
    task_score,
)
from benchmarks.reproduction._statistics import (
    LEVEL,
    ROUNDING,
    Interval,
    bootstrap,
    holm,
    p_above,
    power_range,
    t_interval,
    unpack,
)

HOLDS, FAILS, NOT_SHOWN, COLLAPSED = "holds", "fails", "not shown", "collapsed"
WAITING, NOT_JUDGED = "waiting", "not judged"


class Judged(NamedTuple):
    """The judgement of a claim from the figures.

    `p` is twice the one-sided p-value, so that it is at most 0.05 if and only if the interval lies
    on the claimed side; `p_against` is that of the other side. `power` is its range for a
    difference of the paper's size.
    """

    ours: str
    outcome: str
    n_seeds: int = 0
    interval: str = ""
    p: float | None = None
    p_against: float | None = None
    power: str = ""
    bootstrap: str = ""
    reason: str = ""


# The argument is one record per planned cell. A cell that failed has an `error` instead of
# `figures`, and a cell that has not run has neither.
ClaimJudge = Callable[[Sequence[Record]], Judged]


class Claim(NamedTuple):
    """A line in the table of verdicts of a paper; the base of `task` must have learned.

    A claim about the metric of its task is judged without collapsed runs too. A claim of the first
    page has the paper's values of each setting; the records of `method` have those of this report.
    """

    where: str
    claim: str
    theirs: str
    judge: ClaimJudge
    task: str | None = None
    about_metric: bool = False
    paper: Mapping[str, Sequence[JSON]] | None = None
    method: Fields | None = None


class Line(NamedTuple):
    """A claim and its judgement; both p-values are after Holm's adjustment."""

    claim: Claim
    judged: Judged
    p: float | None
    p_against: float | None

    @property
    def verdict(self) -> str:
        """The verdict for a table."""
        outcome = self.judged.outcome
        adjusted = {HOLDS: self.p, FAILS: self.p_against}.get(outcome)
        if adjusted is not None and adjusted > LEVEL:
            return f"{outcome}, but not after Holm"
        return f"**{outcome}**" if outcome in (HOLDS, FAILS, COLLAPSED) else outcome


def judge_claims(claims: Sequence[Claim], records: Sequence[Record]) -> list[Line]:
    """Judge the claims of a paper, and adjust their p-values of each side together."""
    judged = [_judge(claim, records) for claim in claims]
    both = (_adjusted([item.p for item in judged]), _adjusted([item.p_against for item in judged]))
    return [Line(*line) for line in zip(claims, judged, *both, strict=True)]


def _adjusted(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values after Holm's adjustment, in which those that are not known yet count."""
    found = holm([1.0 if value is None else value for value in values])
    return [
        value if known is not None else None for known, value in zip(values, found, strict=True)
    ]


def _judge(claim: Claim, records: Sequence[Record]) -> Judged:
    """Judge a claim if its base has learned; the message of an error becomes the reason."""
    try:
        judged = claim.judge(records)
        if claim.about_metric:
            judged = _without_collapse(claim, judged, records)
    except Exception as error:  # continue with the other claims
        traceback.print_exc()
        reason = f"could not be judged: {type(error).__name__}: {error}"
        return Judged("–", NOT_JUDGED, reason=reason)
    if claim.task not in PUBLISHED or judged.outcome == WAITING:
        return judged
    base = learned(records, claim.task)
    if base.passed:
        return judged
    outcome = WAITING if base.passed is None else NOT_JUDGED
    return Judged(judged.ours, outcome, judged.n_seeds, reason=base.text)


def _without_collapse(claim: Claim, judged: Judged, records: Sequence[Record]) -> Judged:
    """Return the judgement, as collapsed if it is another one without the collapsed runs."""
    without = claim.judge([record for record in records if not has_collapsed(record)])
    n = judged.n_seeds - without.n_seeds
    if judged.outcome == WAITING or n == 0:
        return judged
    outcome = judged.outcome if without.outcome == judged.outcome else COLLAPSED
    reasons = [f"collapsed in {n} of {judged.n_seeds} seeds", judged.reason]
    return judged._replace(outcome=outcome, reason="; ".join(filter(None, reasons)))


def judge_steps(
    steps: Mapping[int, float],
    planned: int,
    ours: str,
    *,
    sign: int = 1,
    size: float | None = None,
    reason: str = "",
) -> Judged:
    """Judge that the mean of differences, by seed, is above 0 (`sign` 1) or below (-1).

    `size` is the difference in the paper, for the power.
    """
    known = defined([*steps.values()])
    n, undefined = len(known), len(steps) - len(known)
    if n < SEEDS_NEEDED:
        return waiting(ours, n, undefined)
    oriented = [sign * step for step in known]
    low, high = t_interval(oriented)[1:]
    outcome = HOLDS if low > 0 else FAILS if high < 0 else NOT_SHOWN
    if low == high or (outcome == HOLDS and undefined):
        outcome = NOT_SHOWN
    moved = np.max(np.abs(known)) > ROUNDING
    equal = "the same difference in all seeds" if moved else "no difference in any seed"
    reasons = [
        reason,
        equal if low == high else "",
        f"{undefined} undefined" if undefined else "",
        f"{len(steps)} of {planned} seeds so far" if len(steps) < planned else "",
    ]
    return Judged(
        ours,
        outcome,
        n,
        format_interval(t_interval(known)),
        p_above(oriented),
        p_above([-step for step in oriented]),
        _power(known, size) if outcome == NOT_SHOWN else "",
        reason="; ".join(filter(None, reasons)),
    )


def waiting(ours: str, n: int, undefined: int = 0) -> Judged:
    """Return the judgement for too few seeds."""
    failed = f", {undefined} more undefined" if undefined else ""
    return Judged(ours, WAITING, n, reason=f"{n} of {SEEDS_NEEDED} seeds needed{failed}")


def format_interval(interval: Interval) -> str:
    """Format a mean with its interval; differences that are rounding errors become 0."""
    mean, low, high = (f"{round(value, 12):+z.3g}" for value in interval)
    return f"{mean} [{low}, {high}]"


def _power(steps: Sequence[float], size: float | None) -> str:
    if size is None or np.ptp(steps) < ROUNDING:  # no spread to compare it with
        return ""
    low, high = power_range(steps, size)
    return f"{low:.2f} to {high:.2f} for {size:+.3g}"


def moves(
    before: Fields,
    after: Fields,
    figure: str,
    sign: int,
    by: float = 1.0,
    *,
    size: float | None = None,
) -> ClaimJudge:
    """Judge that a figure rises (`sign` 1) or falls (-1), at least by the factor `by`.

    With a factor, the differences are those to the figure before multiplied by the factor.
    """
    factor = by if sign > 0 else 1 / by

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        steps = pairs.steps(lambda start, end: end - factor * start)
        needed = ""
        if by != 1 and steps:
            limit = factor * mean_of([*pairs.before.values()])
            needed = f" (needed: at {'least' if sign > 0 else 'most'} {limit:.4g})"
        ours = format_means(pairs) + needed
        planned = n_planned(records, before, after)
        judged = judge_steps(steps, planned, ours, sign=sign, size=size)
        from_factor = f" from {factor:.3g} × before" if by != 1 and judged.interval else ""
        return judged._replace(
            interval=judged.interval + from_factor,
            bootstrap=_over_dev_rows(records, before, after, figure, pairs) if by == 1 else "",
        )

    return judge


def _over_dev_rows(
    records: Sequence[Record], before: Fields, after: Fields, figure: str, pairs: Pairs
) -> str:
    """Format the bootstrap interval of the mean difference of a metric; empty for other figures."""
    score = task_score(before["task"]) if figure == "metric" else figure
    if score not in WORDS or not pairs.before:
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


def stays(before: Fields, after: Fields, figure: str, most: float, as_factor: bool) -> ClaimJudge:
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
        turned = [-step for step in known]
        p = max(p_above(known, -margin), p_above(turned, -margin))
        against = min(p_above(known, margin), p_above(turned, margin))
        if as_factor:
            mean, low, high = (f"{math.exp(value):.3g}" for value in interval)
            shown = f"ratio {mean} [{low}, {high}]"
            reason = f"ratio between {1 / most:.3g} and {most:.3g} claimed"
        else:
            shown, reason = format_interval(interval), f"difference within ±{most:.3g} claimed"
        if undefined:
            reason += f"; {undefined} undefined"
        return Judged(format_means(pairs), outcome, n, shown, p, against, reason=reason)

    return judge


def _log_ratio(before: float, after: float) -> float:
    return math.log(after / before) if before > 0 and after > 0 else math.nan


def none_better(
    before: Fields, conditions: Mapping[str, Fields], figure: str, margin: float
) -> ClaimJudge:
    """Judge that no condition exceeds another by more than a margin.

    The claim holds if every interval ends below the margin. It fails if one interval lies above the
    margin at the level divided by the number of conditions. It waits until all have their seeds.
    """

    def judge(records: Sequence[Record]) -> Judged:
        found = {
            name: [*paired(records, before, after, figure).steps().values()]
            for name, after in conditions.items()
        }
        ours = "; ".join(
            f"{name} {mean_of(steps):+.3g}" for name, steps in found.items() if defined(steps)
        )
        n = min(len(defined(steps)) for steps in found.values())
        if n < SEEDS_NEEDED or any(len(defined(steps)) < len(steps) for steps in found.values()):
            return waiting(ours or "–", n)
        strict = LEVEL / len(conditions)
        better = [name for name, steps in found.items() if t_interval(steps, strict).low > margin]
        highest = max(t_interval(steps).high for steps in found.values())
        limits = f"upper limits up to {highest:+.3g}"
        p = max(p_above([-step for step in steps], -margin) for steps in found.values())
        against = min(1.0, len(found) * min(p_above(steps, margin) for steps in found.values()))
        if better:
            reason = f"better: {', '.join(better)}"
            return Judged(ours, FAILS, n, limits, p, against, reason=reason)
        outcome = HOLDS if highest <= margin else NOT_SHOWN
        return Judged(ours, outcome, n, limits, p, against)

    return judge

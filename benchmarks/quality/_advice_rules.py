"""Rules for advice on whitening: one threshold on one figure, judged on tasks left out."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality._advice_cases import FIGURES, Outcome

RELIABLE = 0.9  # share of the fitted cases beyond a bound of the zone that must be right

Answer = bool | None  # whether whitening helps; None abstains


class Rule(NamedTuple):
    """Advises whitening on one side of a zone, advises against on the other, abstains inside.

    With `rising`, whitening is advised above the zone, else below it.
    """

    figure: str
    rising: bool
    low: float
    high: float

    def answer(self, outcome: Outcome) -> Answer:
        """Return the advice for a case."""
        value = outcome.figures[self.figure]
        if value >= self.high:
            return self.rising
        return not self.rising if value <= self.low else None

    def __str__(self) -> str:
        over, under = (">", "<") if self.rising else ("<", ">")
        first, second = (self.high, self.low) if self.rising else (self.low, self.high)
        return f"whiten if {self.figure} {over} {first:.4g}, not if {under} {second:.4g}"


class Score(NamedTuple):
    """Right, given and possible answers on the tasks left out."""

    right: int
    answered: int
    cases: int
    majority: int  # right answers of the majority rule on the answered cases
    better: int  # tasks with more right answers than the majority rule
    worse: int  # tasks with fewer

    def hit_rate(self) -> float:
        """Return the share of the answers that are right; NaN without answers."""
        return self.right / self.answered if self.answered else float("nan")


def majority(outcomes: Sequence[Outcome]) -> bool:
    """Return whether whitening helps in at least half of the cases."""
    return 2 * sum(outcome.gains for outcome in outcomes) >= len(outcomes)


def fit_threshold(outcomes: Sequence[Outcome], figures: Sequence[str] = FIGURES) -> Rule:
    """Return the threshold with the most right answers; the zone is empty."""
    return max(
        (_best_threshold(outcomes, figure) for figure in figures),
        key=lambda rule: _right(rule, outcomes),
    )


def fit_zone(outcomes: Sequence[Outcome], figures: Sequence[str] = FIGURES) -> Rule:
    """Return the best threshold, widened until the answers on either side are reliable."""
    return max(
        (_widened(fit_threshold(outcomes, [figure]), outcomes) for figure in figures),
        key=lambda rule: _right(rule, outcomes),
    )


def judge(fit: Callable[[Sequence[Outcome]], Rule], outcomes: Sequence[Outcome]) -> Score:
    """Fit a rule to all tasks but one and judge it on that one, for each task."""
    found = []
    for task in sorted({outcome.task for outcome in outcomes}):
        others = [outcome for outcome in outcomes if outcome.task != task]
        rule, usual = fit(others), majority(others)
        given = [(rule.answer(o), o.gains) for o in outcomes if o.task == task]
        answered = [(answer, gains) for answer, gains in given if answer is not None]
        right = sum(answer == gains for answer, gains in answered)
        found.append((right, len(answered), sum(usual == gains for _, gains in answered)))
    right, n_answered, usually = (sum(part) for part in zip(*found, strict=True))
    better, worse = (sum(sign * (one[0] - one[2]) > 0 for one in found) for sign in (1, -1))
    return Score(right, n_answered, len(outcomes), usually, better, worse)


def _right(rule: Rule, outcomes: Sequence[Outcome]) -> int:
    return sum(rule.answer(outcome) == outcome.gains for outcome in outcomes)


def _values(outcomes: Sequence[Outcome], figure: str) -> NDArray[np.float64]:
    """Return the different values of a figure in ascending order, without NaN."""
    values = np.unique([outcome.figures[figure] for outcome in outcomes])
    return values[~np.isnan(values)]


def _best_threshold(outcomes: Sequence[Outcome], figure: str) -> Rule:
    """Return the best of the midpoints between values and of the two rules without a threshold."""
    values = np.array([outcome.figures[figure] for outcome in outcomes])
    gains = np.array([outcome.gains for outcome in outcomes])
    known = _values(outcomes, figure)
    bounds = np.concatenate([[-np.inf], (known[1:] + known[:-1]) / 2])
    above = values >= bounds[:, None]
    right = {
        rising: ((above == rising) == gains)[:, ~np.isnan(values)].sum(axis=1)
        for rising in (True, False)
    }
    rising = right[True].max() >= right[False].max()
    bound = float(bounds[right[rising].argmax()])
    return Rule(figure, bool(rising), bound, bound)


def _widened(rule: Rule, outcomes: Sequence[Outcome]) -> Rule:
    """Move each bound outwards to the first value beyond which enough answers are right."""
    values = _values(outcomes, rule.figure)
    low = [bound for bound in values if bound <= rule.low]
    high = [bound for bound in values if bound >= rule.high]

    def reliable(from_: float, to: float, answer: bool) -> bool:
        beyond = [o.gains for o in outcomes if from_ <= o.figures[rule.figure] <= to]
        return beyond.count(answer) >= RELIABLE * len(beyond)

    below = [bound for bound in low if reliable(-np.inf, bound, not rule.rising)]
    above = [bound for bound in high if reliable(bound, np.inf, rule.rising)]
    return rule._replace(
        low=float(max(below, default=-np.inf)), high=float(min(above, default=np.inf))
    )

"""Verdicts on the claims of claims.tsv, by intervals of differences between runs of the same seed.

Each claim names a rule, a figure, and the conditions before and after. A rule turns the records
into margins, of which each must be above 0 in the mean over seeds.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.reproduction import _points, _statistics as statistics
from benchmarks.reproduction._records import by_seed
from benchmarks.reproduction._statistics import LEVEL, SEEDS_NEEDED, mean_sd, p_above, t_interval
from isoadapt.model_selection._compare._paired_tests import holm

CLAIMS = Path(__file__).parent / "claims.tsv"
HOLDS, FAILS, NOT_SHOWN, COLLAPSED = "holds", "fails", "not shown", "collapsed"
WAITING, NOT_JUDGED = "waiting", "not judged"
# The least mean of the bases for which a task is judged: the dev figure of a reference checkpoint,
# fine-tuned with one seed, less one standard error (binomial for an accuracy, else by bootstrap).
LIMITS = {
    "cola": 0.3291 - 0.0324,
    "mrpc": 0.7966 - math.sqrt(0.7966 * (1 - 0.7966) / 408),
    "rte": 0.6101 - math.sqrt(0.6101 * (1 - 0.6101) / 277),
}


class Claim(NamedTuple):
    """A line of claims.tsv; p-values are adjusted within a family.

    `bound` is a factor, a margin or None. The first page shows the claims that have a `setting`.
    """

    family: str
    task: str
    where: str
    claim: str
    theirs: str
    rule: str
    figure: str
    before: str
    after: str
    bound: float | None
    setting: str

    @property
    def methods(self) -> list[str]:
        """The conditions after the change."""
        return self.after.split("; ")


class Evidence(NamedTuple):
    """The figures as text, the margins by seed (n_seeds, n_margins), and an interval as text."""

    ours: str
    margins: pd.DataFrame
    interval: str


class Judged(NamedTuple):
    """A claim and its judgement; p-values are None unless it is judged.

    `p` is twice the one-sided p-value, so that it is at most 0.05 if and only if the interval lies
    on the claimed side; `p_against` is that of the other side.
    """

    claim: Claim
    ours: str
    outcome: str
    n_seeds: int
    interval: str = ""
    p: float | None = None
    p_against: float | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The verdict for a table."""
        adjusted = {HOLDS: self.p, FAILS: self.p_against}.get(self.outcome)
        if adjusted is not None and adjusted > LEVEL:
            return f"{self.outcome}, but not after Holm"
        bold = self.outcome in (HOLDS, FAILS, COLLAPSED)
        return f"**{self.outcome}**" if bold else self.outcome


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """Return the claims in the order of the file; a bound may be written as a fraction."""
    rows = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    bounds = [float(Fraction(bound)) if bound else None for bound in rows["bound"]]
    rows["bound"] = pd.Series(bounds, dtype=object)
    return [Claim(*row) for row in rows.itertuples(index=False)]


def judge_claims(claims: Sequence[Claim], table: pd.DataFrame) -> list[Judged]:
    """Judge the claims of a family; claims that wait count in Holm's adjustment of both sides."""
    found = [judge(claim, table) for claim in claims]
    for side in ("p", "p_against"):
        known = [getattr(each, side) for each in found]
        for i, value in enumerate(holm([1.0 if p is None else p for p in known])):
            if known[i] is not None:
                found[i] = found[i]._replace(**{side: value})
    return found


def judge(claim: Claim, table: pd.DataFrame) -> Judged:
    """Judge a claim by all seeds; that on a metric also without the runs that have collapsed."""
    found = _judge(claim, table)
    if claim.figure != "metric" or found.outcome in (WAITING, NOT_JUDGED):
        return found
    without = _judge(claim, table[~table["collapsed"]])
    lost = found.n_seeds - without.n_seeds
    if not lost:
        return found
    outcome = found.outcome if without.outcome == found.outcome else COLLAPSED
    reasons = [f"collapsed in {lost} of {found.n_seeds} seeds", found.reason]
    return found._replace(outcome=outcome, reason=_joined(reasons))


def _judge(claim: Claim, table: pd.DataFrame) -> Judged:
    """Judge a claim by the seeds of a table, if the bases of its task have learned it."""
    ours, margins, interval = RULES[claim.rule](table, claim)
    known = margins.dropna()
    n, undefined = len(known), len(margins) - len(known)
    base = _base(table, claim.task)
    if n < SEEDS_NEEDED or (base is not None and len(base) < SEEDS_NEEDED):
        return Judged(claim, ours if n else "–", WAITING, n)
    if base is not None and base.mean() < LIMITS[claim.task]:
        return Judged(claim, ours, NOT_JUDGED, n, reason="the bases have not learned the task")
    p = max(p_above(known[each]) for each in known)
    # One method that is better refutes that none is, so that their number counts.
    against = min(1.0, len(claim.methods) * min(p_above(-known[each]) for each in known))
    outcome = HOLDS if p <= LEVEL and not undefined else FAILS if against <= LEVEL else NOT_SHOWN
    equal = (known.max() - known.min() < statistics.ROUNDING).all()
    reasons = ["equal in all seeds" if equal else "", f"{undefined} undefined" * bool(undefined)]
    return Judged(claim, ours, outcome, n, interval, p, against, _joined(reasons))


def _joined(reasons: list[str]) -> str:
    return "; ".join(filter(None, reasons))


def _base(table: pd.DataFrame, task: str) -> pd.Series | None:
    """Return the metric of the bases of a task, None for synthetic points."""
    if task not in LIMITS:
        return None
    return by_seed(table, task, "base", "metric").dropna()


# --- rules ----------------------------------------------------------------------------------------


def sides(table: pd.DataFrame, claim: Claim) -> list[pd.Series]:
    """Return the figure before and after, for the seeds that have run both."""
    figures = claim.figure.split(" → ")
    before = by_seed(table, claim.task, claim.before, figures[0])
    return [*before.align(by_seed(table, claim.task, claim.after, figures[-1]), join="inner")]


def together(table: pd.DataFrame, claim: Claim, figure: str) -> pd.DataFrame:
    """Return a figure (n_seeds, n_conditions) for the seeds that have run all conditions."""
    names = (claim.before, *claim.methods)
    found = {name: by_seed(table, claim.task, name, figure) for name in names}
    return pd.concat(found, axis=1, join="inner")


def _moves(table: pd.DataFrame, claim: Claim) -> Evidence:
    """The figure rises or falls; with a bound, from this multiple of the figure before."""
    before, after = sides(table, claim)
    sign, factor = (-1 if claim.rule == "falls" else 1), claim.bound or 1.0
    steps = after - factor * before
    ours, interval = f"{mean_sd(before)} → {mean_sd(after)}", _interval(steps)
    if claim.bound:
        side = "least" if sign > 0 else "most"
        ours += f" (needed: at {side} {factor * before.mean():.4g})"
        interval += f" from {factor:.3g} × before"
    return Evidence(ours, (sign * steps).to_frame(), interval)


def _stays(table: pd.DataFrame, claim: Claim) -> Evidence:
    """The figure changes by no more than the bound, as a difference or as a ratio."""
    before, after = sides(table, claim)
    ours, bound = f"{mean_sd(before)} → {mean_sd(after)}", claim.bound or 0.0
    steps, interval = after - before, _interval(after - before)
    if claim.rule == "keeps its ratio within":
        bound, steps = math.log(bound), np.log((after / before).where(lambda ratio: ratio > 0))
        known = steps.dropna()
        if len(known) >= SEEDS_NEEDED:
            mean, low, high = (f"{math.exp(value):.3g}" for value in t_interval(known))
            interval = f"ratio {mean} [{low}, {high}]"
    margins = pd.DataFrame({"not above": bound - steps, "not below": bound + steps})
    return Evidence(ours, margins, interval)


def _none_is_better(table: pd.DataFrame, claim: Claim) -> Evidence:
    """No method raises the figure by more than the bound."""
    found = together(table, claim, claim.figure)
    steps = found[claim.methods].sub(found[claim.before], axis=0)
    ours = "; ".join(f"{name} {steps[name].mean():+.3g}" for name in steps)
    known, interval = steps.dropna(), ""
    if len(known) >= SEEDS_NEEDED:
        highest = max(t_interval(known[name]).high for name in known)
        interval = f"upper limits up to {highest:+.3g}"
    return Evidence(ours, (claim.bound or 0.0) - steps, interval)


def _falls_at_every_place(table: pd.DataFrame, claim: Claim) -> Evidence:
    """Every entry of a list is lower after; the margin is the smallest difference."""
    before, after = sides(table, claim)
    steps = _of_lists(lambda first, second: np.min(first - second), before, after)
    last = [_of_lists(lambda values: values[-1], each) for each in (before, after)]
    ours = f"at k=20: {mean_sd(last[0])} → {mean_sd(last[1])}"
    return Evidence(ours, steps.to_frame(), _interval(steps))


def _changes_early_layers_more(table: pd.DataFrame, claim: Claim) -> Evidence:
    """The mean absolute log ratio is greater over the first half of the layers."""
    pair = sides(table, claim)
    early = _of_lists(lambda *lists: _log_ratios(*lists)[: len(lists[0]) // 2].mean(), *pair)
    late = _of_lists(lambda *lists: _log_ratios(*lists)[len(lists[0]) // 2 :].mean(), *pair)
    ours = f"log ratio {mean_sd(early)} early, {mean_sd(late)} late"
    return Evidence(ours, (early - late).to_frame(), _interval(early - late))


def _log_ratios(before: Any, after: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.abs(np.log(after / before))


def _falls_with_isotropy(table: pd.DataFrame, claim: Claim) -> Evidence:
    """The rank correlation of the metric and I1 over the conditions is below 0."""
    metric, isotropy = (
        together(table, claim, figure) for figure in (claim.figure, "partition_isotropy")
    )
    steps = metric.corrwith(isotropy, axis=1, method="spearman")
    return Evidence(mean_sd(steps), (-steps).to_frame(), _interval(steps))


def _has_margin(table: pd.DataFrame, claim: Claim) -> Evidence:
    """The margin of a claim on synthetic points, which comes from all scores, is above 0."""
    own = table[table["name"] == claim.after].set_index("seed").sort_index()
    scores = {
        seed: pd.DataFrame({name: figures[name] for name in _points.NAMES}, figures["n"])
        for seed, figures in own.iterrows()
        if isinstance(figures.get("n"), list)
    }
    known = {seed: _points.margins(found)[claim.figure] for seed, found in scores.items()}
    steps = pd.Series(known, dtype=float).reindex(own.index)
    name, sizes = _points.SHOWN[claim.figure]
    shown = (f"n={n}: {mean_sd(each.loc[n, name] for each in scores.values())}" for n in sizes)
    return Evidence(f"{name}: {'; '.join(shown)}", steps.to_frame(), _interval(steps))


def _of_lists(function: Callable[..., float], *figures: pd.Series) -> pd.Series:
    """Return a function of list-valued figures for each seed; NaN where one is missing."""
    values = [
        function(*np.array(row, float)) if all(isinstance(one, list) for one in row) else math.nan
        for row in zip(*figures, strict=True)
    ]
    return pd.Series(values, figures[0].index, dtype=float)


def _interval(steps: pd.Series) -> str:
    known = steps.dropna()
    return statistics.format_interval(known) if len(known) >= SEEDS_NEEDED else ""


RULES: dict[str, Callable[[pd.DataFrame, Claim], Evidence]] = {
    "rises": _moves,
    "falls": _moves,
    "stays within": _stays,
    "keeps its ratio within": _stays,
    "none is better by": _none_is_better,
    "falls at every k": _falls_at_every_place,
    "changes early layers more": _changes_early_layers_more,
    "falls with I1": _falls_with_isotropy,
    "has margin": _has_margin,
}

"""Claims on made-up records: holds, fails, not shown, waiting, not judged."""

import pytest
from scipy.stats import ttest_1samp

from benchmarks.reproduction._claims import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    NOT_SHOWN,
    WAITING,
    Claim,
    judge,
)
from benchmarks.reproduction._records import table_of
from benchmarks.reproduction._statistics import p_above, t_interval

LOST = ValueError("out of luck")


def claim(rule="rises", figure="score", task="made up", bound=None, after="high"):
    return Claim("", task, "", "", "", rule, figure, "low", after, bound, "")


def records(name, values, figure="score", task="made up", **others):
    """A record for each seed; None stands for one that has not run, an exception for a failure."""
    found = []
    for seed, value in enumerate(values):
        record = {"kind": "fresh", "name": name, "task": task, "seed": seed}
        if isinstance(value, Exception):
            record["error"] = str(value)
        elif value is not None:
            record["figures"] = {figure: value, **others}
        if value is not None:
            found.append(record)
    return found


def pairs(low, high, **named):
    return table_of([*records("low", low, **named), *records("high", high, **named)])


@pytest.mark.parametrize(
    ("high", "rises", "falls"),
    [
        ([0.20, 0.61, 0.99], HOLDS, FAILS),  # the spread between seeds cancels in pairs
        ([0.05, 0.41, 0.82], FAILS, HOLDS),
        ([0.50, 0.40, 0.95], NOT_SHOWN, NOT_SHOWN),
        ([0.20, 0.61, None], WAITING, WAITING),
        ([0.1, 0.5, 0.9], NOT_SHOWN, NOT_SHOWN),  # no difference at all excludes nothing
        ([0.2, 0.6, 1.0], NOT_SHOWN, NOT_SHOWN),  # nor do equal ones
    ],
)
def test_a_direction_is_judged_by_its_interval(high, rises, falls):
    found = pairs([0.1, 0.5, 0.9], high)
    assert judge(claim(), found).outcome == rises
    assert judge(claim("falls"), found).outcome == falls
    steps = [after - before for before, after in zip([0.1, 0.5, 0.9], high, strict=True) if after]
    if rises in (HOLDS, FAILS):
        theirs = ttest_1samp(steps, 0.0, alternative="greater").pvalue
        assert p_above(steps) == pytest.approx(min(1, 2 * theirs))
        assert (t_interval(steps).low > 0) == (rises == HOLDS) == (p_above(steps) <= 0.05)


@pytest.mark.parametrize(
    ("rule", "bound", "high", "outcome"),
    [
        ("rises", 1.5, [3.1, 6.2, 9.2], HOLDS),
        ("rises", 1.5, [2.1, 4.9, 7.8], FAILS),  # it rises, but by less than the factor
        ("stays within", 0.5, [2.1, 3.9, 6.1], HOLDS),
        ("stays within", 0.5, [4.1, 5.9, 8.2], FAILS),
        ("keeps its ratio within", 1.5, [2.1, 4.1, 6.1], HOLDS),
        ("keeps its ratio within", 1.5, [0.4, 0.9, 1.3], FAILS),
        ("none is better by", 0.5, [2.1, 3.9, 6.1], HOLDS),
        ("none is better by", 0.5, [4.1, 5.9, 8.2], FAILS),
        ("none is better by", 0.5, [2.9, 3.9, 6.9], NOT_SHOWN),
    ],
)
def test_a_bound_is_a_factor_or_a_margin(rule, bound, high, outcome):
    assert judge(claim(rule, bound=bound), pairs([2.0, 4.0, 6.0], high)).outcome == outcome


def test_that_one_method_is_better_must_hold_for_their_number():
    low, high = [2.0, 4.0, 6.0], [2.8, 4.7, 6.95]  # by more than 0.5 with p = 0.049
    table = table_of(records("low", low) + records("high", high) + records("other", low))
    rule = "none is better by"
    assert judge(claim(rule, bound=0.5), table).outcome == FAILS
    assert judge(claim(rule, bound=0.5, after="high; other"), table).outcome == NOT_SHOWN


def test_a_seed_without_a_figure_lets_no_claim_hold():
    for lost in (LOST, float("nan")):
        judged = judge(claim(), pairs([1, 1, 1, 1], [2, 2.1, 2, lost]))
        assert (judged.outcome, judged.n_seeds, judged.reason) == (NOT_SHOWN, 3, "1 undefined")
        assert judge(claim(), pairs([2, 2, 2, 2], [1, 1.1, 1, lost])).outcome == FAILS


def test_a_task_whose_bases_have_not_learned_is_not_judged():
    low, high = [1] * 3, [2, 2.1, 2]
    found = [*records("low", low, task="cola"), *records("high", high, task="cola")]
    cases = ([0.1, 0.11, 0.12], NOT_JUDGED), ([0.34, 0.33, 0.32], HOLDS), ([0.34, 0.33], WAITING)
    for bases, outcome in cases:
        table = table_of([*found, *records("base", bases, "metric", task="cola")])
        assert judge(claim(task="cola"), table).outcome == outcome

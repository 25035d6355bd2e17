"""Claims on made-up records: holds, fails, not shown, waiting, not judged."""

import numpy as np
import pytest

from benchmarks.reproduction import __main__ as reproduce
from benchmarks.reproduction._figures import of
from benchmarks.reproduction._statistics import holm, pack
from benchmarks.reproduction._verdicts import (
    COLLAPSED,
    FAILS,
    HOLDS,
    NOT_JUDGED,
    NOT_SHOWN,
    WAITING,
    Claim,
    Judged,
    judge_claims,
    moves,
)

LOW, HIGH = of("low", "cola"), of("high", "cola")
PAPERS = [paper for papers in reproduce.PAPERS.values() for paper in papers]


def records(name, values, figure="score", task="cola", **others):
    """A record for each seed; None stands for one that has not run, an exception for a failure."""
    found = []
    for seed, value in enumerate(values):
        record = {"key": f"{name}/{task}/{seed}", "name": name, "task": task, "seed": seed}
        if isinstance(value, Exception):
            record["error"] = str(value)
        elif value is not None:
            record["figures"] = {figure: value, **others}
        found.append(record)
    return found


def pairs(low, high, figure="score"):
    return [*records("low", low, figure), *records("high", high, figure)]


LOST = ValueError("out of luck")
RISE = moves(LOW, HIGH, "score", 1)
FALL = moves(LOW, HIGH, "score", -1)


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
    assert RISE(found).outcome == rises
    assert FALL(found).outcome == falls


def test_a_seed_without_a_figure_lets_no_claim_hold():
    for lost in (LOST, float("nan")):
        judged = RISE(pairs([1, 1, 1, 1], [2, 2.1, 2, lost]))
        assert (judged.outcome, judged.n_seeds) == (NOT_SHOWN, 3)
        assert "1 undefined" in judged.reason
        assert RISE(pairs([2, 2, 2, 2], [1, 1.1, 1, lost])).outcome == FAILS


def predictions(share, n=200):
    """Packed predictions, of which this share is one class."""
    return pack(np.arange(n) % 3 > 0, np.arange(n) >= n * share)


@pytest.mark.parametrize(
    ("n_collapsed", "outcome"), [(0, FAILS), (2, FAILS), (3, COLLAPSED), (5, COLLAPSED)]
)
def test_a_verdict_that_rests_on_collapsed_runs_is_none(n_collapsed, outcome):
    found = records("low", [0.5, 0.51, 0.52, 0.5, 0.49], "metric", dev=predictions(0.6))
    for seed, record in enumerate(records("high", [0.1, 0.11, 0.12, 0.1, 0.1], "metric")):
        record["figures"]["dev"] = predictions(1.0 if seed < n_collapsed else 0.7)
        found.append(record)
    rise = moves(LOW, HIGH, "metric", 1)
    about_metric, about_else = judge_claims(
        [Claim("", "", "", rise, about_metric=True), Claim("", "", "", rise)], found
    )
    assert about_metric.judged.outcome == outcome
    assert about_metric.judged.n_seeds == 5
    said = f"collapsed in {n_collapsed} of 5 seeds"
    assert about_metric.judged.reason == (said if n_collapsed else "")
    assert about_else.judged.outcome == FAILS


@pytest.mark.parametrize(("outcome", "side"), [(HOLDS, "p"), (FAILS, "p_against")])
def test_p_is_adjusted_for_all_claims_of_a_paper_and_those_that_wait(outcome, side):
    values = (0.01, None, 0.04, 0.03)
    judges = [
        lambda found, p=p: Judged("", outcome if p else WAITING, 3, **{side: p}) for p in values
    ]
    lines = judge_claims([Claim("", "", "", judge) for judge in judges], [])
    expected = holm([0.01, 1.0, 0.04, 0.03])
    assert [getattr(line, side) for line in lines] == [expected[0], None, *expected[2:]]
    marked = f"{outcome}, but not after Holm"
    assert [line.verdict for line in lines] == [f"**{outcome}**", WAITING, marked, marked]


def test_a_task_whose_base_has_not_learned_is_not_judged():
    claims = [Claim("", "", "", RISE, "cola"), Claim("", "", "", RISE)]
    found = pairs([1] * 3, [2, 2.1, 2])
    missed = records("base", [0.1, 0.11, 0.12], "matthews")
    gated, free = judge_claims(claims, [*found, *missed])
    assert gated.judged.outcome == NOT_JUDGED
    reason = "base 0.110 ± 0.010 (3 seeds), mean 0.1100 is below 0.2967"
    assert gated.judged.reason.startswith(reason)
    assert gated.judged.p is gated.p is gated.p_against is None
    assert free.judged.outcome == HOLDS
    reached = records("base", [0.34, 0.33, 0.32], "matthews")
    assert judge_claims(claims, [*found, *reached])[0].judged.outcome == HOLDS

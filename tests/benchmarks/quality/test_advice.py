import numpy as np
import pytest

from benchmarks.quality import advice
from benchmarks.quality._advice_cases import FIGURES, Key, Outcome, outcome_line, outcome_store
from benchmarks.quality._advice_rules import (
    RELIABLE,
    Rule,
    fit_threshold,
    fit_zone,
    judge,
    majority,
)


def outcome(task, gain, **figures):
    known = {**dict.fromkeys(FIGURES, 0.0), **figures}
    return Outcome(task, known, 0.5, round(0.5 + gain, 4))


def separable(n=20, task="a"):
    """Whitening helps exactly where ev1 is above one half; other figures are random."""
    rng = np.random.default_rng(len(task))
    return [
        outcome(
            task,
            0.1 if value > 0.5 else -0.1,
            **{**{name: rng.random() for name in FIGURES}, "ev1": float(value)},
        )
        for value in np.linspace(0, 1, n)
    ]


def test_rule_answers_outside_of_its_zone():
    rule = Rule("ev1", True, 0.2, 0.8)
    assert [rule.answer(outcome("a", 0, ev1=value)) for value in (0.1, 0.5, 0.9)] == [
        False,
        None,
        True,
    ]
    opposite = rule._replace(rising=False)
    assert [opposite.answer(outcome("a", 0, ev1=value)) for value in (0.1, 0.5, 0.9)] == [
        True,
        None,
        False,
    ]


@pytest.mark.parametrize("fit", [fit_threshold, fit_zone])
def test_the_figure_that_separates_is_found(fit):
    rule = fit(separable())
    assert rule.figure == "ev1"
    assert rule.rising
    assert 0.4 < rule.low <= rule.high < 0.6


def test_answers_beyond_the_zone_are_reliable():
    rng = np.random.default_rng(0)
    cases = [
        outcome("a", 0.1 if value + 0.2 * rng.normal() > 0.5 else -0.1, ev1=value)
        for value in rng.random(400)
    ]
    rule = fit_zone(cases, ["ev1"])
    given = [(rule.answer(case), case.gains) for case in cases]
    for side in (True, False):
        right = [answer == gains for answer, gains in given if answer is side]
        assert len(right) > 50
        assert np.mean(right) >= RELIABLE
    assert any(answer is None for answer, _ in given)


def test_tasks_are_left_out():
    cases = [*separable(task="a"), *separable(task="bb"), *separable(task="ccc")]
    score = judge(fit_threshold, cases)
    assert (score.right, score.answered, score.cases) == (60, 60, 60)
    assert (score.better, score.worse) == (3, 0)
    reversed_task = [one._replace(task="d", before=one.after, after=one.before) for one in cases]
    assert judge(fit_threshold, [*cases[:20], *reversed_task[:20]]).right == 0


def test_majority_is_counted_on_answered_cases():
    cases = [outcome(task, 0.1, ev1=1.0) for task in "abc"] + [outcome("a", -0.1, ev1=1.0)]
    assert majority(cases)
    score = judge(lambda _: Rule("ev1", True, 0.5, 0.5), cases)
    assert (score.right, score.majority, score.answered) == (3, 3, 4)
    assert (score.better, score.worse) == (0, 0)


def test_outcomes_are_read_back_and_shown(tmp_path):
    path = tmp_path / "advice.jsonl"
    cases = [
        (Key(one.task, f"{i} epochs", "cls", False, str(i)), one)
        for task in ("a", "bb")
        for i, one in enumerate(separable(8, task))
    ]
    store = outcome_store(path)
    for key, one in cases:
        store.add(outcome_line(key, one))
    again = outcome_store(path)
    assert [again.get(key) for key, _ in cases] == [one for _, one in cases]
    text = advice.advice_text(cases, "nothing")
    assert "in 8 of 16 cases" in text
    assert text.count("| cls |") == 16
    assert "whiten if ev1 > " in text

"""The sentence on when whitening helps, and the rules behind it."""

import numpy as np
import pytest

from benchmarks.quality import advice
from benchmarks.quality.__main__ import records
from docs._ext.results import RESULTS
from tests.docs.blocks import ROOT


def made(n, task, reverse=False):
    """Whitening helps exactly where ev1 is above (or below) one half; `noise` is random."""
    rng = np.random.default_rng(len(task))
    return [
        {
            "task": task,
            "figures": {"noise": rng.random(), "ev1": float(value)},
            "before": 0.5,
            "after": 0.6 if (value > 0.5) != reverse else 0.4,
        }
        for value in np.linspace(0, 1, n)
    ]


@pytest.mark.parametrize("reverse", [False, True])
def test_the_best_threshold_is_found(reverse):
    right, bound, above = advice.threshold(made(20, "a", reverse), "ev1")
    assert (right, above) == (20, not reverse)
    assert bound == pytest.approx(0.5, abs=0.03)


def test_rules_are_judged_on_tasks_left_out():
    cases = [*made(20, "a"), *made(20, "bb"), *made(20, "ccc")]
    assert advice.hit_rates(cases, ["noise", "ev1"]) == (1.0, 0.5)
    assert advice.hit_rates([*made(20, "a"), *made(20, "d", reverse=True)], ["ev1"])[0] == 0


def test_the_figures_of_the_guide_are_those_of_the_records():
    found = records(advice).entries()
    assert advice.text(found) in RESULTS.read_text("utf-8")
    figures = list(found[0]["figures"])
    guide = " ".join((ROOT / "docs" / "guide" / "results.rst").read_text("utf-8").split())
    chosen, usual = advice.hit_rates(found, figures)
    rank, _ = advice.hit_rates(found, ["effective_rank_share"])
    assert f"In {len(found)} cases" in guide
    assert f"in {sum(map(advice.gains, found))}, so that always" in guide
    assert f"is right in {usual:.3f}".replace("0.", ".") in guide
    assert f"{chosen:.3f} were right".removeprefix("0") in guide
    assert f"({rank:.3f}), which is the best".replace("0.", ".") in guide

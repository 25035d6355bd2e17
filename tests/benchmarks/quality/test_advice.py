"""The rules on when an adapter helps, and what they are judged on."""

import json

import numpy as np
import pytest

from benchmarks.quality import advice
from benchmarks.quality.__main__ import records
from tests.docs.blocks import ROOT

ENCODERS = np.repeat(["a", "b", "c"], 20)


def made(encoders=ENCODERS, reverse=()):
    """Return noise and EV1, and gains that are EV1 minus one half, or the reverse of some."""
    ev1 = np.tile(np.linspace(0, 1, 20), len(encoders) // 20)
    noise = np.random.default_rng(0).random(len(encoders))
    return np.column_stack([noise, ev1]), (ev1 - 0.5) * np.where(np.isin(encoders, reverse), -1, 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_best_threshold_is_found(reverse):
    values, gains = made()
    right, bound, above = advice.threshold(values[:, 1], (gains > 0) != reverse)
    assert (right, above) == (60, not reverse)
    assert bound == pytest.approx(0.5, abs=0.03)


def test_rules_are_judged_on_encoders_left_out():
    values, gains = made()
    assert advice.judged(values, gains, ENCODERS) == pytest.approx((1, 0), abs=1e-12)
    usual = advice.judged(0 * values[:, :1], gains, ENCODERS)
    assert usual == pytest.approx((0.5, np.abs(gains).mean()))
    two = ENCODERS[:40]
    values, gains = made(two, reverse="b")
    assert advice.judged(values[:, 1:], gains, two)[0] == 0


def test_no_pair_is_fitted_to(monkeypatch):
    names = [f"C{i}" for i in range(60)]
    monkeypatch.setattr(advice, "molecules", lambda: (names, [0, 1] * 30))
    monkeypatch.setattr(advice, "N_MOLECULES", 8)
    similar = np.random.default_rng(0).random((60, 60))
    monkeypatch.setattr(advice, "tanimoto", lambda held: similar[: len(held), : len(held)])
    for cached in (advice.molecule_pairs, advice.fitting_texts):
        cached.cache_clear()
    pairs, fit = advice.molecule_pairs(), advice.fitting_texts(advice.MOLECULES)
    for cached in (advice.molecule_pairs, advice.fitting_texts):
        cached.cache_clear()
    used = {*pairs.first, *pairs.second}
    assert (len(pairs.scores), len(used)) == (28, 8)
    assert sorted(fit) == sorted(set(names) - used)


def test_the_figures_of_the_guide_are_those_of_the_records():
    found = records(advice).entries()
    guide = " ".join((ROOT / "docs" / "guide" / "results.rst").read_text("utf-8").split())
    ev1 = np.array([one["figures"]["EV1"] for one in found])
    gains = np.array([one["whitened"] - one["raw"] for one in found])
    yes, cases, least, others, low = advice.one_sided(ev1, gains)
    assert f"in {yes} of {cases} cases, by at least {least:.3f}".replace(" 0.", " .") in guide
    assert f"it raised it in {others} of {low}:" in guide
    names = advice.USUAL, "EV1", "effective rank / d"
    judged = advice.rules(found, advice.QUESTIONS[0])["rules"]
    usual, ruled, rank = (judged[name][0] for name in names)
    assert f"is right in {ruled:.3f} of".replace("0.", ".") in guide
    assert f"frequent answer is right in {usual:.3f}.".replace("0.", ".") in guide
    lines = map(json.loads, advice.EARLIER.read_text("utf-8").splitlines())
    pairs = np.array([(one["figures"]["ev1"], one["after"] - one["before"]) for one in lines])
    yes, cases, _, others, low = advice.one_sided(*pairs.T)
    assert f"In {len(pairs)} earlier cases" in guide
    assert f"it raised it in {yes} of {cases} with" in guide
    assert f"and in {others} of {low} with a smaller one." in guide
    assert "is right in .692 and always whitening in .859" in guide
    assert f"{rank:.3f} of the cases".removeprefix("0") in guide
    assert "but in .603 of the earlier ones" in guide
    assert "in 0.692 and 0.603 of the earlier cases, and always yes in 0.859" in advice.text(found)
    raised, more = (advice.rules(found, question) for question in advice.QUESTIONS[1:])
    assert raised["yes"] == raised["cases"]
    assert f"in all {raised['cases']} cases of classifiers" in guide
    assert f"more than whitening in {more['yes']} (" in guide

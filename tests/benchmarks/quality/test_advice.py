"""The rules on when an adapter helps, and what they are judged on."""

import numpy as np
import pytest

from benchmarks.quality import advice

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

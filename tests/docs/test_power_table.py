"""The numbers of rows that the guide advises reach the power that it states."""

import re
from pathlib import Path

import numpy as np
import pytest

from isoadapt.model_selection._compare._paired_tests import corrected_t, sign_flip_p

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "appendix.rst"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
DISCORDANT = 0.05, 0.10, 0.20
N_TRIALS = 300


def table():
    """Numbers of rows by protocol, difference and share of discordant rows."""
    text = PAGE.read_text("utf-8")
    found = {}
    for points, *cells in re.findall(r"\* - (\d) points?" + r"\s+- ([\d,]+)" * 6, text):
        numbers = [int(cell.replace(",", "")) for cell in cells]
        for place, n in enumerate(numbers):
            protocol = ("test rows", "cross-validation")[place // 3]
            found[protocol, int(points) / 100, DISCORDANT[place % 3]] = n
    return found


def draw_differences(n, difference, discordant, rng):
    """Differences -1, 0 or 1 of the correctness of two classifiers on n rows."""
    better = (discordant + difference) / 2
    return rng.choice([1.0, -1.0, 0.0], size=n, p=[better, discordant - better, 1 - discordant])


def p_of_folds(differences, rng):
    """p-value of 5 folds that are repeated 3 times."""
    folds = [np.array_split(rng.permutation(differences), 5) for _ in range(3)]
    means = np.array([fold.mean() for repeat in folds for fold in repeat])
    return corrected_t(means, 0.25).p_value


@pytest.mark.parametrize("difference", [0.02, 0.05])
@pytest.mark.parametrize("discordant", DISCORDANT)
@pytest.mark.parametrize("protocol", ["test rows", "cross-validation"])
def test_power_is_about_80_percent(protocol, difference, discordant):
    rng = np.random.default_rng(0)
    n = table()[protocol, difference, discordant]
    found = 0
    for _ in range(N_TRIALS):
        values = draw_differences(n, difference, discordant, rng)
        p = sign_flip_p(values, 0) if protocol == "test rows" else p_of_folds(values, rng)
        found += p < 0.05
    assert 0.70 < found / N_TRIALS < 0.92


def test_the_table_is_complete():
    assert len(table()) == 4 * 6


def test_the_trials_it_quotes_are_those_of_the_results():
    found = {}
    for protocol, share, text in re.findall(
        r"\| (test rows|cross-validation) \| (10|20)% \| \d+ of \d+ \(([\d.]+)%",
        RESULTS.read_text("utf-8"),
    ):
        found[protocol, share] = f"{float(text):g} %"
    page = " ".join(PAGE.read_text("utf-8").split())
    for protocol in ("test rows", "cross-validation"):
        assert " and ".join(found[protocol, share] for share in ("10", "20")) in page

"""What comparisons on stored embeddings and trials draw, store and count."""

import numpy as np
import pytest

from benchmarks.quality import trials
from benchmarks.quality.trials import PlantedAdapter
from isoadapt.adapters._heads import fit_head
from isoadapt.metrics import similarity_correlation


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("discordance", trials.DISCORDANCES[1:])
def test_heads_predict_the_planted_signs_with_the_stated_accuracies(discordance, rng):
    X, y = trials.planted_rows(40_000, discordance, rng)
    Z = PlantedAdapter().fit(X, y).transform(X)
    predictions = [fit_head("logistic", rows[:500], y[:500]).predict(rows) for rows in (X, Z)]
    correct = np.array([each == y for each in predictions])
    error = 4 * np.sqrt(0.25 / len(y))
    assert correct[0].mean() == pytest.approx(trials.BASE_ACCURACY, abs=error)
    assert correct[1].mean() - correct[0].mean() == pytest.approx(trials.EFFECT, abs=error)
    assert (correct[0] != correct[1]).mean() == pytest.approx(discordance, abs=error)


def test_rank_correlations_of_planted_pairs_are_known(rng):
    first, second, scores = trials.planted_pairs(40_000, rng)
    assert len(np.unique(np.vstack([first, second]), axis=0)) == 80_000
    show = PlantedAdapter().transform
    before, after = map(trials.spearman, trials.CORRELATIONS)
    assert similarity_correlation(first, second, scores) == pytest.approx(before, abs=0.02)
    shown = similarity_correlation(show(first), show(second), scores)
    assert shown == pytest.approx(after, abs=0.02)

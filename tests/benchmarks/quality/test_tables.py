"""The figures of one fit, which rows fit and judge, the rules of advice, and planted trials."""

import numpy as np
import pytest

from benchmarks._data import narrow_cone
from benchmarks.quality import trials
from benchmarks.quality._adapter_rows import ROWS, Unchanged, measure_adapter
from benchmarks.quality.embeddings_table import drawn
from isoadapt import LogitPreservingWhitening
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._registry import METHODS
from isoadapt.metrics import similarity_correlation


def test_figures_are_those_of_the_test_rows():
    data = narrow_cone(240, 6, seed=0)
    found = measure_adapter(LogitPreservingWhitening(data.head), data)
    adapter = LogitPreservingWhitening(data.head).fit(data.X_train, data.y_train)
    assert found["accuracy"] == pytest.approx(data.head.score(data.X_test, data.y_test))
    assert found["changed"] == 0
    covariance = np.cov(adapter.transform(data.X_test).astype(float).T)
    rank = np.trace(covariance) ** 2 / (covariance**2).sum()
    assert found["isoscore"] == pytest.approx((rank - 1) / 5, rel=1e-4)
    share = np.linalg.eigvalsh(covariance)[-1] / np.trace(covariance)
    assert found["ev1"] == pytest.approx(share, rel=1e-4)
    flipped = type(data.head)(-data.head.coef_, -data.head.intercept_, [0, 1])
    assert measure_adapter(Unchanged(flipped), data)["changed"] == len(data.y_test)


def test_every_adapter_has_a_row_that_fits():
    data = narrow_cone(120, 6, seed=0)
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert set(METHODS.values()) <= {type(row.make(data.head)).__name__ for row in ROWS}
    for row in ROWS:
        estimator = row.make_seeded(data.head, 0)
        if "max_epochs" in estimator.get_params():
            estimator.set_params(max_epochs=1)
        assert 0 <= measure_adapter(estimator, data)["isoscore"] <= 1, row.name


def test_draws_are_stratified_rows_of_the_training_split_with_their_labels():
    data = narrow_cone(400, 6, seed=0)
    first, second = (drawn(data, 100, seed) for seed in (0, 1))
    assert first.X_train.shape == (100, 6)
    assert abs(first.y_train.mean() - data.y_train.mean()) < 0.01
    assert not np.array_equal(first.X_train, second.X_train)
    np.testing.assert_array_equal(first.X_train, drawn(data, 100, 0).X_train)
    assert drawn(data, "all", None) is data
    rows = {row.tobytes(): label for row, label in zip(data.X_train, data.y_train, strict=True)}
    assert [rows[row.tobytes()] for row in first.X_train] == first.y_train.tolist()


@pytest.mark.parametrize("discordance", trials.DISCORDANCES[1:])
def test_heads_predict_the_planted_signs_with_the_stated_accuracies(discordance):
    rng = np.random.default_rng(0)
    X, y = trials.planted_rows(40_000, discordance, rng)
    Z = trials.planted(X)
    predictions = [fit_head("logistic", rows[:500], y[:500]).predict(rows) for rows in (X, Z)]
    correct = np.array([each == y for each in predictions])
    error = 4 * np.sqrt(0.25 / len(y))
    assert correct[0].mean() == pytest.approx(trials.BASE_ACCURACY, abs=error)
    assert correct[1].mean() - correct[0].mean() == pytest.approx(trials.EFFECT, abs=error)
    assert (correct[0] != correct[1]).mean() == pytest.approx(discordance, abs=error)


def test_rank_correlations_of_planted_pairs_are_known():
    rng = np.random.default_rng(0)
    first, second, scores = trials.planted_pairs(40_000, rng)
    assert len(np.unique(np.vstack([first, second]), axis=0)) == 80_000
    before, after = map(trials.spearman, trials.CORRELATIONS)
    assert similarity_correlation(first, second, scores) == pytest.approx(before, abs=0.02)
    shown = similarity_correlation(trials.planted(first), trials.planted(second), scores)
    assert shown == pytest.approx(after, abs=0.02)

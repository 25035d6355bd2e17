"""The figures of one fit, and which rows fit and judge."""

import numpy as np
import pytest

from benchmarks._data import narrow_cone
from benchmarks.quality import few_rows
from benchmarks.quality._adapter_rows import ROWS, Unchanged, measure_adapter
from benchmarks.quality.embeddings_table import drawn
from isoadapt import LogitPreservingWhitening
from isoadapt.adapters._registry import METHODS


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
        estimator = row.make_seeded(data.head, 0 if row.takes_seed() else None)
        if "max_epochs" in estimator.get_params():
            estimator.set_params(max_epochs=1)
        assert 0 <= measure_adapter(estimator, data)["isoscore"] <= 1, row.name


def test_draws_are_stratified_and_differ_from_seed_to_seed():
    data = narrow_cone(400, 6, seed=0)
    first, second = (drawn(data, 100, seed) for seed in (0, 1))
    assert first.X_train.shape == (100, 6)
    assert abs(first.y_train.mean() - data.y_train.mean()) < 0.01
    assert not np.array_equal(first.X_train, second.X_train)
    np.testing.assert_array_equal(first.X_train, drawn(data, 100, 0).X_train)
    assert drawn(data, "all", None) is data


def test_draws_of_few_rows_are_disjoint_from_those_to_judge():
    y = narrow_cone(240, 6, seed=0).y_train
    fitting, judging = few_rows.split(y, 60, 0)
    assert len(fitting) == 60
    assert sorted([*fitting, *judging]) == list(range(240))
    assert y[fitting].mean() == pytest.approx(y.mean(), abs=1 / 60)
    assert set(fitting) != set(few_rows.split(y, 60, 1)[0])

"""The figures of one fit, and the tables on made-up figures."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks._data import narrow_cone
from benchmarks.quality import embeddings_table
from benchmarks.quality._adapter_rows import BASE, ROWS, Unchanged, measure_adapter
from benchmarks.quality.embeddings_table import COLUMNS, drawn, verdict
from isoadapt import LogitPreservingWhitening
from isoadapt.adapters._registry import METHODS


def fits(row, task="cola", **columns):
    """Records of one row: a fit for each entry of the columns, with a seed if there are several."""
    n = max(map(len, columns.values()))
    made = {**dict.fromkeys(COLUMNS, 0.5), "changed": 0, "data": f"{task} dev", "n": 100}
    made |= {"size": "all", "n_train": 768, "d": 384, "setting": "versions"}
    return [
        {"task": task, "row": row, "seed": seed if n > 1 else None, **made}
        | {name: values[seed] for name, values in columns.items()}
        for seed in range(n)
    ]


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


def test_directions_are_those_of_all_seeds():
    own = pd.DataFrame(
        [
            *fits("adapter", ev1=[0.5, 0.25, 0.75]),
            *fits("control", ev1=[0.75, 0.5, 0.5]),
            *fits("fixed", ev1=[0.625]),
            *fits("lower", ev1=[0.25, 0.25, 0.375]),
            *fits("undefined", ev1=[math.nan]),
        ]
    )
    assert verdict(own, "adapter", "control", "ev1", -1) == "mixed, 0.583 → 0.500, 2/3"
    assert verdict(own, "adapter", "control", "ev1", 1) == "mixed, 0.583 → 0.500, 1/3"
    assert verdict(own, "adapter", "fixed", "ev1", -1) == "mixed, 0.625 → 0.500, 2/3"
    assert verdict(own, "lower", "control", "ev1", -1) == "yes, 0.583 → 0.292, 3/3"
    assert verdict(own, "lower", "control", "ev1", 1) == "**no**, 0.583 → 0.292, 0/3"
    assert verdict(own, "fixed", "fixed", "ev1", -1) == "**no**, 0.625 → 0.625"
    assert verdict(own, "undefined", "fixed", "ev1", 1) == "**no**, 0.625 → –"
    assert verdict(own, "absent", "fixed", "ev1", 1) == "not measured"


def test_tables_show_spread_where_there_are_seeds():
    records = [
        *fits(BASE, accuracy=[0.75]),
        *fits("IsotropyLayer, minibatch", accuracy=[0.7, 0.72], corrected=[0.4, 0.1]),
        *fits(BASE, "mrpc", accuracy=[0.8]),
    ]
    text = embeddings_table.text(records)
    assert "| IsotropyLayer, minibatch | 0.710 ± 0.014 |" in text
    assert "| other tasks | mrpc dev, n=100: accuracy |" in text


def test_draws_are_stratified_and_differ_from_seed_to_seed():
    data = narrow_cone(400, 6, seed=0)
    first, second = (drawn(data, 100, seed) for seed in (0, 1))
    assert first.X_train.shape == (100, 6)
    assert abs(first.y_train.mean() - data.y_train.mean()) < 0.01
    assert not np.array_equal(first.X_train, second.X_train)
    np.testing.assert_array_equal(first.X_train, drawn(data, 100, 0).X_train)
    assert drawn(data, "all", None) is data


def test_a_gain_counts_only_above_every_control():
    records = [
        *fits(BASE, accuracy=[0.5]),
        *fits("head refit only", accuracy=[0.75]),
        *fits("same layer, no penalty", accuracy=[0.6]),
        *fits("IsotropyLayer, minibatch", accuracy=[0.8, 0.86]),
        *fits("IsotropyLayer, exact", accuracy=[0.9]),
    ]
    text = embeddings_table.text(records)
    assert "1 of 2 (cola, all rows, IsotropyLayer, exact: 0.750 → 0.900)" in text
    assert "| fitted to all | cola (2.0) |" in text

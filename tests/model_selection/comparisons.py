"""Rows for comparisons of adapters, and what their tables are asked for."""

import numpy as np
import pytest

D = 6


def make_rows(n, seed):
    """Rows whose first coordinate tells the class, and whose third hides something similar."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=n)
    X = rng.normal(size=(n, D)) * [1, 1, 6, 1, 1, 1]
    X[:, 0] -= 1.2 * (y - 0.5)
    return X, y


X, y = make_rows(90, 0)
X_TEST, Y_TEST = make_rows(60, 1)
TEST = {"X_test": X_TEST, "y_test": Y_TEST, "encoder_saw": True, "random_state": 0}
CV = {"encoder_saw": False, "cv": 2, "random_state": 0}


def row_of(comparison, use, adapter="Whitening"):
    (row,) = [r for r in comparison.rows if (r["use"], r["adapter"]) == (use, adapter)]
    return row


def assert_same_rows(first, second):
    """The tables hold the same rows, in any order, but for the seconds."""
    rows = [
        {
            (row["use"], row["adapter"]): {k: v for k, v in row.items() if "seconds" not in k}
            for row in each.rows
        }
        for each in (first, second)
    ]
    assert rows[0].keys() == rows[1].keys()
    for key, row in rows[0].items():
        assert row == pytest.approx(rows[1][key], nan_ok=True), key

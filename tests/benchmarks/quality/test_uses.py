"""The figures of the table on uses, for vectors of which they are known."""

import numpy as np
import pytest

from benchmarks.quality import uses

LABELS = np.arange(600) % 12
RNG = np.random.default_rng(0)
NOISE = RNG.normal(size=(600, 40))
CLASSES = 4 * RNG.normal(size=(12, 40))[LABELS] + RNG.normal(size=(600, 40))
OLD = LABELS < 8  # the other classes are new


def test_vectors_that_are_classes_and_noise():
    for X, least, most in ((CLASSES, 0.95, 1), (NOISE, 0, 0.2)):
        new = X[~OLD], LABELS[~OLD]
        assert least <= uses.wrong_labels(X, LABELS, None)[0] <= most
        assert least <= uses.new_class(X[OLD], *new)[0] <= most
        assert least <= uses.topics(*new)[0] <= most
    right = 30 * np.eye(12)[LABELS]
    assert uses.wrong_labels(right, LABELS, lambda X: X)[0] == 1  # the head's outputs


def test_scope_is_the_area_and_the_share_above_a_quantile():
    inside, outside = np.arange(100.0), np.arange(-50.0, 50)
    found = uses.scope(inside, outside)
    pairs = np.less.outer(outside, inside) + np.equal.outer(outside, inside) / 2
    assert found["AUROC"][0] == pytest.approx(pairs.mean())
    assert found["accepted"][0] == np.mean(outside >= np.quantile(inside, 0.05))


def test_planted_pairs_are_found_first_by_vectors_that_know_them(shared):
    pairs, rows = uses.planted()
    assert len(set(rows[: 2 * len(pairs)])) == 2 * uses.N_PLANTED
    X = np.random.default_rng(0).normal(size=(len(rows), 64))
    X[1 : 2 * len(pairs) : 2] = X[: 2 * len(pairs) : 2] + 0.1 * X[1 : 2 * len(pairs) : 2]
    assert {value for value, _ in uses.duplicates(lambda texts: X).values()} == {1.0}
    rng = np.random.default_rng(1)
    noise = uses.duplicates(lambda texts: rng.normal(size=X.shape))
    assert max(value for value, _ in noise.values()) < 0.02

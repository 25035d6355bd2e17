"""Which rows fit and which judge, one fit, and the checks on made-up figures."""

import warnings

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from benchmarks import _data
from benchmarks._data import load_unseen, narrow_cone
from benchmarks.quality import few_rows
from benchmarks.quality._adapter_rows import MINIBATCH, PROBE
from benchmarks.quality.few_rows import measure_fit, split
from isoadapt.metrics import isoscore

DATA = narrow_cone(240, 6, seed=0)
X, Y = DATA.X_train, DATA.y_train


def fits(row, size=300, **columns):
    """Records of one row of a task: a draw for each entry of the columns."""
    made = {
        "accuracy": 0.75,
        "corrected": 0.5,
        "harmful": False,
        "unconverged": False,
        "n_fitted": size,
        "n_judged": 100,
        "setting": "versions",
    }
    n = max(map(len, columns.values()))
    return [
        {"task": "tiny", "name": "tiny rows", "size": size, "row": row, "draw": draw, **made}
        | {name: values[draw] for name, values in columns.items()}
        for draw in range(n)
    ]


def lines(*rows):
    """The text of the records, line by line."""
    return few_rows.text([record for row in rows for record in row]).splitlines()


def test_draws_are_stratified_disjoint_and_as_large_as_asked():
    fitting, judging = split(Y, 60, 0)
    assert len(fitting) == 60
    assert sorted([*fitting, *judging]) == list(range(240))
    assert Y[fitting].mean() == pytest.approx(Y.mean(), abs=1 / 60)
    assert set(fitting) != set(split(Y, 60, 1)[0])


def test_all_rows_judge_once_in_five_folds():
    folds = [split(Y, None, draw) for draw in range(5)]
    assert sorted(np.concatenate([judging for _, judging in folds])) == list(range(240))
    assert all(len(fitting) + len(judging) == 240 for fitting, judging in folds)


def test_unseen_rows_are_those_of_all_splits_but_train(monkeypatch, tmp_path):
    monkeypatch.setattr(_data, "shared_folder", lambda: tmp_path)
    (tmp_path / "embeddings").mkdir()
    rng = np.random.default_rng(0)
    train, dev, test = (rng.normal(size=(n, 3)).astype(np.float32) for n in (9, 4, 5))
    dev[1] = train[7]
    arrays = {"E_train": train, "E_dev": dev, "E_test": test}
    labels = {f"y_{part}": np.arange(n) for part, n in (("train", 9), ("dev", 4), ("test", 5))}
    np.savez(tmp_path / "embeddings" / "tiny.npz", **arrays, **labels)
    name, rows, y = load_unseen("tiny")
    assert name == "tiny dev + test"
    np.testing.assert_array_equal(rows, np.concatenate([dev[[0, 2, 3]], test]))
    np.testing.assert_array_equal(y, [0, 2, 3, 0, 1, 2, 3, 4])


class Doubtful(BaseEstimator):
    """Warns as it is told, predicts class 1 and doubles the embeddings."""

    def __init__(self, *doubts):
        self.doubts = doubts

    def fit(self, X, y):
        for doubt in self.doubts:
            warnings.warn(doubt, stacklevel=1)
        return self

    def predict(self, X):
        return np.ones(len(X), int)

    def transform(self, X):
        return 2 * X


HARM = UserWarning("this fit harms the task: the score falls")
HASTE = ConvergenceWarning("training ended while the score was still rising")


@pytest.mark.parametrize(
    ("doubts", "harmful", "unconverged"),
    [((), False, False), ((HARM,), True, False), ((HASTE,), False, True)],
)
def test_figures_and_warnings_are_those_of_the_fit(doubts, harmful, unconverged):
    fitting, judging = split(Y, 60, 0)
    found = measure_fit(Doubtful(*doubts), X, Y, fitting, judging)
    assert (found["harmful"], found["unconverged"]) == (harmful, unconverged)
    assert (found["n_fitted"], found["n_judged"]) == (60, 180)
    assert found["accuracy"] == pytest.approx(Y[judging].mean())
    expected = isoscore(X[judging], bias_corrected=True)
    assert found["corrected"] == pytest.approx(expected, rel=1e-5)


def test_losses_and_false_alarms_are_counted_against_the_probe():
    probe = fits(PROBE, accuracy=[0.8, 0.8, 0.8])
    within = fits(MINIBATCH, accuracy=[0.77, 0.9, 0.7], harmful=[True, False, True])
    losing = fits("IStarAdapter", accuracy=[0.5] * 3, harmful=[True] * 3)
    text = lines(probe, within, losing)
    row = next(line for line in text if line.startswith("| tiny rows |")).split(" | ")
    assert row[1:6] == ["300", "100", "0.800 ± 0.000", "0.0400", "-0.0100"]
    losses, alarms, _ = (line for line in text if line.startswith("- "))
    assert losses.endswith("1 of 2 cells: tiny rows, n=300, IStarAdapter")
    assert alarms.endswith("1 of 2, 50.0 %")


def test_the_error_is_that_of_all_folds_together():
    text = lines(fits(PROBE, "all", accuracy=[0.7, 0.9], n_fitted=[192, 192]))
    row = next(line for line in text if line.startswith("| tiny rows |")).split(" | ")
    assert row[1:3] == ["all, 192", "200"]
    assert float(row[4]) == pytest.approx(0.4 / np.sqrt(200), abs=1e-4)


def test_isotropy_is_asked_for_where_rows_are_twice_the_dimensions():
    probe, sizes = [fits(PROBE, n, accuracy=[0.8]) for n in (700, 768)], (700, 768)
    layers = [fits(MINIBATCH, n, corrected=[low]) for n, low in zip(sizes, (0.1, 0.2), strict=True)]
    assert lines(*probe, *layers)[-3].endswith("wanted): tiny rows, n=768: **0.200**")

"""Which rows fit and which judge, one fit, and the checks on made-up figures."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score

from benchmarks._data import narrow_cone
from benchmarks.quality import few_rows
from benchmarks.quality._adapter_rows import MINIBATCH, PROBE, Unchanged
from benchmarks.quality.few_rows import measure_fit, split
from isoadapt.metrics import isoscore

DATA = narrow_cone(240, 6, seed=0)
X, Y = DATA.X_train, DATA.y_train


def fits(row, size=300, **columns):
    """Records of one row of a task: a draw for each entry of the columns."""
    made = {"accuracy": 0.75, "corrected": 0.5, "harmful": False, "unconverged": False}
    made |= {"n_fitted": size, "n_judged": 100, "setting": "versions"}
    n = max(map(len, columns.values()))
    return [
        {"task": "tiny", "name": "tiny rows", "size": size, "row": row, "draw": draw, **made}
        | {name: values[draw] for name, values in columns.items()}
        for draw in range(n)
    ]


def test_draws_are_stratified_disjoint_and_as_large_as_asked():
    fitting, judging = split(Y, 60, 0)
    assert len(fitting) == 60
    assert sorted([*fitting, *judging]) == list(range(240))
    assert Y[fitting].mean() == pytest.approx(Y.mean(), abs=1 / 60)
    assert set(fitting) != set(split(Y, 60, 1)[0])


class Doubtful(Unchanged):
    """Warns as it is told."""

    def __init__(self, head, doubts=()):
        super().__init__(head)
        self.doubts = doubts

    def fit(self, X, y):
        for doubt in self.doubts:
            warnings.warn(doubt, stacklevel=1)
        return super().fit(X, y)


HARM = UserWarning("this fit harms the task: the score falls")
HASTE = ConvergenceWarning("training ended while the score was still rising")


@pytest.mark.parametrize(
    ("doubts", "harmful", "unconverged"),
    [((), False, False), ((HARM,), True, False), ((HASTE,), False, True)],
)
def test_figures_and_warnings_are_those_of_the_fit(doubts, harmful, unconverged):
    fitting, judging = split(Y, 60, 0)
    found = measure_fit(Doubtful(DATA.head, doubts), X, Y, fitting, judging)
    assert (found["harmful"], found["unconverged"]) == (harmful, unconverged)
    assert (found["n_fitted"], found["n_judged"]) == (60, 180)
    assert found["accuracy"] == DATA.head.score(X[judging], Y[judging])
    assert found["corrected"] == isoscore(X[judging], bias_corrected=True)


def test_losses_and_false_alarms_are_counted_against_the_probe():
    probe = fits(PROBE, accuracy=[0.8, 0.8, 0.8])
    within = fits(MINIBATCH, accuracy=[0.77, 0.9, 0.7], harmful=[True, False, True])
    losing = fits("IStarAdapter", accuracy=[0.5] * 3, harmful=[True] * 3)
    text = few_rows.text([*probe, *within, *losing]).splitlines()
    row = next(line for line in text if line.startswith("| tiny rows |")).split(" | ")
    assert row[1:6] == ["300", "100", "0.800 ± 0.000", "0.0400", "-0.0100"]
    losses, alarms = (line for line in text if line.startswith("- "))
    assert losses.endswith("1 of 2 cells: tiny rows, n=300, IStarAdapter")
    assert alarms.endswith("1 of 2, 50.0 %")


def test_a_regression_is_judged_by_r2_on_rows_that_are_not_stratified():
    values = X[:, 0] + 0.1 * X[:, 1]
    fitting, judging = split(values, 60, 0)
    probe = Unchanged("ridge", refit=True)
    found = measure_fit(probe, X, values, fitting, judging)
    assert found["accuracy"] == pytest.approx(r2_score(values[judging], probe.predict(X[judging])))
    judged = np.concatenate([split(values, None, draw)[1] for draw in range(5)])
    assert sorted(judged) == [*range(240)]

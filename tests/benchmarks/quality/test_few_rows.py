"""Which rows fit and which judge, one fit, and the checks on made-up figures."""

import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

from benchmarks._data import narrow_cone
from benchmarks.quality._adapter_rows import Unchanged
from benchmarks.quality.few_rows import measure_fit, split
from isoadapt.metrics import isoscore

DATA = narrow_cone(240, 6, seed=0)
X, Y = DATA.X_train, DATA.y_train


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

"""Which epoch is kept, when training stops and what a fit warns of."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning

from isoadapt import CosRegAdapter, IsotropyLayer, IStarAdapter, LinearHead
from isoadapt.adapters._selection import Run, Selection

N = 100  # validation rows: the standard error of a share p is sqrt(p (1 - p)) / 10


def accuracy(outputs, index):
    return float(outputs.mean())


def run_through(shares, *, weight=1.0, patience=None, penalties=None):
    """Judge epochs 0, 1, ... in which these shares of the rows are right; stop as training does."""
    selection = Selection(accuracy, weight, patience, np.random.RandomState(0))
    history = []
    for number, share in enumerate(shares):
        right = (np.arange(N) < round(share * N)).astype(float)[:, None]
        penalty = 0.0 if penalties is None else penalties[number]
        epoch = selection.consider(
            number, penalty, True, right, lambda number=number: {"n": number}
        )
        history.append({"epoch": number, **epoch.figures()})
        if number and selection.done(number):
            break
    return Run(selection, history)


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([0.8, 0.8, 0.8, 0.8], 3),
        ([0.8, 0.8, 0.79, 0.5], 2),  # 0.04 is one standard error
        ([0.8, 0.9, 0.7, 0.88], 3),
        ([0.8, 0.9, 0.7, 0.85], 1),
        ([0.5, 0.6, 0.9, 0.8], 2),  # what is as good as the best so far may not be so later
        ([0.8, 0.6, 0.7, 0.65], 2),  # none is as good as the start: the best of them
    ],
)
def test_the_last_epoch_as_good_as_the_best_is_kept(shares, kept):
    chosen = run_through(shares).selection.chosen
    assert (chosen.number, chosen.state) == (kept, {"n": kept})


@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("penalties", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 5, 0, 5]])
def test_values_of_the_penalty_play_no_part(weight, penalties):
    run = run_through([0.8, 0.8, 0.82, 0.5], weight=weight, penalties=penalties)
    assert run.selection.chosen.number == 2


def test_without_a_head_the_lowest_weighted_penalty_is_kept():
    selection = Selection(None, -2.0, None, np.random.RandomState(0))
    for number, penalty in enumerate([5.0, 1.0, 4.0, 3.0]):
        selection.consider(number, penalty, True, None, dict)
    assert selection.chosen.number == 2


def test_patience_counts_from_the_choice():
    assert run_through([0.8, 0.8, 0.5, 0.5, 0.5, 0.8], patience=3).history[-1]["epoch"] == 4
    assert run_through([0.8, 0.8, 0.5, 0.5, 0.8, 0.8], patience=3).history[-1]["epoch"] == 5


def test_an_epoch_that_is_not_finite_is_not_kept():
    selection = Selection(accuracy, 1.0, None, np.random.RandomState(0))
    right = np.ones((N, 1))
    for number, finite in enumerate([True, True, False]):
        selection.consider(number, 0.0, finite, right, dict)
    assert selection.chosen.number == 1


class TestDoubts:
    def test_harm_gives_both_figures_and_the_way_out(self):
        (doubt,) = run_through([0.8, 0.6, 0.7]).doubts(max_epochs=2)
        assert isinstance(doubt, UserWarning)
        for part in (
            "0.8 before",
            "0.7 at the epoch kept (2)",
            "LogitPreservingWhitening",
            "ridge",
        ):
            assert part in str(doubt)

    def test_haste_where_the_score_rises_to_the_end(self):
        rising = run_through([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        (doubt,) = rising.doubts(max_epochs=6)
        assert isinstance(doubt, ConvergenceWarning)
        assert "max_epochs=6" in str(doubt)
        assert "from 0.7 to 0.9 in the last 2 epoch(s)" in str(doubt)

    @pytest.mark.parametrize(
        "shares", [[0.8, 0.8, 0.8, 0.8], [0.3, 0.9, 0.9, 0.9], [0.3, 0.5, 0.9, 0.5]]
    )
    def test_none_where_the_score_has_settled(self, shares):
        assert run_through(shares).doubts(max_epochs=3) == []

    def test_none_without_validation_rows(self):
        assert Run(None).doubts(max_epochs=3) == []


def few_rows(n, d=60, seed=0):
    """Rows of which one direction of large variance tells the class, and the others nothing."""
    X, y = make_classification(
        n,
        d,
        n_informative=1,
        n_redundant=0,
        n_clusters_per_class=1,
        shuffle=False,
        random_state=seed,
    )
    return X * np.r_[10.0, np.full(d - 1, 0.3)], y


@pytest.mark.parametrize("adapter", [IsotropyLayer, IStarAdapter])
def test_few_rows_keep_the_task_by_default_and_lose_it_without_the_ridge(adapter):
    losses = {"auto": [], 0.0: []}
    for seed in range(3):
        X, y = few_rows(1100, seed=seed)
        for ridge, lost in losses.items():
            fitted = adapter(ridge=ridge, validation_fraction=None, random_state=0).fit(
                X[:90], y[:90]
            )
            lost.append(fitted.head_.score(X[90:], y[90:]) - fitted.score(X[90:], y[90:]))
    assert max(losses["auto"]) < 0.01 < 0.05 < np.mean(losses[0.0])


@pytest.mark.parametrize("solver", ["minibatch", "exact"])
def test_the_ridge_holds_the_outputs_of_a_regression_on_few_rows(solver):
    X, y = make_regression(1000, 60, n_informative=10, noise=50.0, random_state=0)
    fitted = IsotropyLayer("ridge", solver=solver, random_state=0).fit(X[:90], y[:90])
    start = fitted.head_.score(X[90:], y[90:])
    assert fitted.score(X[90:], y[90:]) > start - 0.02


def test_harm_is_a_warning_of_a_fit_and_a_default_fit_is_silent():
    X, y = few_rows(300)
    with pytest.warns(UserWarning, match="this fit harms the task"):
        CosRegAdapter(lr=0.5, max_epochs=2, random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IsotropyLayer(random_state=0).fit(X, y)


def test_a_head_that_needs_more_epochs_is_a_convergence_warning():
    X, y = few_rows(600)
    wrong = LinearHead(np.eye(2, 60)[::-1] * 0.01, [0, 0], [0, 1])
    head = wrong if wrong.score(X, y) < 0.5 else LinearHead(wrong.coef_[::-1], [0, 0], [0, 1])
    with pytest.warns(ConvergenceWarning, match="max_epochs=6 while the validation score was"):
        IsotropyLayer(head, ridge=0.0, lr=3e-2, max_epochs=6, random_state=0).fit(X, y)

"""The choice of the epoch, early stopping, warnings of a fit, and the automatic ridge."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score

from isoadapt import CosRegAdapter, ExactIsotropyLayer, IsotropyLayer, LinearHead
from isoadapt.adapters._engine._choice import Accuracy, EpochChoice, TargetUnits, make_score
from isoadapt.adapters._engine._output_ridge import automatic_ridge
from isoadapt.adapters._engine._train import _make_net
from isoadapt.adapters._heads import fit_head

N = 100  # validation rows: the standard error of a share p is sqrt(p (1 - p)) / 10


def run_epochs(shares, *, weight=1.0, patience=None, penalties=None):
    """Run the selection over epochs with the given accuracies, until it stops the training."""
    score = Accuracy(np.ones((N, 1), dtype=bool))
    run = EpochChoice(len(shares) - 1, patience, score, weight, np.random.RandomState(0))
    for number, share in enumerate(shares):
        right = (np.arange(N) < round(share * N)).astype(float)[:, None]
        penalty = 0.0 if penalties is None else penalties[number]
        figures = run.consider(number, penalty, right, lambda number=number: {"n": number})
        run.history.append({"epoch": number, **figures})
        if number and run.stops(number):
            break
    return run


class TestKeptEpoch:
    @pytest.mark.parametrize(
        ("shares", "kept"),
        [
            ([0.8, 0.8, 0.8, 0.8], 3),
            ([0.8, 0.8, 0.79, 0.5], 2),  # 0.04 is one standard error
            ([0.8, 0.9, 0.7, 0.88], 3),
            ([0.5, 0.6, 0.9, 0.8], 2),  # epoch 1 is replaced by a better one
            ([0.8, 0.6, 0.7, 0.65], 2),  # none reaches the start, so the best one is kept
            ([0.8, 1.0, 0.99, 0.97], 2),  # if all rows are right, their error is the least one
        ],
    )
    def test_is_the_last_one_as_good_as_the_best_whatever_the_penalty(self, shares, kept):
        for weight, penalties in ((1.0, None), (-1.0, [3, 2, 1, 0]), (0.0, [0, 5, 0, 5])):
            choice = run_epochs(shares, weight=weight, penalties=penalties)
            assert (choice.best_epoch, choice.state) == (kept, {"n": kept})

    def test_has_the_lowest_weighted_penalty_without_a_head(self):
        run = EpochChoice(5, None, None, -2.0, np.random.RandomState(0))
        for number, penalty in enumerate([5.0, 1.0, 4.0, 3.0, np.inf]):
            run.consider(number, penalty, None, dict)
        assert run.best_epoch == 2

    def test_patience_counts_from_the_choice(self):
        assert run_epochs([0.8, 0.8, 0.5, 0.5, 0.5, 0.8], patience=3).history[-1]["epoch"] == 4
        assert run_epochs([0.8, 0.8, 0.5, 0.5, 0.8, 0.8], patience=3).history[-1]["epoch"] == 5

    def test_the_history_is_that_of_the_fit_that_chose_the_epoch(self):
        X, y = few_rows(50)  # so few that the head and the adapter are then fitted to all rows
        adapter = CosRegAdapter(max_epochs=3, random_state=0).fit(X, y)
        assert [entry["epoch"] for entry in adapter.history_] == [0, 1, 2, 3]
        assert all("valid_score" in entry for entry in adapter.history_)


def rows_with_a_score(n, weighted, classes=range(3)):
    """A score of the default metric, outputs, targets, weights and random samples of rows."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 4, size=n).astype(float) if weighted else None
    if classes:
        outputs, y = rng.normal(size=(n, 3)).astype(np.float32), rng.integers(3, size=n)
    else:
        y = rng.normal(size=(n, 3)) * 1e3 + 1e4
        y[2:, 0] = 7.0  # constant in some samples
        outputs = (y + rng.normal(size=y.shape)).astype(np.float32)
        outputs[:, 0] = 7.0
    samples = [np.arange(n), np.arange(2, n), *rng.integers(n, size=(50, n))]
    head, units = LinearHead(np.eye(3), np.zeros(3), classes), TargetUnits.of(None)
    return make_score(head, y, y, units, weights, None), outputs, y, weights, samples


@pytest.mark.parametrize("weighted", [False, True])
class TestScores:
    def test_of_each_sample_are_those_of_scikit_learn(self, weighted):
        for classes, theirs in ((range(3), accuracy_score), (None, r2_score)):
            score, outputs, y, weights, samples = rows_with_a_score(30, weighted, classes)
            found = outputs.argmax(1) if classes else outputs
            expected = theirs(y, found, sample_weight=weights)
            assert score(outputs) == pytest.approx(expected, rel=1e-12)
            for index in () if classes else samples:
                own = None if weights is None else weights[index]
                expected = theirs(y[index], found[index], sample_weight=own)
                assert score.metric(outputs[index], index) == pytest.approx(expected, rel=1e-12)

    def test_the_standard_error_of_an_accuracy_is_that_of_a_bootstrap(self, weighted):
        score, outputs, y, weights, _ = rows_with_a_score(400, weighted)
        samples = np.random.default_rng(1).integers(400, size=(4000, 400))
        right = outputs.argmax(1) == y
        own = [None if weights is None else weights[index] for index in samples]
        pairs = zip(samples, own, strict=True)
        drawn = np.std([np.average(right[index], weights=each) for index, each in pairs])
        # The standard deviation of 4,000 draws has a relative standard error of 1.1 %.
        assert score.standard_error(outputs) == pytest.approx(drawn, rel=0.04)


@pytest.mark.parametrize(
    ("shares", "kind", "word"),
    [
        ([0.8, 0.6, 0.7], UserWarning, "is 0.8 before training and lower by 0.1 at the kept epoch"),
        ([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], ConvergenceWarning, "to 0.9, by 0.2"),
    ],
)
def test_lower_score_than_at_the_start_or_one_that_still_rises_is_warned_of(shares, kind, word):
    (warning,) = run_epochs(shares).warnings()
    assert isinstance(warning, kind)
    assert word in str(warning)
    for settled in ([0.8, 0.8, 0.8, 0.8], [0.3, 0.9, 0.9, 0.9], [0.3, 0.5, 0.9, 0.5]):
        assert list(run_epochs(settled).warnings()) == []


def few_rows(n):
    """Rows with the class in one direction of large variance, and noise in the others."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=n)
    X = 0.3 * rng.normal(size=(n, 60))
    X[:, 0] = 10 * (y - 0.5) + 4 * rng.normal(size=n)
    return X, y


def test_accuracy_on_few_rows_is_kept_with_the_default_ridge_only():
    X, y = few_rows(1100)
    head = fit_head("logistic", X[:90], y[:90])
    least = head.score(X[90:], y[90:]) - 0.01
    options = {"validation_fraction": None, "random_state": 0}
    automatic, without = (
        IsotropyLayer(head, ridge=ridge, **options).fit(X[:90], y[:90]).score(X[90:], y[90:])
        for ridge in ("auto", 0.0)
    )
    assert without < least < automatic


class TestAutomaticRidge:
    def test_regression_ridge_is_that_of_the_share_of_signal(self):
        """With many rows 1/F of the explained variance is noise, for F of the regression."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(2000, 20)) * np.geomspace(9, 0.1, 20) + 3
        outputs = rng.normal(size=(2000, 1))
        for size in (0.03, 0.1):
            signal = size * (X[:, :1] - 3)
            targets = outputs + signal + rng.normal(size=(2000, 1))
            explained = signal.var() * 2000 / 21  # over its expectation without signal
            ridge = automatic_ridge(X, targets, outputs)
            assert 0.4 / explained < ridge < 5 / explained

    def test_noise_is_taken_for_signal_in_at_most_eight_percent(self):
        """Also noise of unequal size; copies of a row that share a group are one observation."""
        groups, found = np.arange(32).repeat(4), []
        for seed in range(60):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(32, 64))
            noise = (rng.normal(size=32) * np.exp(X[:, 0]))[:, None]
            rows = X[groups] + 1e-3 * rng.normal(size=(128, 64))
            targets = (noise / noise.std())[groups]
            found.append(automatic_ridge(rows, targets, 0 * targets, groups=groups) < 98)
        assert np.mean(found) <= 0.08

    def test_ridge_is_largest_for_a_head_that_was_fitted_to_the_rows(self):
        """Also with a repeated row: with one degree of freedom too many, residuals would be 0."""
        X, y = few_rows(50)
        for rows, labels in ((X, y), (np.vstack([X, X[:1]]), np.append(y, y[0]))):
            layer = ExactIsotropyLayer().fit(rows, labels)
            assert layer.ridge_ == pytest.approx(0.99 / 0.04)

    @pytest.mark.parametrize("classes", [range(3), None])
    def test_ridge_is_the_mean_squared_change_of_the_outputs(self, classes):
        """The tolerance covers the shrinkage of the covariance."""
        rng, n = np.random.default_rng(0), 20_000
        X = (rng.normal(size=(n, 4)) * [5, 2, 1, 0.5] + 1).astype(np.float32)
        y = rng.integers(3, size=n) if classes else X @ rng.normal(size=(4, 3))
        head = LinearHead(rng.normal(size=(3, 4)), np.zeros(3), classes)
        adapter = IsotropyLayer(head, ridge=2.0, validation_fraction=None)
        problem = adapter._prepare(X, y, 1.0 + 10 * (np.abs(X[:, 0] - 1) > 7))
        net = _make_net([adapter._task(problem)])
        net.initialize()
        points = torch.from_numpy(problem.inputs()).float()
        own = torch.from_numpy(problem.row_weights()).float()
        with torch.no_grad():
            before = net.module_(points).outputs
            for parameter in (net.module_.weight, net.module_.bias):
                parameter.add_(0.1 * torch.randn(parameter.shape))
            after = net.module_(points)
            penalty = net.ridge(after.reader)
        change = after.outputs - before
        if classes:
            change = 3**0.5 * (change - change.mean(-1, keepdim=True))  # squares are summed
        expected = 2 * (change.square().mean(-1) * own).mean(-1)
        torch.testing.assert_close(penalty, expected, rtol=1e-2, atol=1e-6)

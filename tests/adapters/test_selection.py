"""The choice of the epoch, early stopping, warnings of a fit, and the automatic ridge."""

import warnings

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score

from isoadapt import IsotropyLayer, IStarAdapter, LinearHead
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._training._epoch_choice import Accuracy, Run, make_score
from isoadapt.adapters._training._fit import _make_net, make_member, prepare_problem
from isoadapt.adapters._training._problem import automatic_ridge

N = 100  # validation rows: the standard error of a share p is sqrt(p (1 - p)) / 10


def accuracy(outputs, index):
    return float(outputs.mean())


def run_epochs(shares, *, weight=1.0, patience=None, penalties=None):
    """Run the selection over epochs with the given accuracies, until it stops the training."""
    run = Run(accuracy, weight, patience, np.random.RandomState(0))
    for number, share in enumerate(shares):
        right = (np.arange(N) < round(share * N)).astype(float)[:, None]
        penalty = 0.0 if penalties is None else penalties[number]
        figures = run.consider(number, penalty, True, right, lambda number=number: {"n": number})
        run.history.append({"epoch": number, **figures})
        if number and run.stops(number):
            break
    return run


@pytest.mark.parametrize(
    ("shares", "kept"),
    [
        ([0.8, 0.8, 0.8, 0.8], 3),
        ([0.8, 0.8, 0.79, 0.5], 2),  # 0.04 is one standard error
        ([0.8, 0.9, 0.7, 0.88], 3),
        ([0.8, 0.9, 0.7, 0.85], 1),
        ([0.5, 0.6, 0.9, 0.8], 2),  # epoch 1 is replaced by a better one
        ([0.8, 0.6, 0.7, 0.65], 2),  # none reaches the start, so the best one is kept
    ],
)
def test_the_last_epoch_as_good_as_the_best_is_kept(shares, kept):
    chosen = run_epochs(shares).chosen
    assert (chosen.number, chosen.state) == (kept, {"n": kept})


@pytest.mark.parametrize("weight", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("penalties", [[0, 1, 2, 3], [3, 2, 1, 0], [0, 5, 0, 5]])
def test_values_of_the_penalty_have_no_effect(weight, penalties):
    run = run_epochs([0.8, 0.8, 0.82, 0.5], weight=weight, penalties=penalties)
    assert run.chosen.number == 2


def test_without_a_head_the_lowest_weighted_penalty_is_kept():
    run = Run(None, -2.0, None, np.random.RandomState(0))
    for number, penalty in enumerate([5.0, 1.0, 4.0, 3.0]):
        run.consider(number, penalty, True, None, dict)
    assert run.chosen.number == 2


def test_patience_counts_from_the_choice():
    assert run_epochs([0.8, 0.8, 0.5, 0.5, 0.5, 0.8], patience=3).history[-1]["epoch"] == 4
    assert run_epochs([0.8, 0.8, 0.5, 0.5, 0.8, 0.8], patience=3).history[-1]["epoch"] == 5


def test_epoch_with_non_finite_outputs_is_not_kept():
    run = Run(accuracy, 1.0, None, np.random.RandomState(0))
    right = np.ones((N, 1))
    for number, finite in enumerate([True, True, False]):
        run.consider(number, 0.0, finite, right, dict)
    assert run.chosen.number == 1


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.9, 0.8, 0.8], "is 0.9 before training and 0.8 at the kept epoch (1)"),
        ([0.99999, 0.99996, 0.99996], "is 0.99999 before training and 0.99996 at the kept epoch"),
        ([0.99996, 0.99996, 0.99999], "still rising: from 0.99996 to 0.99999 in the last 1 epoch"),
    ],
)
def test_the_scores_in_a_warning_differ(scores, message):
    run = Run(lambda outputs, _: float(outputs.mean()), rng=np.random.RandomState(0))
    for number, score in enumerate(scores):
        figures = run.consider(number, 0.0, True, np.full((N, 1), score), dict)
        run.history.append({"epoch": number, **figures})
    (warning,) = run.warnings(2)
    assert message in str(warning)


@pytest.mark.parametrize("weighted", [False, True])
def test_accuracy_of_each_sample_is_that_of_scikit_learn(weighted):
    score, outputs, y, weights = accuracy_of_random_rows(30, weighted)
    for index in np.random.default_rng(1).integers(30, size=(20, 30)):
        expected = accuracy_score(
            y[index],
            outputs[index].argmax(1),
            sample_weight=None if weights is None else weights[index],
        )
        assert score(outputs[index], index) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_standard_error_of_an_accuracy_is_that_of_a_bootstrap(weighted):
    score, outputs, _, _ = accuracy_of_random_rows(400, weighted)
    samples = np.random.default_rng(1).integers(400, size=(4000, 400))
    drawn = np.std([score(outputs[index], index) for index in samples])
    # The standard deviation of 4,000 draws has a relative standard error of 1.1 %.
    assert score.standard_error(outputs) == pytest.approx(drawn, rel=0.04)


def test_accuracy_by_name_is_the_default_of_a_classifier():
    head = LinearHead(np.eye(2), np.zeros(2), classes=["a", "b"])
    y = np.array(["a", "b", "b"])
    for scoring in (None, "accuracy"):
        assert isinstance(make_score(head, y, scoring), Accuracy)


def accuracy_of_random_rows(n, weighted):
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(n, 3)).astype(np.float32), rng.integers(3, size=n)
    weights = rng.integers(1, 4, size=n).astype(float) if weighted else None
    head = LinearHead(np.eye(3), np.zeros(3), classes=[0, 1, 2])
    return make_score(head, y, weights=weights), outputs, y, weights


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_r2_of_each_sample_is_that_of_scikit_learn(n_outputs, weighted):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(30, n_outputs)) * [1e3] + 1e4
    y[2:, 0] = 7.0  # constant in some samples
    outputs = (y + rng.normal(size=y.shape)).astype(np.float32)
    outputs[:, 0] = 7.0
    weights = rng.integers(1, 4, size=30).astype(float) if weighted else None
    score = make_score(LinearHead(np.eye(n_outputs), np.zeros(n_outputs)), y, weights=weights)
    samples = [np.arange(30), np.arange(2, 30), *rng.integers(30, size=(200, 30))]
    found = [score(outputs[index], index) for index in samples]
    expected = [
        r2_score(
            y[index], outputs[index], sample_weight=None if weights is None else weights[index]
        )
        for index in samples
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_r2_of_outputs_that_overflow_is_refused():
    score = make_score(LinearHead(np.eye(1), np.zeros(1)), np.arange(4.0)[:, None])
    with pytest.raises(ValueError, match="outputs of the head contain NaN or infinity"):
        score(np.array([[0.0], [1.0], [np.inf], [3.0]]), np.arange(4))


class TestWarnings:
    def test_lower_score_than_at_the_start(self):
        (warning,) = run_epochs([0.8, 0.6, 0.7]).warnings(max_epochs=2)
        assert isinstance(warning, UserWarning)
        for part in (
            "0.8 before",
            "0.7 at the kept epoch (2)",
            "LogitPreservingWhitening",
            "ridge",
        ):
            assert part in str(warning)

    def test_score_that_still_rises_at_max_epochs(self):
        rising = run_epochs([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
        (warning,) = rising.warnings(max_epochs=6)
        assert isinstance(warning, ConvergenceWarning)
        assert "max_epochs=6" in str(warning)
        assert "from 0.7 to 0.9 in the last 2 epoch(s)" in str(warning)

    @pytest.mark.parametrize(
        "shares", [[0.8, 0.8, 0.8, 0.8], [0.3, 0.9, 0.9, 0.9], [0.3, 0.5, 0.9, 0.5]]
    )
    def test_no_warning_if_the_score_has_settled(self, shares):
        assert run_epochs(shares).warnings(max_epochs=3) == []

    def test_no_warning_without_validation_rows(self):
        assert Run().warnings(max_epochs=3) == []


def few_rows(n, d=60, seed=0):
    """Rows with the class in one direction of large variance, and noise in the others."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    X = 0.3 * rng.normal(size=(n, d))
    X[:, 0] = 10 * (y - 0.5) + 4 * rng.normal(size=n)
    return X, y


@pytest.mark.parametrize("adapter", [IsotropyLayer, IStarAdapter])
def test_accuracy_on_few_rows_is_kept_with_the_default_ridge_only(adapter):
    losses = {"auto": [], 0.0: []}
    for seed in range(3):
        X, y = few_rows(1100, seed=seed)
        for ridge, lost in losses.items():
            fitted = adapter(ridge=ridge, validation_fraction=None, random_state=0).fit(
                X[:90], y[:90]
            )
            lost.append(fitted.head_.score(X[90:], y[90:]) - fitted.score(X[90:], y[90:]))
    assert max(losses["auto"]) < 0.01 < np.mean(losses[0.0])


@pytest.mark.parametrize("solver", ["minibatch", "exact"])
def test_ridge_keeps_the_score_of_a_regression_on_few_rows(solver):
    X, y = make_regression(1000, 60, n_informative=10, noise=50.0, random_state=0)
    fitted = IsotropyLayer("ridge", solver=solver, random_state=0).fit(X[:90], y[:90])
    start = fitted.head_.score(X[90:], y[90:])
    assert fitted.score(X[90:], y[90:]) > start - 0.02


@pytest.fixture(scope="module")
def head_on_many_rows():
    """Rows, labels, and a head fitted to all of these rows."""
    X, y = few_rows(5000, d=200)
    scale = X.std(axis=0)
    model = LogisticRegression().fit(X / scale, y)
    model.coef_ /= scale
    return X, y, LinearHead.from_estimator(model)


@pytest.mark.parametrize("max_epochs", [1, 3, 30])
def test_accuracy_is_kept_with_few_rows_and_few_epochs(max_epochs):
    """The second fit trains on all rows, so no validation rows check it."""
    losses = []
    for seed in range(4):
        X, y = few_rows(1120, seed=seed)
        layer = IsotropyLayer(max_epochs=max_epochs, random_state=seed).fit(X[:120], y[:120])
        probe = fit_head("logistic", X[:120], y[:120])
        losses.append(probe.score(X[120:], y[120:]) - layer.score(X[120:], y[120:]))
    assert np.mean(losses) < 0.01


def test_rounding_differences_of_scores_are_ignored():
    """Outputs are computed in float32, so 1 - R² of a perfect fit is a rounding error."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = IsotropyLayer(LinearRegression(), random_state=0).fit(X, X @ rng.normal(size=6))
    assert layer.score(X, layer.predict(X)) > 0.999


def test_fit_without_ridge_warns_and_default_fit_does_not(head_on_many_rows):
    X, y, head = head_on_many_rows
    with pytest.warns(UserWarning, match="this fit harms the task"):
        IsotropyLayer(head, ridge=0.0, random_state=0).fit(X[:300], y[:300])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer = IsotropyLayer(head, random_state=0).fit(X[:300], y[:300])
    assert layer.score(X[300:], y[300:]) > head.score(X[300:], y[300:]) - 0.01


def test_fit_with_too_few_epochs_gives_a_convergence_warning(head_on_many_rows):
    X, y, head = head_on_many_rows
    wrong = LinearHead(-head.coef_, -head.intercept_, [0, 1])
    options = {"lr_schedule": "constant", "max_epochs": 6, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="max_epochs=6 while the validation score was"):
        IsotropyLayer(wrong, lr=3e-3, **options).fit(X[:2000], y[:2000])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IsotropyLayer(wrong, lr=1e-2, **options).fit(X[:2000], y[:2000])


def head_of_few_steps(n, steps, d=64, seed=0):
    """Rows, and a head after few steps of gradient descent on the 1,000 rows after the first n."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n + 2000)
    X = rng.normal(size=(n + 2000, d)) * 2 * np.arange(1, d + 1) ** -0.5
    X[:, 3:9] += 0.5 * (2 * y - 1)[:, None]
    X = X @ np.linalg.qr(rng.normal(size=(d, d)))[0] + 3
    rows, labels, coef, intercept = X[n : n + 1000], y[n : n + 1000], 0.02 * rng.normal(size=d), 0.0
    for _ in range(steps):
        residuals = expit(rows @ coef + intercept) - labels
        coef, intercept = coef - 0.05 * residuals @ rows / 1000, intercept - 0.05 * residuals.mean()
    return X, y, LinearHead([-coef / 2, coef / 2], [-intercept / 2, intercept / 2], [0, 1])


class TestAutomaticRidge:
    def test_regression_ridge_is_that_of_the_share_of_signal(self):
        """With many rows 1/F of the explained variance is noise, for F of the regression."""
        rng = np.random.default_rng(0)
        X = rng.normal(size=(2000, 20)) * np.geomspace(9, 0.1, 20) + 3
        outputs = rng.normal(size=(2000, 1))
        for size in (0.03, 0.05, 0.1):
            signal = size * (X[:, :1] - 3)
            targets = outputs + signal + rng.normal(size=(2000, 1))
            explained = signal.var() * 2000 / 21  # over its expectation without signal
            ridge = automatic_ridge(X, targets, outputs)
            assert 0.4 / explained < ridge < 5 / explained

    @pytest.mark.parametrize("n", [50, 80])
    def test_a_head_that_underfits_may_change_with_fewer_rows_than_dimensions(self, n):
        rng = np.random.default_rng(0)
        y = rng.integers(2, size=n + 500)
        X = rng.normal(size=(n + 500, 64))
        X[:, 5] += 6 * (y - 0.5)
        head = LinearHead(0.1 * np.eye(2, 64), [0.0, 0.0], [0, 1])
        layer = IsotropyLayer(head, solver="exact").fit(X[:n], y[:n])
        assert layer.ridge_ < 1
        assert layer.score(X[n:], y[n:]) > 0.85 > 0.6 > head.score(X[n:], y[n:])

    @pytest.mark.parametrize("alpha", [0.5, 1.0])
    def test_minibatches_may_change_a_head_of_few_steps_with_few_rows(self, alpha):
        """At ten times the default rate, which changes little here, whatever the ridge."""
        X, y, head = head_of_few_steps(64, steps=100)
        options = {"alpha": alpha, "lr": 1e-2, "random_state": 0}
        free, held = (
            IsotropyLayer(head, ridge=ridge, **options).fit(X[:64], y[:64])
            for ridge in ("auto", 24.75)
        )
        scores = [each.score(X[1064:], y[1064:]) for each in (head, held, free)]
        assert free.ridge_ < 1
        assert scores[1] < scores[0] + 0.02 < scores[0] + 0.06 < scores[2]

    @pytest.mark.parametrize(
        "n", [32, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 128))]
    )
    @pytest.mark.parametrize("size", [np.ones_like, np.exp], ids=["equal", "unequal"])
    def test_noise_is_taken_for_signal_in_at_most_eight_percent(self, size, n):
        found = []
        for seed in range(200):
            rng = np.random.default_rng(seed)
            X = rng.normal(size=(n, 64))
            noise = (rng.normal(size=n) * size(X[:, 0]))[:, None]
            noise /= noise.std()
            found.append(automatic_ridge(X, noise, 0 * noise) < 98)
        assert np.mean(found) <= 0.08

    def test_copies_that_share_a_group_are_no_signal(self):
        rng = np.random.default_rng(0)
        X, noise = rng.normal(size=(30, 40)).repeat(6, axis=0), rng.normal(size=(30, 1))
        X, noise = X + 1e-3 * rng.normal(size=X.shape), noise.repeat(6, axis=0)
        found = [
            automatic_ridge(X, noise, 0 * noise, groups=groups)
            for groups in (None, np.arange(30).repeat(6))
        ]
        assert found[0] < 1 < 98 < found[1]

    def test_weights_of_all_rows_have_hardly_any_effect(self):
        """Repeated rows do not add evidence."""
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(60, 4)), rng.integers(3, size=60)
        layer = IsotropyLayer(LinearHead(rng.normal(size=(3, 4)), np.zeros(3), range(3)))
        layer.set_params(solver="exact").fit(X, y)
        once, thrice = layer.ridge_, layer.fit(X, y, sample_weight=np.full(60, 3.0)).ridge_
        assert 1 / 4 < thrice / once < 4  # weighted rows are in another order, so in other folds
        assert 0 < once < 24

    def test_repeated_row_among_few_has_no_effect(self):
        """With one degree of freedom too many, the residuals would be fitted exactly."""
        X, y = few_rows(50)
        layer = IsotropyLayer(solver="exact").fit(X, y)
        again = IsotropyLayer(solver="exact").fit(np.vstack([X, X[:1]]), np.append(y, y[0]))
        assert again.ridge_ == layer.ridge_

    def test_ridge_is_largest_for_a_head_that_was_fitted_to_the_rows(self):
        X, y = few_rows(50)
        layer = IsotropyLayer(solver="exact").fit(X, y)
        assert layer.ridge_ == pytest.approx(0.99 / 0.04)

    def test_ridge_is_small_for_a_head_that_contradicts_the_rows(self, head_on_many_rows):
        X, y, head = head_on_many_rows
        wrong = LinearHead(-head.coef_, -head.intercept_, [0, 1])
        fits = {h: IsotropyLayer(h, solver="exact").fit(X[:2000], y[:2000]) for h in (head, wrong)}
        assert fits[wrong].ridge_ < 0.5 < fits[head].ridge_
        assert fits[wrong].score(X[2000:], y[2000:]) > 0.7

    def test_ridge_is_zero_without_a_head(self):
        X, _ = few_rows(50)
        assert IsotropyLayer(None, max_epochs=1).fit(X).ridge_ == 0

    @pytest.mark.parametrize("coordinates", ["raw", "whitened"])
    @pytest.mark.parametrize("network", ["linear", "mlp"])
    @pytest.mark.parametrize("kind", ["logistic", "ridge"])
    def test_ridge_is_the_mean_squared_change_of_the_outputs(self, kind, network, coordinates):
        """The tolerance covers the shrinkage of the covariance under a linear network."""
        rng = np.random.default_rng(0)
        X = (rng.normal(size=(20_000, 4)) * [5, 2, 1, 0.5] + 1).astype(np.float32)
        y = X @ rng.normal(size=(4, 2)) if kind == "ridge" else rng.integers(3, size=20_000)
        adapter = IsotropyLayer(
            kind, network=network, coordinates=coordinates, ridge=2.0, validation_fraction=None
        )
        problem = prepare_problem(adapter, X, y)
        member = make_member(adapter, problem)
        net = _make_net([member], [torch.Generator()], torch.device("cpu")).initialize()
        points = torch.from_numpy(problem.inputs()).float()
        with torch.no_grad():
            before = net.module_(points).outputs
            for parameter in net.module_.network.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
            after = net.module_(points)
            penalty = net.ridge(after, points)
        change = after.outputs - before
        if kind == "logistic":
            change = change - change.mean(-1, keepdim=True)
            expected = 2 * change.square().sum(-1).mean(-1)
        else:
            expected = 2 * change.square().mean((-2, -1))
        torch.testing.assert_close(penalty, expected, rtol=1e-2, atol=1e-6)

"""IsotropyLayer with both solvers."""

import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime
from sklearn.datasets import make_regression
from sklearn.metrics import log_loss

from isoadapt import IsotropyLayer, LinearHead
from isoadapt.adapters import Affine
from isoadapt.adapters._rows import split_rows
from isoadapt.adapters._training._exact import _Objective
from isoadapt.adapters._training._networks import LinearNetwork, MLPNetwork
from isoadapt.geometry._isoscore import isoscore_from_covariance
from isoadapt.losses import IsoScoreLoss, JointLoss
from isoadapt.metrics import isoscore
from tests.adapters.examples import cone_with_head


@pytest.fixture(scope="module")
def cone():
    return cone_with_head(1200)


def generator_of_the_split(seed):
    """The generator of a fit in its state before the rows are split."""
    rng = np.random.RandomState(seed)
    rng.randint(2**31)
    return rng


def distance_from(head, X):
    """Minus the distance of the outputs from those of `head` on the rows X, as a metric."""
    starts = head.outputs(X)

    def scoring(reader, outputs, y):
        return -float(np.abs(outputs[:, None] - starts[None]).sum(2).min(1).mean())

    return scoring


class TestMiniBatch:
    def test_isoscore_rises_with_the_penalty_only_and_the_task_is_kept(self, cone):
        X, y, head = cone
        rows, labels, new = X[:600], y[:600], X[600:]
        layer = IsotropyLayer(head=head, random_state=0).fit(rows, labels)
        assert isoscore(layer.transform(new)) > 4 * isoscore(new)
        assert layer.score(new, y[600:]) > head.score(new, y[600:]) - 0.02
        control = IsotropyLayer(head=head, alpha=1.0, random_state=0).fit(rows, labels)
        losses = [log_loss(labels, each.predict_proba(rows)) for each in (control, head)]
        assert losses[0] < losses[1]
        assert isoscore(control.transform(rows)) < isoscore(layer.transform(rows)) / 3

    def test_training_without_a_head_whitens(self, cone):
        X, _, _ = cone
        layer = IsotropyLayer(head=None, random_state=0, lr=3e-3, max_epochs=60).fit(X)
        assert layer.score(X) > 0.7 > 0.3 > isoscore(X)
        assert not hasattr(layer, "predict")

    def test_history_and_best_epoch(self, cone):
        X, y, head = cone
        layer = IsotropyLayer(head=head, max_epochs=6, random_state=0).fit(X, y)
        assert [row["epoch"] for row in layer.history_] == [0, 1, 2, 3, 4, 5, 6]
        assert layer.n_iter_ == 6
        assert "train_loss" not in layer.history_[0]
        assert layer.history_[-1]["train_loss"] < layer.history_[1]["train_loss"]
        best = max(row["valid_score"] for row in layer.history_)
        error = np.sqrt(best * (1 - best) / 360)
        surely = [r["epoch"] for r in layer.history_ if r["valid_score"] >= best - 0.7 * error]
        perhaps = [r["epoch"] for r in layer.history_ if r["valid_score"] >= best - 1.3 * error]
        assert surely[-1] <= layer.best_epoch_
        assert layer.best_epoch_ in perhaps

    def test_epoch_0_scores_the_head_on_the_embeddings(self, cone):
        X, y, head = cone
        layer = IsotropyLayer(head, scoring="neg_log_loss", max_epochs=1, random_state=0)
        _, validating = split_rows(len(X), y, 0.3, generator_of_the_split(0))
        expected = -log_loss(y[validating], head.predict_proba(X[validating]))
        start = layer.fit(X, y).history_[0]["valid_score"]
        assert start == pytest.approx(expected, rel=1e-5)

    def test_patience_stops_training(self, cone):
        X, y, head = cone
        X, y = X[:600], y[:600]
        layer = IsotropyLayer(head, scoring=distance_from(head, X), patience=2, random_state=0)
        with pytest.warns(UserWarning, match="harms the task"):
            layer.fit(X, y)
        assert layer.n_iter_ == layer.best_epoch_ + 2 < 30

    def test_last_epoch_is_kept_without_validation(self, cone):
        X, y, head = cone
        for fraction in (None, 0.0):
            options = {"validation_fraction": fraction, "max_epochs": 3, "random_state": 0}
            layer = IsotropyLayer(head, **options).fit(X, y)
            assert layer.best_epoch_ == layer.n_iter_ == 3
            assert "valid_score" not in layer.history_[0]

    @pytest.mark.parametrize("scoring", ["matthews_corrcoef", "neg_log_loss", "roc_auc"])
    def test_scoring_is_the_validation_metric(self, cone, scoring):
        X, y, head = cone
        layer = IsotropyLayer(head=head, scoring=scoring, max_epochs=1, random_state=0)
        layer.fit(X[:200], y[:200])
        scores = [row["valid_score"] for row in layer.history_]
        assert all((score < 0) == (scoring == "neg_log_loss") for score in scores)

    @pytest.mark.parametrize("head_training", ["joint", "alternating"])
    @pytest.mark.parametrize("coordinates", ["whitened", "raw"])
    def test_trained_head_changes_and_applies_to_adapted_embeddings(
        self, cone, head_training, coordinates
    ):
        X, y, head = cone
        options = {"head_training": head_training, "coordinates": coordinates}
        layer = IsotropyLayer(head, max_epochs=4, random_state=0, **options).fit(X, y)
        assert np.abs(layer.head_.coef_ - head.coef_).max() > 1e-4
        np.testing.assert_allclose(
            layer.predict_proba(X), layer.head_.predict_proba(layer.transform(X))
        )
        assert layer.score(X, y) > 0.8

    def test_alternating_trains_one_part_per_epoch(self, cone):
        X, y, head = cone
        options = {"head_training": "alternating", "max_epochs": 1, "random_state": 0}
        layer = IsotropyLayer(head, **options).fit(X, y)
        np.testing.assert_allclose(layer.head_.coef_, head.coef_, atol=1e-6)

    def test_regression(self):
        X, y = make_regression(400, 8, n_informative=8, noise=5.0, random_state=0)
        y /= y.std()
        X[:, 0] *= 30
        layer = IsotropyLayer(head="ridge", lr=0.03, random_state=0).fit(X, y)
        assert layer.score(X, y) > 0.9
        assert isoscore(layer.transform(X)) > 5 * isoscore(X)

    # The head fits these rows without error, and no fit can be as good as that.
    @pytest.mark.filterwarnings("ignore:this fit harms the task")
    def test_regression_with_several_outputs(self):
        X, y = make_regression(300, 8, n_informative=8, n_targets=3, random_state=0)
        y /= y.std()
        for solver in ("minibatch", "exact"):
            layer = IsotropyLayer(head="ridge", solver=solver, random_state=0).fit(X, y)
            assert layer.predict(X).shape == (300, 3)
            assert layer.score(X, y) > 0.9
        with pytest.raises(ValueError, match=r"y has 1 column\(s\), but the head has 3"):
            IsotropyLayer(head=layer.head_).fit(X, y[:, 0])

    # The metric warns of each bootstrap sample that has one class only, and that is left out.
    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
    def test_metrics_undefined_on_some_samples(self, cone):
        X, _, _ = cone
        y = np.zeros(len(X), dtype=int)
        y[:6] = 1  # two are validation rows, so some bootstrap samples lack the class
        layer = IsotropyLayer(scoring="roc_auc", max_epochs=2, random_state=0).fit(X, y)
        assert layer.best_epoch_ in (1, 2)
        with pytest.raises(ValueError, match="scoring returned nan on the"):
            IsotropyLayer(scoring=lambda *rows: np.nan, max_epochs=1).fit(X, y)

    def test_batches_too_small_for_the_bias_correction_are_refused(self, cone):
        X, y, head = cone
        with pytest.raises(ValueError, match=r"batch_size=3 is too small: .* batches of 4 rows"):
            IsotropyLayer(head, batch_size=3).fit(X, y)
        with pytest.raises(ValueError, match=r"batch_size=2 is too small: .* batches of 3 rows"):
            IsotropyLayer(head, batch_size=2, bias_corrected=False).fit(X, y)
        options = {"bias_corrected": False, "validation_fraction": None, "max_epochs": 1}
        IsotropyLayer(head, batch_size=3, **options).fit(X[:51], y[:51])

    @pytest.mark.filterwarnings("ignore:training ended at max_epochs")
    def test_second_fit_does_not_depend_on_the_first(self, cone):
        X, y, head = cone
        layer = IsotropyLayer(head, max_epochs=1).fit(X, y).set_params(solver="exact", head=None)
        layer.fit(X)
        assert not hasattr(layer, "best_epoch_")
        assert not hasattr(layer, "classes_")

    def test_missing_device_is_an_error(self, cone):
        X, y, head = cone
        with pytest.raises(ValueError, match="device='nowhere' cannot be used"):
            IsotropyLayer(head=head, device="nowhere").fit(X, y)

    def test_members_have_the_gradients_of_single_fits(self):
        """The losses of the members are summed, so their gradients are independent."""
        generator = torch.Generator().manual_seed(0)
        X = torch.randn(32, 5, generator=generator)
        start = Affine(np.eye(5), np.zeros(5))
        dead = [np.zeros(5, dtype=bool)] * 3
        hidden = MLPNetwork([start] * 3, [generator] * 3, dead)
        for together in (LinearNetwork([start] * 3), hidden):
            with torch.no_grad():
                together.weight += 0.1 * torch.randn(3, 5, 5, generator=generator)
            losses = IsoScoreLoss()(together(X))
            JointLoss(torch.tensor([1.0, 2.0, 3.0]))(losses, losses).sum().backward()
            for member in range(3):
                weight = together.weight.detach()[member : member + 1].clone().requires_grad_()
                points = X @ weight.mT
                loss = IsoScoreLoss()(points)
                JointLoss(float(member + 1))(loss, loss).sum().backward()
                torch.testing.assert_close(together.weight.grad[member], weight.grad[0])


class TestExact:
    def test_gradient(self):
        rng = np.random.default_rng(0)
        points = rng.normal(size=(50, 6))
        for targets in (rng.integers(0, 3, 50), rng.normal(size=(50, 3))):
            sizes = (3, 2), 3, (2, 7)  # of the weights, the intercepts and the start
            arrays = [rng.normal(size=size) for size in sizes]
            problem = _Objective(points, targets, *arrays, np.cov(points.T), weight=5.0, ridge=0.3)
            at = rng.normal(size=14)
            numeric = approx_fprime(at, lambda flat, p=problem: p(flat)[0], 1e-7)
            np.testing.assert_allclose(problem(at)[1], numeric, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
    def test_without_a_head_it_whitens_and_keeps_the_mean_and_the_total_variance(self, scale):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(6000, 5)) * np.arange(1, 6) + 3
        Z = IsotropyLayer(head=None, solver="exact").fit_transform(scale * X) / scale
        np.testing.assert_allclose(Z.mean(0), X.mean(0), atol=1e-9)
        assert Z.var(0).sum() == pytest.approx(X.var(0).sum(), rel=1e-9)
        assert isoscore(Z) > 0.99 > isoscore(X)

    def test_penalty_is_one_minus_the_best_isoscore(self):
        rng = np.random.default_rng(0)
        points = rng.normal(size=(50, 6))
        linear, variances = rng.normal(size=(2, 7)), np.cov(points.T)
        coef, intercept = rng.normal(size=(3, 2)), rng.normal(size=3)
        targets = rng.integers(0, 3, 50)
        start = np.zeros((2, 7))
        with_penalty, without = (
            _Objective(points, targets, coef, intercept, start, variances, weight, ridge=0.3)
            for weight in (5.0, 0.0)
        )
        inside = linear[:, :-1] @ variances @ linear[:, :-1].T
        best = (inside**2).sum() / inside.trace()
        score = isoscore_from_covariance(torch.from_numpy(block_diag(inside, best * np.eye(4))))
        penalty = with_penalty(linear.ravel())[0] - without(linear.ravel())[0]
        assert penalty == pytest.approx(5.0 * (1 - score.item()))

    def test_loss_falls_isoscore_is_high_and_the_row_space_is_uncorrelated(self, cone):
        X, y, head = cone
        layer = IsotropyLayer(head=head, solver="exact").fit(X, y)
        cov = np.cov(np.linalg.svd(head.coef_)[2] @ layer.transform(X).T)
        np.testing.assert_allclose(cov[0, 1:], 0, atol=1e-9)
        assert layer.n_iter_ >= 1
        losses = [row["loss"] for row in layer.history_]
        assert losses[-1] < losses[0]
        assert all(late <= early + 1e-9 for early, late in pairwise(losses))
        assert isoscore(layer.transform(X)) > 0.8

    def test_larger_ridge_gives_smaller_changes_of_the_outputs(self, cone):
        X, y, head = cone
        changes = []
        for ridge in (1e-3, 1e-1, 1e3):
            layer = IsotropyLayer(head=head, solver="exact", ridge=ridge).fit(X, y)
            outputs = head.outputs(layer.transform(X))
            changes.append(np.abs(outputs - head.outputs(X)).mean())
        assert changes[0] > changes[1] > changes[2]
        assert changes[2] < 1e-3

    @pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.5, 0.99])
    def test_isoscore_is_high_for_any_alpha(self, cone, alpha):
        X, y, head = cone
        layer = IsotropyLayer(head=head, solver="exact", alpha=alpha).fit(X, y)
        assert isoscore(layer.transform(X)) > 0.8
        assert np.abs(layer.transform(X)).max() < 1e3

    def test_directions_outside_the_row_space_are_kept_without_penalty(self, cone):
        X, y, head = cone
        layer = IsotropyLayer(head=head, solver="exact", alpha=1.0).fit(X, y)
        outside = np.linalg.svd(head.coef_)[2][1:]
        np.testing.assert_allclose(layer.transform(X) @ outside.T, X @ outside.T, atol=1e-8)

    def test_map_is_bounded_for_separable_rows(self):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(300, 60))
        y = (X[:, 0] > 0).astype(int)
        head = LinearHead(np.eye(2, 60), [0.0, 0.0], [0, 1])
        layer = IsotropyLayer(head=head, solver="exact").fit(X, y)
        assert np.linalg.norm(head.coef_ @ layer.to_affine()[0]) < 100

    @pytest.mark.parametrize(
        ("name", "value"),
        [("network", "mlp"), ("head_training", "joint"), ("head_training", "alternating")],
    )
    def test_parameters_without_exact_solution_are_refused(self, cone, name, value):
        X, y, head = cone
        with pytest.raises(ValueError, match=f"{name}='{value}' has no exact solution"):
            IsotropyLayer(head=head, solver="exact", **{name: value}).fit(X, y)


def test_head_training_needs_a_head():
    with pytest.raises(ValueError, match="head_training='joint' needs a head"):
        IsotropyLayer(head=None, head_training="joint").fit(
            np.random.default_rng(0).normal(size=(9, 3))
        )


def test_concurrent_fits_equal_single_fits(cone):
    X, y, head = cone
    alone = IsotropyLayer(head=head, max_epochs=2, random_state=0).fit(X, y).transform(X)
    found = {}

    def work(name):
        layer = IsotropyLayer(head=head, max_epochs=2, random_state=0)
        found[name] = layer.fit(X, y).transform(X)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for result in found.values():
        np.testing.assert_array_equal(result, alone)

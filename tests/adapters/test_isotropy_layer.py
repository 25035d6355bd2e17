"""IsotropyLayer with both solvers."""

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime
from sklearn.metrics import log_loss

from isoadapt import IsotropyLayer
from isoadapt.adapters._engine._exact import _Objective
from isoadapt.geometry._isoscore import isoscore_from_covariance
from isoadapt.metrics import isoscore
from tests.adapters.examples import cone_with_head, mean_log

ONE = {"max_epochs": 1, "random_state": 0}


@pytest.fixture(scope="module")
def cone():
    return cone_with_head(1200)


@pytest.fixture(scope="module")
def rows(cone):
    X, y, head = cone
    return X[:200], y[:200], head


class TestMiniBatch:
    def test_isoscore_rises_with_the_penalty_only_and_the_task_is_kept(self, cone):
        X, y, head = cone
        rows, labels, new = X[:300], y[:300], X[600:]
        layer = IsotropyLayer(head=head, random_state=0).fit(rows, labels)
        assert isoscore(layer.transform(new)) > 4 * isoscore(new)
        assert layer.score(new, y[600:]) > head.score(new, y[600:]) - 0.02
        control = IsotropyLayer(head=head, alpha=1.0, random_state=0).fit(rows, labels)
        losses = [log_loss(labels, each.predict_proba(rows)) for each in (control, head)]
        assert losses[0] < losses[1]
        assert isoscore(control.transform(rows)) < isoscore(layer.transform(rows)) / 3

    def test_a_smaller_alpha_gives_the_penalty_its_share_of_the_loss(self, rows):
        X, y, head = rows
        options = {"balance": None, "lr": 1e-12, "ridge": 0.0, "validation_fraction": None, **ONE}
        halves, tenth = (
            IsotropyLayer(head, alpha=alpha, **options).fit(X, y).history_[0]["train_loss"]
            for alpha in (0.5, 0.1)
        )
        task = log_loss(y, head.predict_proba(X))
        assert tenth == pytest.approx(task + 9 * (halves - task), rel=1e-5)

    @pytest.mark.parametrize(
        ("head_training", "coordinates"),
        [("frozen", "whitened"), ("joint", "raw"), ("alternating", "whitened")],
    )
    def test_map_and_head_score_as_the_network_did_in_validation(
        self, rows, head_training, coordinates
    ):
        X, y, head = rows
        options = {"coordinates": coordinates, "lr": 0.01, "max_epochs": 2}
        options |= {"head_training": head_training, "scoring": mean_log, "random_state": 0}
        layer = IsotropyLayer(head, **options)
        held = layer._prepare(X, y).validating
        layer.fit(X, y)
        change = np.abs(layer.head_.coef_ - head.coef_).max()
        assert change == 0 if head_training == "frozen" else change > 1e-4
        kept = layer.history_[layer.best_epoch_]["valid_score"]
        assert mean_log(layer, X[held], y[held]) == pytest.approx(kept, rel=1e-4)

    def test_first_epoch_of_alternating_is_that_of_a_frozen_head_at_the_full_rate(self, rows):
        X, y, head = rows
        alternating, frozen, joint = (
            IsotropyLayer(head, head_training=each, lr=0.01, lr_schedule=schedule, **ONE).fit(X, y)
            for each, schedule in (
                ("alternating", "linear"),
                ("frozen", "constant"),
                ("joint", "constant"),
            )
        )
        np.testing.assert_allclose(alternating.head_.coef_, head.coef_, atol=1e-6)
        np.testing.assert_allclose(alternating.transform(X), frozen.transform(X), rtol=1e-6)
        assert not np.allclose(joint.transform(X), frozen.transform(X), rtol=1e-4)

    def test_automatic_rate_is_ten_times_as_large_outside_the_row_space_of_the_head(self, rows):
        X, y, head = rows
        options = {"batch_size": 200, "validation_fraction": None, **ONE}
        automatic, small, large = (
            IsotropyLayer(head, lr=lr, **options).fit(X, y).map_.matrix
            for lr in ("auto", 1e-3, 1e-2)
        )
        basis = np.linalg.svd(head.coef_)[2]  # the first vector spans the row space
        np.testing.assert_allclose(basis[:1] @ automatic, basis[:1] @ small, atol=1e-5)
        np.testing.assert_allclose(basis[1:] @ automatic, basis[1:] @ large, atol=1e-5)
        assert np.abs(basis @ (large - small)).min(axis=1).max() > 1e-4


class TestExact:
    def test_gradient_and_ridge(self):
        """The points have mean 0 and covariance I, for which the ridge is written."""
        rng = np.random.default_rng(0)
        points = np.concatenate([np.eye(6), -np.eye(6)]) * 6**0.5
        coef, intercept, start = (rng.normal(size=size) for size in ((3, 2), 3, (2, 7)))
        at = rng.normal(size=(2, 7))
        change = (points @ (at - start)[:, :-1].T + (at - start)[:, -1]) @ coef.T
        centred = change - change.mean(axis=1, keepdims=True)
        for targets, squares in (
            (rng.integers(0, 3, 12), (centred**2).sum(axis=1)),
            (rng.normal(size=(12, 3)), (change**2).mean(axis=1)),
        ):
            arrays = points, targets, coef, intercept, start, np.cov(points.T)
            parts = *map(torch.tensor, arrays), 5.0
            objective = _Objective(*parts, ridge=0.3)
            numeric = approx_fprime(at.ravel(), lambda flat, p=objective: p(flat)[0], 1e-7)
            np.testing.assert_allclose(objective(at)[1], numeric, rtol=1e-4, atol=1e-5)
            ridge = objective(at)[0] - _Objective(*parts, ridge=0.0)(at)[0]
            assert ridge == pytest.approx(0.3 * squares.mean())

    def test_penalty_is_one_minus_the_best_isoscore(self):
        rng = np.random.default_rng(0)
        points, linear = rng.normal(size=(50, 6)), rng.normal(size=(2, 7))
        head, cov = (rng.normal(size=(3, 2)), rng.normal(size=3)), np.cov(points.T)
        arrays = points, rng.integers(0, 3, 50), *head, np.zeros((2, 7)), cov
        parts = [*map(torch.tensor, arrays)]
        losses = [_Objective(*parts, weight, ridge=0.3)(linear)[0] for weight in (5.0, 0.0)]
        inside = linear[:, :-1] @ cov @ linear[:, :-1].T
        best = (inside**2).sum() / inside.trace()
        score = isoscore_from_covariance(torch.from_numpy(block_diag(inside, best * np.eye(4))))
        assert losses[0] - losses[1] == pytest.approx(5.0 * (1 - score.item()))

    @pytest.mark.parametrize("scale", [1e-100, 1.0])
    def test_without_a_head_it_whitens_and_keeps_the_mean_and_the_total_variance(self, scale):
        X = np.random.default_rng(0).normal(size=(6000, 5)) * np.arange(1, 6) + 3
        layer = IsotropyLayer(head=None, solver="exact").fit(scale * X)
        Z = layer.transform(scale * X) / scale
        np.testing.assert_allclose(Z.mean(0), X.mean(0), atol=1e-9)
        assert Z.var(0).sum() == pytest.approx(X.var(0).sum(), rel=1e-9)
        assert isoscore(Z) > 0.99 > isoscore(X)
        assert layer.score(scale * X) == pytest.approx(isoscore(Z))
        assert not hasattr(layer, "predict")

    def test_parameters_of_batches_may_be_none(self, cone):
        X, y, head = cone
        options = {"validation_fraction": None, "patience": None, "balance": None}
        fitted, same = (
            IsotropyLayer(head, solver="exact", **each).fit(X, y) for each in (options, {})
        )
        np.testing.assert_array_equal(fitted.map_.matrix, same.map_.matrix)

    @pytest.mark.parametrize("alpha", [1e-6, 0.5, 0.99])
    def test_loss_falls_isoscore_is_high_and_the_row_space_is_uncorrelated(self, cone, alpha):
        X, y, head = cone
        layer = IsotropyLayer(head=head, solver="exact", alpha=alpha).fit(X, y)
        Z = layer.transform(X)
        cov = np.cov(np.linalg.svd(head.coef_)[2] @ Z.T)
        np.testing.assert_allclose(cov[0, 1:], 0, atol=1e-9)
        assert layer.history_[-1]["loss"] < layer.history_[0]["loss"]
        assert isoscore(Z) > 0.8
        assert np.abs(Z).max() < 1e3

    def test_directions_outside_the_row_space_are_kept_without_penalty(self, rows):
        X, y, head = rows
        layer = IsotropyLayer(head=head, solver="exact", alpha=1.0).fit(X, y)
        outside = np.linalg.svd(head.coef_)[2][1:]
        np.testing.assert_allclose(layer.transform(X) @ outside.T, X @ outside.T, atol=1e-8)

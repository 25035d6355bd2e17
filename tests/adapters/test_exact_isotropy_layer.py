"""ExactIsotropyLayer: the loss that it minimises, and the map outside the row space of the head."""

import numpy as np
import pytest
import torch
from scipy.linalg import block_diag
from scipy.optimize import approx_fprime
from sklearn.metrics import log_loss

from isoadapt import ExactIsotropyLayer, LinearHead
from isoadapt.adapters._engine._exact import _Objective
from isoadapt.metrics import isoscore
from isoadapt.metrics._points import score_of
from tests.adapters.examples import cone_with_head

X, Y, HEAD = cone_with_head(1200)


def test_gradient_and_ridge():
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


def test_penalty_is_one_minus_the_best_isoscore():
    rng = np.random.default_rng(0)
    points, linear = rng.normal(size=(50, 6)), rng.normal(size=(2, 7))
    head, cov = (rng.normal(size=(3, 2)), rng.normal(size=3)), np.cov(points.T)
    arrays = points, rng.integers(0, 3, 50), *head, np.zeros((2, 7)), cov
    parts = [*map(torch.tensor, arrays)]
    losses = [_Objective(*parts, weight, ridge=0.3)(linear)[0] for weight in (5.0, 0.0)]
    inside = linear[:, :-1] @ cov @ linear[:, :-1].T
    best = (inside**2).sum() / inside.trace()
    cov = torch.from_numpy(block_diag(inside, best * np.eye(4)))
    score = score_of(cov / cov.trace(), 6)
    assert losses[0] - losses[1] == pytest.approx(5.0 * (1 - score))


@pytest.mark.parametrize("scale", [1e-100, 1.0])
def test_without_a_head_it_whitens_and_keeps_the_mean_and_the_total_variance(scale):
    rows = np.random.default_rng(0).normal(size=(6000, 5)) * np.arange(1, 6) + 3
    layer = ExactIsotropyLayer(head=None).fit(scale * rows)
    Z = layer.transform(scale * rows) / scale
    np.testing.assert_allclose(Z.mean(0), rows.mean(0), atol=1e-9)
    assert Z.var(0).sum() == pytest.approx(rows.var(0).sum(), rel=1e-9)
    assert isoscore(Z) > 0.99 > isoscore(rows)
    assert layer.score(scale * rows) == pytest.approx(isoscore(Z))
    assert not hasattr(layer, "predict")


@pytest.mark.parametrize("alpha", [1e-6, 0.5, 0.99])
def test_loss_falls_isoscore_is_high_and_the_row_space_is_uncorrelated(alpha):
    layer = ExactIsotropyLayer(head=HEAD, alpha=alpha).fit(X, Y)
    Z = layer.transform(X)
    cov = np.cov(np.linalg.svd(HEAD.coef_)[2] @ Z.T)
    np.testing.assert_allclose(cov[0, 1:], 0, atol=1e-9)
    assert layer.history_[-1]["loss"] < layer.history_[0]["loss"]
    assert isoscore(Z) > 0.8
    assert np.abs(Z).max() < 1e3


def test_a_smaller_alpha_gives_the_penalty_its_share_of_the_loss():
    head = LinearHead(np.eye(3, 16), np.zeros(3), [0, 1, 2])  # one of rank 1 has no penalty
    halves, tenth = (
        ExactIsotropyLayer(head, alpha=alpha).fit(X, Y).history_[0]["loss"] for alpha in (0.5, 0.1)
    )
    task = log_loss(Y, head.predict_proba(X), labels=[0, 1, 2])
    assert halves > task + 0.01
    assert tenth == pytest.approx(task + 9 * (halves - task))


def test_directions_outside_the_row_space_are_kept_without_penalty():
    layer = ExactIsotropyLayer(head=HEAD, alpha=1.0).fit(X, Y)
    outside = np.linalg.svd(HEAD.coef_)[2][1:]
    np.testing.assert_allclose(layer.transform(X) @ outside.T, X @ outside.T, atol=1e-8)

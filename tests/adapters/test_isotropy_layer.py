"""IsotropyLayer: its loss, its rates and its kinds of training."""

import inspect

import numpy as np
import pytest
from sklearn.metrics import log_loss

from isoadapt import IsotropyLayer
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


def test_the_error_for_the_former_solver_names_the_exact_layer():
    with pytest.raises(TypeError, match="use ExactIsotropyLayer"):
        IsotropyLayer(solver="exact")
    assert "solver" not in inspect.signature(IsotropyLayer).parameters

"""I-STAR: the sign of lam, Σ_S in training and validation, and the steps between exact norms."""

import numpy as np
import pytest
import torch
from sklearn.base import clone

from isoadapt import IsotropyLayer, IStarAdapter
from isoadapt.adapters import _istar
from isoadapt.adapters._istar import (
    _STEPS,
    _ExactShrinkage,
    _SampledShrinkage,
    _steps_between,
)
from isoadapt.adapters._rows import Batches, Rows
from isoadapt.adapters._training._fit import prepare_problem
from isoadapt.adapters._training._networks import MLPNetwork
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss
from isoadapt.metrics import isoscore
from tests.adapters.examples import cone_with_head, network_and_points


@pytest.fixture(scope="module")
def cone():
    return cone_with_head()


def covariance_root(points):
    """Root of the covariance of the points (1, d, d), as the penalty expects it."""
    eigenvalues, vectors = torch.linalg.eigh(Moments().update(points).covariance())
    return (vectors * eigenvalues.sqrt())[None].float()


def single_batch(points):
    """Batches that consist of all points."""
    return Batches(Rows(points, None), torch.arange(len(points)), len(points), [])


def test_sign_of_lam_raises_or_lowers_isoscore(cone):
    X, y, head = cone
    options = {"validation_fraction": None, "random_state": 0, "max_epochs": 15}
    low, control, high = (
        isoscore(IStarAdapter(head, lam=lam, **options).fit(X, y).transform(X))
        for lam in (-5.0, 0.0, 5.0)
    )
    assert low < control / 2 < control < high / 4


@pytest.mark.parametrize("members", [1, 3])
def test_exact_shrinkage_is_the_covariance_of_all_outputs(members):
    network, points = network_and_points(members=members)
    outputs = network(points)
    loss = IsoScoreLoss(0.4, "linear")
    penalty = _ExactShrinkage(loss, covariance_root(points), [1], detached=False)
    expected = torch.stack([loss(Z[:9], torch.cov(Z.T)) for Z in outputs])
    torch.testing.assert_close(penalty(outputs[:, :9], None, network), expected)


@pytest.mark.parametrize("own_rows", [False, True])
def test_validation_by_the_covariance_of_its_rows_equals_that_of_adapted_rows(own_rows):
    network, points = network_and_points(members=3)
    rows = points[:9] if not own_rows else torch.stack([points[k : k + 9] for k in range(3)])
    cov = torch.stack([torch.cov(part.T) for part in (rows if own_rows else rows[None])])
    loss = IsoScoreLoss(torch.tensor([0.2, 0.6, 1.0]), "linear")
    penalty = _ExactShrinkage(loss, covariance_root(points), [1] * 3, False, cov)
    with torch.no_grad():
        expected = penalty(network(rows), None, network)
        torch.testing.assert_close(penalty.on_validation(network), expected)


@pytest.mark.parametrize("coordinates", ["whitened", "raw"])
@pytest.mark.parametrize("with_head", [True, False])
def test_fits_are_those_that_adapt_the_validation_rows(cone, monkeypatch, coordinates, with_head):
    """Without `on_validation`, the validation rows themselves are adapted after each epoch."""
    X, y, head = cone
    options = {"coordinates": coordinates, "max_epochs": 4, "random_state": 0}
    adapter = IStarAdapter(head if with_head else None, **options)
    found, on_validation = [], _ExactShrinkage.on_validation

    def noted(self, network):
        found.append(on_validation(self, network))
        return found[-1]

    monkeypatch.setattr(_ExactShrinkage, "on_validation", noted)
    by_covariance = clone(adapter).fit(X, y)
    assert len(found) == 5
    assert None not in found  # so that the two fits differ in what they compute
    monkeypatch.setattr(_ExactShrinkage, "on_validation", lambda self, network: None)
    adapter.fit(X, y)
    np.testing.assert_array_equal(by_covariance.transform(X), adapter.transform(X))
    for ours, theirs in zip(by_covariance.history_, adapter.history_, strict=True):
        assert ours["valid_score"] == pytest.approx(theirs["valid_score"], abs=1e-5)
        assert ours["valid_cost"] == pytest.approx(theirs["valid_cost"], abs=1e-5)


@pytest.mark.parametrize("lam", [0.0, 1.0])
@pytest.mark.parametrize("size", [1e10, 1e14])
def test_one_outlier_among_the_validation_rows_does_not_choose_the_epoch(cone, lam, size):
    X, y, head = cone
    adapter = IStarAdapter(head, lam=lam, max_epochs=4, random_state=0)
    outlier = X.copy()
    outlier[prepare_problem(adapter, X, y).validating[0]] *= size
    scores = [row["valid_score"] for row in adapter.fit(outlier, y).history_]
    expected = [row["valid_score"] for row in clone(adapter).fit(X, y).history_]
    assert scores == pytest.approx(expected, abs=0.02)  # at most the outlier's own prediction
    assert np.isfinite([row["valid_cost"] for row in adapter.history_]).all()


def test_exact_shrinkage_carries_gradient_and_detached_does_not():
    network, points = network_and_points()
    root = covariance_root(points)
    loss = IsoScoreLoss(1.0, "linear")  # only prior_cov counts
    exact = _ExactShrinkage(loss, root, [1], detached=False)
    value = exact(network(points), None, network).sum()
    (gradient,) = torch.autograd.grad(value, network.weight)
    assert gradient.abs().max() > 1e-4
    detached = _ExactShrinkage(loss, root, [1], detached=True)
    detached.refresh(network, single_batch(points))
    same = detached(network(points), None, network).sum()
    assert same.item() == pytest.approx(value.item(), rel=1e-5)
    (gradient,) = torch.autograd.grad(same, network.weight)
    assert gradient.abs().max() < 1e-8
    with torch.no_grad():  # after the epoch, the validation sees the weights of its end
        network.weight.mul_(torch.linspace(1, 3, 5)[:, None])
        after = [each(network(points), None, network).item() for each in (detached, exact)]
    assert after[0] == pytest.approx(after[1])
    assert abs(after[0] - same.item()) > 1e-3


def test_squared_norm_is_estimated_from_the_last_exact_one():
    network, points = network_and_points(members=3)
    loss = IsoScoreLoss(torch.tensor([0.2, 0.4, 1.0]), "linear")
    penalty = _ExactShrinkage(loss, covariance_root(points), [16, 4, 1], detached=False)

    def errors_after_a_step():
        with torch.no_grad():
            network.weight.add_(0.05 * torch.randn(network.weight.shape, generator=generator))
            exact = penalty(network(points), None, network)
        return (penalty(network(points), None, network) - exact).abs().detach()

    generator = torch.Generator().manual_seed(0)
    for _ in range(2):  # epochs
        penalty.refresh(network, single_batch(points))
        errors = torch.stack([errors_after_a_step() for _ in range(_STEPS + 1)])
        exact = errors < 1e-6
        for member, steps in enumerate((16, 4, 1)):
            assert exact[:, member].nonzero().flatten().tolist() == [*range(0, 17, steps)]
        assert errors.max() < 0.05


@pytest.mark.parametrize(
    ("zeta", "lr", "steps"),
    [
        *[(1e-320, 1e-320, 16), (0.2, 0.01, 16), (0.4, 0.01, 8), (0.6, 0.01, 5)],
        *[(0.8, 0.01, 3), (0.6, 0.001, 10), (0.8, 0.001, 3), (0.87, 1e-320, 1)],
        *[(1.0, 1e-320, 1), (0.2, 0.1, 1), (1e-320, 1e300, 1)],
    ],
)
def test_estimates_are_used_for_fewer_steps_with_large_rates_and_zeta(zeta, lr, steps):
    assert _steps_between(zeta, lr) == steps


@pytest.mark.parametrize("zeta", [0.6, 0.8])
def test_isotropy_is_that_of_exact_steps(cone, monkeypatch, zeta):
    """Four times as many steps between exact norms fail here; smaller ζ or lr forgive more."""
    X, y, head = cone
    settings = {"lam": 5.0, "zeta": zeta, "batch_size": 16, "patience": None}
    scores = []
    for most_steps in (_STEPS, 1):
        monkeypatch.setattr(_istar, "_STEPS", most_steps)
        fits = [
            IStarAdapter(head, **settings, max_epochs=4, random_state=s).fit(X, y) for s in range(3)
        ]
        scores.append(np.mean([isoscore(fitted.transform(X)) for fitted in fits]))
    assert scores[0] == pytest.approx(scores[1], abs=0.007)


def test_sampled_shrinkage_uses_a_bounded_number_of_rows():
    network, points = network_and_points(MLPNetwork, members=2)
    penalty = _SampledShrinkage(IsoScoreLoss(0.4, "linear"), 25)
    with torch.no_grad():
        penalty.refresh(network, single_batch(points))
        sampled = network(points[::3])
    expected = torch.stack([torch.cov(Z.T) for Z in sampled])
    torch.testing.assert_close(penalty.prior_cov, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"network": "mlp"}, {"shrinkage": "detached"}])
def test_other_networks_and_shrinkages_raise_isoscore(cone, options):
    X, y, head = cone
    fitted = IStarAdapter(head, lam=5.0, random_state=0, **options).fit(X, y)
    assert isoscore(fitted.transform(X)) > 3 * isoscore(X)


def test_exact_solver_equals_that_of_the_isotropy_layer(cone):
    X, y, head = cone
    ours = IStarAdapter(head, lam=1.0, zeta=0.0, solver="exact").fit(X, y)
    layer = IsotropyLayer(head, alpha=0.5, solver="exact").fit(X, y)
    np.testing.assert_array_equal(ours.transform(X), layer.transform(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": -1.0, "zeta": 0.0}, r"lam=-1.0 has no exact solution: use lam=0 or more"),
        ({"zeta": 0.2}, r"zeta=0.2 has no exact solution: use zeta=0, or solver='minibatch'"),
        ({"zeta": 0.0, "network": "mlp"}, "network='mlp' has no exact solution"),
    ],
)
def test_parameters_without_exact_solution_are_refused(cone, options, message):
    X, y, head = cone
    with pytest.raises(ValueError, match=message):
        IStarAdapter(head, solver="exact", **options).fit(X, y)


def test_batches_too_small_for_the_penalty_are_refused(cone):
    X, y, head = cone
    for parameters, fewest in (({"bias_corrected": True}, 4), ({"zeta": 0}, 3)):
        with pytest.raises(ValueError, match=f"batch_size={fewest - 1} .* batches of {fewest} row"):
            IStarAdapter(head, batch_size=fewest - 1, **parameters).fit(X, y)
    options = {"batch_size": 2, "validation_fraction": None, "max_epochs": 1}
    for without_a_limit in ({}, {"lam": 0.0, "zeta": 0.0}):
        IStarAdapter(head, **without_a_limit, **options).fit(X[:50], y[:50])
    IsotropyLayer(head, alpha=1.0, **options).fit(X[:50], y[:50])


@pytest.mark.parametrize("adapter", [IStarAdapter, IsotropyLayer])
def test_bias_correction_warns_of_batches_without_a_penalty(adapter):
    X = np.random.default_rng(0).normal(size=(9, 3)) * [9, 1, 1]
    options = {"validation_fraction": None, "max_epochs": 2, "batch_size": 4}
    with pytest.warns(UserWarning, match="batches of 3 with batch_size=4"):
        fitted = adapter(None, bias_corrected=True, **options).fit(X)
    assert adapter is IStarAdapter or [row["train_loss"] for row in fitted.history_] == [0, 0]

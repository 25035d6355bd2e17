"""I-STAR: the sign of lam, Σ_S in training and validation, and the steps between exact norms."""

import pytest
import torch

from isoadapt import IStarAdapter
from isoadapt.adapters._istar import _STEPS, _ExactShrinkage, _steps_between
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss
from isoadapt.metrics import isoscore
from tests.adapters.examples import cone_with_head, network_and_points


def covariance_root(points):
    """Root of the covariance of the points (1, d, d), as the penalty expects it."""
    eigenvalues, vectors = torch.linalg.eigh(Moments().update(points).covariance())
    return (vectors * eigenvalues.sqrt())[None].float()


def test_sign_of_lam_raises_or_lowers_isoscore():
    X, y, head = cone_with_head()
    rows, labels = X[:200], y[:200]
    options = {"validation_fraction": None, "random_state": 0, "max_epochs": 15}
    low, control, high = (
        isoscore(IStarAdapter(head, lam=lam, **options).fit(rows, labels).transform(X))
        for lam in (-5.0, 0.0, 5.0)
    )
    assert low < control / 2 < control < high / 4


class TestExactShrinkage:
    def test_is_the_covariance_of_all_outputs(self):
        """Also if the inputs are uncorrelated, so that the root of their covariance is diagonal."""
        network, points = network_and_points(members=3)
        loss = IsoScoreLoss(0.4, "linear")
        deviations = torch.linspace(0.5, 2, 5)[None]
        for root, cov in (
            (covariance_root(points), torch.cov(points.T)),
            (deviations, deviations[0].square().diag()),
        ):
            outputs, expected = network(points).points[:, :9], []
            for Z, weight in zip(outputs, network.weight, strict=True):
                expected.append(loss(Z, weight @ cov @ weight.T))
            penalty = _ExactShrinkage(loss=loss, inputs_root=root, steps=[1], detached=False)
            torch.testing.assert_close(penalty(outputs, None, network), torch.stack(expected))
            with torch.no_grad():  # as in the validation
                found = penalty(outputs, None, network)
            torch.testing.assert_close(found, torch.stack(expected))

    def test_carries_gradient_and_detached_does_not(self):
        network, points = network_and_points()
        root = covariance_root(points)
        loss = IsoScoreLoss(1.0, "linear")  # only prior_cov counts
        exact = _ExactShrinkage(loss=loss, inputs_root=root, steps=[1], detached=False)
        value = exact(network(points).points, None, network).sum()
        (gradient,) = torch.autograd.grad(value, network.weight)
        assert gradient.abs().max() > 1e-4
        detached = _ExactShrinkage(loss=loss, inputs_root=root, steps=[1], detached=True)
        detached.refresh(network)
        same = detached(network(points).points, None, network).sum()
        assert same.item() == pytest.approx(value.item(), rel=1e-5)
        (gradient,) = torch.autograd.grad(same, network.weight)
        assert gradient.abs().max() < 1e-8
        with torch.no_grad():  # after the epoch, the validation sees the weights of its end
            network.weight.mul_(torch.linspace(1, 3, 5)[:, None])
            after = [one(network(points).points, None, network).item() for one in (detached, exact)]
        assert after[0] == pytest.approx(after[1])
        assert abs(after[0] - same.item()) > 1e-3

    def test_squared_norm_is_estimated_from_the_last_exact_one(self):
        network, points = network_and_points(members=3)
        loss = IsoScoreLoss(torch.tensor([0.2, 0.4, 1.0]), "linear")
        root, steps = covariance_root(points), [16, 4, 1]
        penalty = _ExactShrinkage(loss=loss, inputs_root=root, steps=steps, detached=False)

        def errors_after_a_step():
            with torch.no_grad():
                network.weight.add_(0.05 * torch.randn(network.weight.shape, generator=generator))
                exact = penalty(network(points).points, None, network)
            return (penalty(network(points).points, None, network) - exact).abs().detach()

        generator = torch.Generator().manual_seed(0)
        for _ in range(2):  # epochs
            penalty.refresh(network)
            errors = torch.stack([errors_after_a_step() for _ in range(_STEPS + 1)])
            exact = errors < 1e-6
            for member, own in enumerate(steps):
                assert exact[:, member].nonzero().flatten().tolist() == [*range(0, 17, own)]
            assert errors.max() < 0.05


def test_estimates_are_used_for_fewer_steps_with_large_rates_and_zeta():
    """The smallest of 16, 6 (1 - ζ²) / ζ² and 0.032 / (lr ζ), rounded down, but at least 1."""
    for zeta, lr, steps in [
        *[(1e-320, 1e-320, 16), (0.2, 0.01, 16), (0.4, 0.01, 8), (0.6, 0.01, 5)],
        *[(0.8, 0.01, 3), (0.6, 0.001, 10), (0.8, 0.001, 3), (0.87, 1e-320, 1)],
        *[(1.0, 1e-320, 1), (0.2, 0.1, 1), (1e-320, 1e300, 1)],
    ]:
        assert _steps_between(zeta, lr) == steps

"""FlowAdapter: density, inverse, training with and without labels, and storage."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss

from isoadapt import FlowAdapter
from isoadapt.adapters._flow._map import Scaling
from isoadapt.adapters._flow._network import FlowNetwork
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import split_rows
from isoadapt.metrics import isoscore

SMALL = {"n_blocks": 2, "hidden": 8, "random_state": 0}


def correlated(n, d, seed=0):
    """Gaussian points with a mean far from the origin and unequal scales."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) * np.geomspace(1, 0.05, d)
    return rng.normal(size=(n, d)) @ mixing.T + rng.normal(size=d) * 10


def banana(n, seed=0):
    """Two dimensions with a curved dependence and one that is correlated with them."""
    x, noise, other = np.random.default_rng(seed).normal(size=(3, n))
    return np.column_stack([x, x**2 + 0.3 * noise, x + 0.5 * other])


def random_network(d, coupling, n_blocks=3):
    """An initialised network with all parameters changed."""
    generator = torch.Generator().manual_seed(d)
    network = FlowNetwork(d, n_blocks, 8, coupling, generator)
    network.start(correlated(300, d))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return network


@pytest.mark.parametrize(("d", "coupling"), [(2, "affine"), (3, "additive"), (7, "affine")])
class TestMap:
    def test_inverse_of_a_fitted_flow_and_of_random_parameters(self, d, coupling):
        X = correlated(100, d)
        flow = FlowAdapter(coupling=coupling, max_epochs=2, **SMALL).fit(X)
        scale = np.abs(X).max()
        assert np.abs(flow.inverse_transform(flow.transform(X)) - X).max() < 1e-9 * scale
        drawn = random_network(d, coupling).map()
        np.testing.assert_allclose(drawn.inverted()(drawn(X)), X, rtol=1e-10, atol=1e-9)

    def test_log_determinant_equals_that_of_the_jacobian(self, d, coupling):
        transform = random_network(d, coupling).map().transform()
        for x in torch.from_numpy(correlated(3, d, seed=1)):
            jacobian = torch.autograd.functional.jacobian(transform, x)
            _, found = transform.call_and_ladj(x)
            torch.testing.assert_close(found, torch.linalg.slogdet(jacobian)[1])

    def test_map_and_density_equal_those_of_the_network(self, d, coupling):
        network, X = random_network(d, coupling), correlated(50, d)
        with torch.no_grad():
            Z, likelihood = network.likelihood(torch.from_numpy(network.normalise(X)).float())
        flow = network.map()
        np.testing.assert_allclose(Z, flow(X), rtol=1e-4, atol=1e-4)
        of_embeddings = likelihood - np.log(network.deviation).sum()
        np.testing.assert_allclose(of_embeddings, flow.log_likelihood(X), rtol=1e-4, atol=1e-4)
        _, log_det = flow.transform().call_and_ladj(torch.from_numpy(X))
        expected = multivariate_normal(np.zeros(d)).logpdf(flow(X)) + log_det.numpy()
        np.testing.assert_allclose(flow.log_likelihood(X), expected)


def test_each_act_norm_normalises_its_inputs():
    network, rows = random_network(5, "affine"), torch.from_numpy(correlated(400, 5, seed=3))
    network.start(rows.numpy())
    steps = network.map().transform().transforms
    assert sum(isinstance(step, Scaling) for step in steps) == 4
    for step in steps:
        rows = step(rows)
        if isinstance(step, Scaling):
            torch.testing.assert_close(rows.mean(0), torch.zeros(5).double(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(rows.std(0), torch.ones(5).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coupling", ["additive", "affine"])
def test_density_of_gaussian_and_curved_data(coupling):
    """On fresh rows the likelihood is near that of normal rows, or above the best normal."""
    options = {"hidden": 16, "n_blocks": 4, "lr": 0.01, "max_epochs": 8, "random_state": 0}
    flow, gains = FlowAdapter(coupling=coupling, **options), []
    for rows in (correlated(1000, 3), banana(1000)):
        X, fresh = rows[:700], rows[700:]
        normal = multivariate_normal(X.mean(axis=0), np.cov(X.T)).logpdf(fresh).mean()
        gains.append(flow.fit(X).score_samples(fresh).mean() - normal)
        Z = flow.transform(X)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(Z.var(axis=0), 1, rtol=1e-9)
        assert isoscore(flow.transform(fresh)) > 0.9 > 0.6 > isoscore(fresh)
    assert abs(gains[0]) < 0.1
    assert gains[1] > 0.5


def test_alpha_trains_for_the_frozen_head():
    X, y = make_classification(300, 8, n_informative=4, n_classes=3, random_state=0)
    head = fit_head("logistic", X, y)
    settings = {"max_epochs": 15, "lr": 3e-3, **SMALL}
    alone = FlowAdapter(**settings).fit(X)
    joint = FlowAdapter(head, alpha=0.5, **settings).fit(X, y)
    loss = log_loss(y, joint.predict_proba(X))
    assert loss < log_loss(y, head.predict_proba(X)) - 0.05
    assert loss < log_loss(y, joint.head_.predict_proba(alone.transform(X))) - 0.05
    pure = FlowAdapter(head, alpha=1.0, **settings).fit(X, y)
    assert joint.score_samples(X).mean() > pure.score_samples(X).mean()
    assert all(epoch["valid_cost"] == 0 for epoch in pure.history_)


def test_validation_cost_is_bits_per_dimension():
    X = correlated(30, 3)  # too few rows to calibrate the last ActNorm
    flow = FlowAdapter(max_epochs=2, **SMALL).fit(X)
    rng = np.random.RandomState(0)
    rng.randint(2**31)  # draws the seed of the shuffles, as fit does
    fitting, validating = split_rows(30, None, 0.3, rng)
    bits = -flow.score_samples(X[validating]).mean() / (3 * np.log(2))
    bits -= np.log2(X[fitting].std(axis=0, ddof=1)).mean()  # of standardised embeddings
    cost = flow.history_[flow.best_epoch_ - 1]["valid_cost"]
    assert cost == pytest.approx(bits, abs=1e-4)


@pytest.mark.parametrize("options", [{"lr": 1e30, "validation_fraction": None}, {"alpha": 0.5}])
def test_divergence_and_alpha_without_a_head_are_errors(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FlowAdapter(max_epochs=3, **options).fit(correlated(100, 4))

"""FlowAdapter: density, inverse, training with and without labels, and storage."""

import pickle
import pickletools

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from isoadapt import FlowAdapter
from isoadapt.adapters._flow._map import Scaling
from isoadapt.adapters._flow._network import ActNorm, FlowNetwork
from isoadapt.adapters._heads import fit_head
from isoadapt.adapters._rows import split_rows
from isoadapt.adapters._training._loop import Training
from isoadapt.metrics import isoscore

COUPLINGS = ["additive", "affine"]


def correlated(n, d, seed=0):
    """Gaussian points with a mean far from the origin and unequal scales."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(d, d)) * np.geomspace(1, 0.05, d)
    return rng.normal(size=(n, d)) @ mixing.T + rng.normal(size=d) * 10


def banana(n, seed=0):
    """Two dimensions with a curved dependence and one that is correlated with them."""
    x, noise, other = np.random.default_rng(seed).normal(size=(3, n))
    return np.column_stack([x, x**2 + 0.3 * noise, x + 0.5 * other])


def random_network(d, coupling, n_blocks=4):
    """An initialised network with all parameters changed."""
    generator = torch.Generator().manual_seed(d)
    network = FlowNetwork(d, n_blocks, 8, coupling, generator)
    network.start(torch.from_numpy(correlated(300, d)))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return network


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("d", [2, 3, 7, 40])
class TestInverse:
    def test_fitted_flow(self, d, coupling):
        X = correlated(300, d)
        flow = FlowAdapter(coupling=coupling, hidden=16, max_epochs=3, random_state=0).fit(X)
        scale = np.abs(X).max()
        assert np.abs(flow.inverse_transform(flow.transform(X)) - X).max() < 1e-9 * scale
        single = X.astype(np.float32)
        back = flow.inverse_transform(flow.transform(single))
        assert back.dtype == np.float32
        assert np.abs(back - single).max() < 1e-4 * scale

    def test_random_parameters(self, d, coupling):
        flow, X = random_network(d, coupling).map(), correlated(300, d)
        np.testing.assert_allclose(flow.inverted()(flow(X)), X, rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("d", [2, 3, 6])
def test_log_determinant_equals_that_of_the_jacobian(d, coupling):
    transform = random_network(d, coupling).map().transform()
    for x in torch.from_numpy(correlated(5, d, seed=1)):
        jacobian = torch.autograd.functional.jacobian(transform, x)
        _, found = transform.call_and_ladj(x)
        torch.testing.assert_close(found, torch.linalg.slogdet(jacobian)[1])


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_map_equals_the_network_in_float64(coupling):
    network, X = random_network(5, coupling), correlated(50, 5)
    with torch.no_grad():
        Z, likelihood = network(torch.from_numpy(X))
    flow = network.map()
    np.testing.assert_allclose(Z, flow(X), rtol=1e-4, atol=1e-4)
    of_embeddings = likelihood - network.deviation.log().sum()
    np.testing.assert_allclose(of_embeddings, flow.log_likelihood(X), rtol=1e-4, atol=1e-4)


class TestStart:
    def test_each_act_norm_normalises_its_inputs(self):
        network, X = random_network(5, "affine"), torch.from_numpy(correlated(400, 5, seed=3))
        network.start(X)
        steps = network.map().transform().transforms
        rows = X
        assert sum(isinstance(step, Scaling) for step in steps) == 5
        for step in steps:
            rows = step(rows)
            if isinstance(step, Scaling):
                torch.testing.assert_close(rows.mean(0), torch.zeros(5).double(), **close(1e-5))
                torch.testing.assert_close(rows.std(0), torch.ones(5).double(), **close(1e-5))

    def test_initial_flow_is_the_standardisation(self):
        X = correlated(400, 7)
        network = FlowNetwork(7, 5, 8, "affine", torch.Generator().manual_seed(0))
        network.start(torch.from_numpy(X))
        factor = np.sqrt(1 - 1 / len(X))  # unbiased variances
        np.testing.assert_allclose(
            network.map()(X), StandardScaler().fit_transform(X) * factor, **close(1e-5)
        )

    def test_small_standard_deviations_are_raised(self):
        layer, X = ActNorm(3), torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
        X[:, 1] *= 1e-5
        X[:, 2] = 5
        layer.start(X)
        scale = layer.log_scale.exp()
        torch.testing.assert_close(scale[0] * X[:, 0].std(), torch.tensor(1.0))
        torch.testing.assert_close(scale[1], 1000 * scale[0])
        assert scale[2] == 1  # a constant feature is only centred
        layer.start(torch.ones(10, 3))
        torch.testing.assert_close(layer.log_scale.detach(), torch.zeros(3))


class TestDensity:
    @pytest.mark.parametrize("coupling", COUPLINGS)
    def test_density_of_gaussian_data(self, coupling):
        X = np.random.default_rng(0).normal(size=(4000, 6))
        flow = FlowAdapter(coupling=coupling, hidden=16, batch_size=256, random_state=0)
        flow.fit(X[:3000])
        truth = multivariate_normal(np.zeros(6)).logpdf(X[3000:]).mean()
        assert flow.score_samples(X[3000:]).mean() == pytest.approx(truth, rel=0.01)
        assert truth == pytest.approx(-3 * np.log(2 * np.pi * np.e), rel=0.02)

    @pytest.mark.parametrize("coupling", COUPLINGS)
    def test_density_integrates_to_one(self, coupling):
        X = banana(1000)[:, :2]
        flow = FlowAdapter(coupling=coupling, hidden=16, random_state=0, max_epochs=10).fit(X)
        axis = np.linspace(-12, 22, 350)
        grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        mass = np.exp(flow.score_samples(grid)).sum() * (axis[1] - axis[0]) ** 2
        assert mass == pytest.approx(1, abs=5e-3)

    def test_likelihood_of_curved_data_exceeds_that_of_the_best_gaussian(self):
        X, fresh = banana(2000), banana(1000, seed=1)
        flow = FlowAdapter(hidden=32, max_epochs=10, random_state=0).fit(X)
        gaussian = multivariate_normal(X.mean(axis=0), np.cov(X.T)).logpdf(fresh)
        assert flow.score_samples(fresh).mean() > gaussian.mean() + 0.3

    def test_density_is_the_normal_density_times_the_volume_change(self):
        flow, X = random_network(3, "affine").map(), correlated(20, 3)
        _, log_det = flow.transform().call_and_ladj(torch.from_numpy(X))
        expected = multivariate_normal(np.zeros(3)).logpdf(flow(X)) + log_det.numpy()
        np.testing.assert_allclose(flow.log_likelihood(X), expected)
        assert flow.log_likelihood(X[0]).shape == ()

    def test_density_changes_with_the_units_and_outputs_with_no_unit_or_far_offset(self):
        X = correlated(300, 4)
        plain, scaled, far = (
            FlowAdapter(max_epochs=2, random_state=0).fit(rows) for rows in (X, 8 * X, X + 1e7)
        )
        np.testing.assert_allclose(scaled.transform(8 * X), plain.transform(X), **close(1e-4))
        np.testing.assert_allclose(far.transform(X + 1e7), plain.transform(X), **close(1e-4))
        difference = plain.score_samples(X) - scaled.score_samples(8 * X)
        np.testing.assert_allclose(difference, 4 * np.log(8), **close(1e-3))


class TestOutputs:
    @pytest.mark.parametrize("coupling", COUPLINGS)
    @pytest.mark.parametrize("X", [correlated(1500, 9), banana(1500)], ids=["gaussian", "banana"])
    def test_outputs_have_mean_zero_and_unit_variances(self, X, coupling):
        train, fresh = X[:1000], X[1000:]
        flow = FlowAdapter(coupling=coupling, hidden=32, max_epochs=10, random_state=0).fit(train)
        Z = flow.transform(train)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(Z.var(axis=0), 1, rtol=1e-9)
        Z = flow.transform(fresh)
        assert np.abs(Z.mean(axis=0)).max() < 0.2
        assert np.abs(Z.var(axis=0) - 1).max() < 0.4
        assert isoscore(Z) > isoscore(fresh)

    @pytest.mark.parametrize("coupling", COUPLINGS)
    @pytest.mark.parametrize("n", [2, 3, 5, 10])
    def test_few_rows_and_many_features(self, n, coupling):
        rng = np.random.default_rng(n)
        X, fresh = rng.normal(size=(n, 30)), rng.normal(size=(50, 30))
        flow = FlowAdapter(coupling=coupling, random_state=0).fit(X)
        assert np.isfinite(flow.transform(fresh)).all()
        assert np.isfinite(flow.score_samples(fresh)).all()
        np.testing.assert_allclose(flow.inverse_transform(flow.transform(X)), X, atol=1e-9)

    def test_many_rows(self):
        X = correlated(50_000, 5).astype(np.float32)
        Z = FlowAdapter(n_blocks=2, max_epochs=1, batch_size=1024, random_state=0).fit_transform(X)
        np.testing.assert_allclose(Z.mean(axis=0), 0, atol=1e-3)
        np.testing.assert_allclose(Z.var(axis=0), 1, atol=1e-3)

    def test_duplicates_and_degenerate_directions(self):
        rng = np.random.default_rng(0)
        X = np.repeat(rng.normal(size=(20, 3)), 10, axis=0) @ rng.normal(size=(3, 12))
        flow = FlowAdapter(random_state=0).fit(X)
        assert np.isfinite(flow.transform(X + 0.01 * rng.normal(size=X.shape))).all()
        assert np.isfinite(flow.score_samples(X)).all()


@pytest.fixture(scope="module")
def task():
    return make_classification(600, 8, n_informative=4, n_classes=3, random_state=0)


class TestHead:
    def test_refit_without_alpha(self, task):
        X, y = task
        flow = FlowAdapter("logistic", max_epochs=5, random_state=0).fit(X, y)
        alone = FlowAdapter(max_epochs=5, random_state=0).fit(X)
        np.testing.assert_array_equal(flow.transform(X), alone.transform(X))
        expected = fit_head("logistic", alone.transform(X), y)
        np.testing.assert_allclose(flow.head_.coef_, expected.coef_)
        other = FlowAdapter(expected, max_epochs=5, random_state=0).fit(X, y)
        np.testing.assert_allclose(other.head_.coef_, expected.coef_)

    def test_alpha_trains_for_the_frozen_head(self, task):
        X, y = task
        head = fit_head("logistic", X, y)
        settings = {"max_epochs": 20, "random_state": 0}
        alone = FlowAdapter(**settings).fit(X)
        joint = FlowAdapter(head, alpha=0.5, **settings).fit(X, y)
        losses = [log_loss(y, model.predict_proba(X)) for model in (head, joint)]
        assert losses[1] < losses[0] - 0.05
        read_alone = joint.head_.predict_proba(alone.transform(X))
        assert losses[1] < log_loss(y, read_alone) - 0.05
        pure = FlowAdapter(head, alpha=1.0, **settings).fit(X, y)
        assert joint.score_samples(X).mean() > pure.score_samples(X).mean()

    def test_initial_flow_preserves_predictions_of_the_head(self, task):
        X, y = task
        head = fit_head("logistic", X, y)
        start = FlowAdapter(head, alpha=0.5, lr=1e-12, max_epochs=1).fit(X, y)
        np.testing.assert_allclose(start.predict_proba(X), head.predict_proba(X), atol=1e-4)

    def test_alpha_with_regression(self):
        X = correlated(500, 5)
        Y = StandardScaler().fit_transform(X[:, :2] ** 2)
        settings = {"max_epochs": 20, "random_state": 0}
        head = fit_head("ridge", X, Y)
        joint = FlowAdapter(head, alpha=0.9, **settings).fit(X, Y)
        errors = [
            np.mean((joint.head_.predict(flow.transform(X)) - Y) ** 2)
            for flow in (FlowAdapter(**settings).fit(X), joint)
        ]
        assert errors[1] < errors[0]
        with pytest.raises(ValueError, match=r"y has 1 column.*head has 2 output"):
            FlowAdapter(head, alpha=0.9).fit(X, Y[:, 0])

    def test_alpha_needs_a_head(self):
        with pytest.raises(ValueError, match=r"alpha=0.5 needs a head.*alpha=None"):
            FlowAdapter(alpha=0.5).fit(correlated(50, 3))


class TestTraining:
    def test_epoch_with_the_fewest_bits_is_kept(self):
        X = correlated(80, 20)
        flow = FlowAdapter(lr=0.02, max_epochs=40, patience=3, random_state=0).fit(X)
        costs = [epoch["valid_cost"] for epoch in flow.history_]
        assert flow.n_iter_ == len(costs) == flow.best_epoch_ + 3 < 40
        assert flow.best_epoch_ == 1 + np.argmin(costs)
        assert all(epoch["valid_score"] == -epoch["valid_cost"] for epoch in flow.history_)

    def test_validation_cost_is_bits_per_dimension(self):
        X = correlated(30, 3)  # too few rows to calibrate the last ActNorm
        flow = FlowAdapter(max_epochs=2, random_state=0).fit(X)
        rng = np.random.RandomState(0)
        rng.randint(2**31)  # draws the seed of the shuffles, as fit does
        fitting, validating = split_rows(30, None, 0.3, rng)
        bits = -flow.score_samples(X[validating]).mean() / (3 * np.log(2))
        bits -= np.log2(X[fitting].std(axis=0, ddof=1)).mean()  # of standardised embeddings
        cost = flow.history_[flow.best_epoch_ - 1]["valid_cost"]
        assert cost == pytest.approx(bits, abs=1e-4)

    def test_without_validation_the_last_epoch_is_kept(self):
        flow = FlowAdapter(validation_fraction=None, max_epochs=4).fit(correlated(60, 3))
        assert flow.best_epoch_ == flow.n_iter_ == 4
        assert all("valid_cost" not in epoch for epoch in flow.history_)

    def test_divergence_is_an_error(self):
        flow = FlowAdapter(lr=1e30, max_epochs=3, validation_fraction=None)
        with pytest.raises(ValueError, match=r"training diverged with lr=1e\+30.*smaller lr"):
            flow.fit(correlated(100, 4))

    def test_interrupt_is_raised_and_leaves_the_estimator_unchanged(self, monkeypatch):
        X = correlated(100, 4)
        flow = FlowAdapter(max_epochs=2, random_state=0).fit(X)
        before = flow.transform(X)

        def interrupt(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(Training, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            flow.fit(2 * X)
        np.testing.assert_array_equal(flow.transform(X), before)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_training_does_not_copy_the_embeddings(self, dtype):
        X = correlated(1000, 4).astype(dtype)
        flow = FlowAdapter(device="cpu")
        network = flow._make_network(X[:50], torch.Generator(), torch.device("cpu"))
        module = flow._make_module(network, X, None)
        assert np.shares_memory(module.X.numpy(), X)
        assert all(value.numel() < X.size for value in module.state_dict().values())


class TestSaved:
    def test_pickle_contains_no_objects_of_torch_or_zuko(self):
        X = correlated(100, 5)
        flow = FlowAdapter(max_epochs=2).fit(X)
        stored = pickle.dumps(flow)
        strings = {str(arg) for op, arg, _ in pickletools.genops(stored) if "UNICODE" in op.name}
        assert any(name.startswith("isoadapt.adapters._flow._map") for name in strings)
        assert not [name for name in strings if name.startswith(("torch", "zuko", "skorch"))]
        np.testing.assert_array_equal(pickle.loads(stored).transform(X), flow.transform(X))


@pytest.mark.slow
def test_real_embeddings(shared):
    data = np.load(shared / "embeddings" / "cola.npz")
    X, fresh = data["E_train"][:2500], data["E_dev"]
    flow = FlowAdapter(max_epochs=8, random_state=0).fit(X)
    Z = flow.transform(X)
    assert np.abs(Z.mean(axis=0)).max() < 1e-4
    assert np.abs(Z.var(axis=0) - 1).max() < 1e-4
    outputs = flow.transform(fresh)
    assert np.abs(outputs.mean(axis=0)).max() < 0.5
    assert 0.6 < outputs.var(axis=0).min() <= outputs.var(axis=0).max() < 2.5
    assert isoscore(fresh) < 0.001
    assert isoscore(outputs) > 0.1
    bits = [-flow.score_samples(rows).mean() / (384 * np.log(2)) for rows in (X, fresh)]
    assert bits[1] < -1.5  # 0.2 under independent normal features
    assert bits[0] < bits[1] < bits[0] + 0.5
    assert np.abs(flow.inverse_transform(outputs) - fresh).max() < 1e-4


def close(tolerance):
    return {"rtol": tolerance, "atol": tolerance}

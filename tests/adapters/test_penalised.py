"""The adapters that are trained with a penalty."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.datasets import make_regression
from sklearn.linear_model import Ridge

from isoadapt import (
    CosRegAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.adapters import _topological_entropy
from isoadapt.adapters._linalg import row_space
from isoadapt.adapters._spectrum_control import _SVD_INTERVAL, _ExactSpectrum, _second_moment_root
from isoadapt.adapters._training._problem import (
    Coordinates,
    raw_coordinates,
    whitened_coordinates,
)
from isoadapt.geometry import Moments
from isoadapt.losses import PersistentEntropyLoss, SpectrumControlLoss
from isoadapt.metrics import anisotropy, isoscore, mean_cosine_similarity
from tests.adapters.examples import PENALISED, cone_with_head, network_and_points


@pytest.fixture(scope="module")
def cone():
    return cone_with_head()


@pytest.mark.parametrize("adapter", PENALISED)
class TestAllPenalised:
    @pytest.mark.parametrize("network", ["linear", "mlp"])
    def test_starts_as_the_identity(self, adapter, network, cone):
        X, y, head = cone
        for coordinates in ("raw", "whitened"):
            options = {"network": network, "coordinates": coordinates, "max_epochs": 1}
            fitted = adapter(head, lr=1e-12, **options).fit(X, y)
            np.testing.assert_allclose(fitted.transform(X), X, atol=1e-4)

    def test_divergence_and_an_infinite_loss_are_errors(self, adapter, cone):
        X, y, head = cone
        with pytest.raises(ValueError, match=r"training diverged with lr=3e\+38.*smaller lr"):
            adapter(head, lr=3e38, max_epochs=2).fit(X, y)
        weight = {"alpha": 1e-300} if adapter is IsotropyLayer else {"lam": 1e300}
        with pytest.raises(ValueError, match=r"diverged .* a smaller weight of the penalty"):
            adapter(head, **weight, max_epochs=2, random_state=0).fit(X, y)

    def test_interrupt_leaves_the_estimator_unchanged(self, adapter, cone, monkeypatch):
        X, y, head = cone
        fitted = adapter(head, max_epochs=1, random_state=0).fit(X, y)
        before = dict(vars(fitted))

        def interrupt(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr("isoadapt.adapters._training._loop.Training.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(X, y)
        assert vars(fitted) == before

    def test_very_small_classes_duplicates_and_an_absent_class(self, adapter):
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1, 2, 3, 4], [60, 1, 2, 4, 5])
        X = rng.normal(size=(72, 6)) + y[:, None]
        X[5:15] = X[5]  # duplicates
        head = LinearHead(rng.normal(size=(6, 6)), np.zeros(6), range(6))  # no row has label 5
        fitted = adapter(head, batch_size=16, max_epochs=3, random_state=0).fit(X, y)
        assert np.isfinite(fitted.transform(X)).all()

    @pytest.mark.filterwarnings("ignore:this fit harms the task", "ignore:training ended at max")
    def test_many_rows(self, adapter):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(20_000, 4)).astype(np.float32) * [9, 1, 1, 1]
        y = (X[:, 0] > 0).astype(int)
        fitted = adapter(batch_size=4096, max_epochs=1, validation_fraction=0.05).fit(X, y)
        assert np.isfinite(fitted.transform(X)).all()


@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_the_fitted_map_decides_what_is_available(network, cone):
    X, y, head = cone
    layer = IsotropyLayer(head, network=network, max_epochs=1).fit(X, y)
    layer.set_params(network={"linear": "mlp", "mlp": "linear"}[network])  # without a new fit
    assert hasattr(layer, "to_affine") == (network == "linear")
    assert network == "linear" or not hasattr(layer, "inverse_transform")
    if network == "linear":
        matrix, offset = layer.to_affine()
        np.testing.assert_allclose(layer.transform(X), X @ matrix.T + offset)


def test_adapters_agree_without_a_penalty(cone):
    X, y, head = cone
    options = {"coordinates": "whitened", "validation_fraction": None, "random_state": 0}
    options |= {"ridge": 0.0, "lr": 1e-3, "lr_schedule": "constant", "max_epochs": 5}
    expected = IStarAdapter(head, lam=0.0, **options).fit(X, y).transform(X)
    for other in (CosRegAdapter, TopologicalEntropyAdapter):
        Z = other(head, lam=0.0, **options).fit(X, y).transform(X)
        np.testing.assert_allclose(Z, expected, atol=1e-5)
    layer = IsotropyLayer(head, alpha=1.0, balance=None, **options).fit(X, y)
    np.testing.assert_allclose(layer.transform(X), expected, atol=1e-5)


@pytest.mark.parametrize("adapter", PENALISED)
def test_all_parameters_but_the_head_are_keyword_only(adapter):
    assert adapter(None).head is None
    with pytest.raises(TypeError, match="positional"):
        adapter("logistic", 3.0)


class TestCoordinates:
    def test_raw_coordinates_only_change_the_unit(self):
        X = np.random.default_rng(0).normal(size=(7, 3)) * 50
        coordinates = raw_coordinates(Moments().update(X))
        np.testing.assert_allclose(coordinates.into(X) * coordinates.scale, X)
        eigenvalues = np.linalg.eigvalsh(X.T @ X / 7)
        np.testing.assert_allclose(coordinates.scale**2, np.sqrt(np.mean(eigenvalues**2)))
        matrix, offset = coordinates.embedding_map(coordinates.start)
        np.testing.assert_allclose(matrix, np.eye(3), atol=1e-15)
        np.testing.assert_array_equal(offset, np.zeros(3))

    def test_whitened_coordinates_start_with_the_row_space_of_the_head(self, cone):
        X, _, head = cone
        coordinates = whitened_coordinates(Moments().update(X), head)
        assert isinstance(coordinates, Coordinates)
        points = coordinates.into(X)
        variances = np.cov(points.T)
        np.testing.assert_allclose(variances, np.diag(coordinates.deviations**2), atol=1e-8)
        np.testing.assert_allclose(points.mean(0), 0, atol=1e-8)
        shrunk = OAS().fit(X).covariance_ * len(X) / (len(X) - 1)
        matrix = coordinates.into.matrix
        np.testing.assert_allclose(matrix @ shrunk @ matrix.T, np.eye(16), atol=1e-8)
        np.testing.assert_allclose(coordinates.out @ coordinates.out.T, np.eye(16), atol=1e-12)
        assert np.abs((head.coef_ @ coordinates.out)[:, 1:]).max() < 1e-10
        np.testing.assert_allclose(coordinates.embedding_map(coordinates.start)(X), X, atol=1e-8)


class TestCosReg:
    def test_mean_moves_towards_the_origin(self, cone):
        X, y, head = cone
        X = X + 5 * row_space(head.coef_)[1][:, 0]  # outside the head's row space
        options = {"validation_fraction": None, "random_state": 0}
        control = CosRegAdapter(head, lam=0.0, **options).fit(X, y).transform(X)
        Z = CosRegAdapter(head, **options).fit(X, y).transform(X)
        assert mean_cosine_similarity(Z) < mean_cosine_similarity(control) - 0.2
        assert np.linalg.norm(Z.mean(0)) < np.linalg.norm(control.mean(0)) / 1.5
        assert isoscore(Z) < 3 * isoscore(control)


class TestSpectrumControl:
    @pytest.mark.parametrize(
        ("network", "decay"), [("linear", "exponential"), ("mlp", "polynomial")]
    )
    def test_distance_to_the_target_falls_tenfold(self, cone, network, decay):
        X, y, head = cone
        c1 = float(np.linalg.svd(X, compute_uv=False)[0] / np.sqrt(len(X)))
        distance = SpectrumControlLoss(decay, c1=c1)
        options = {"decay": decay, "network": network, "max_epochs": 120, "batch_size": 300}
        options |= {"validation_fraction": None, "random_state": 0}
        adapter = SpectrumControlAdapter(head, **options).fit(X, y)
        Z = torch.tensor(adapter.transform(X))
        assert float(distance(Z)) < float(distance(torch.tensor(X))) / 10

    @pytest.mark.parametrize("decay", ["polynomial", "exponential"])
    def test_bound_is_above_the_loss_and_tight_where_it_is_renewed(self, decay):
        network, points = network_and_points(members=2)
        root = torch.tensor(_second_moment_root(Moments().update(points))).float()
        exact = SpectrumControlLoss(decay, c1=3.0)
        penalty = _ExactSpectrum(SpectrumControlLoss(decay, c1=3.0, per_row=False), root)
        generator = torch.Generator().manual_seed(0)
        for step in range(2 * _SVD_INTERVAL):
            value = penalty(network(points), None, network)
            distance = exact(network(points))
            gradient, expected = (
                torch.autograd.grad(loss.sum(), network.weight)[0] for loss in (value, distance)
            )
            if step % _SVD_INTERVAL == 0:
                torch.testing.assert_close(value, distance, rtol=1e-3, atol=1e-3)
                torch.testing.assert_close(gradient, expected, rtol=1e-2, atol=2e-2)
            else:
                assert (value > distance).all()
            with torch.no_grad():
                noise = torch.randn(network.weight.shape, generator=generator)
                network.weight.add_(0.05 * noise)
        with torch.no_grad():  # without gradients the loss itself is computed
            evaluated = penalty(network(points), None, network)
        torch.testing.assert_close(evaluated, exact(network(points)), rtol=1e-3, atol=1e-3)
        assert penalty.step == 2 * _SVD_INTERVAL


class TestPersistentEntropy:
    def test_anisotropy_within_classes_falls_most_with_selected_bars(self, cone):
        X, y, head = cone
        options = {"validation_fraction": None, "random_state": 0}

        def within(**parameters):
            Z = TopologicalEntropyAdapter(head, **parameters, **options).fit(X, y).transform(X)
            return np.mean([anisotropy(Z[y == label], 1, center=True) for label in (0, 1)])

        selected, everything, control = within(), within(bars="all"), within(lam=0.0)
        assert selected < everything < control
        assert selected < 0.85 * control

    @pytest.mark.parametrize(("batch_size", "warns"), [(60, True), (64, True), (100, False)])
    def test_a_batch_size_that_skips_most_classes_is_warned_of(self, batch_size, warns):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(400, 4)), np.arange(400) % 20
        adapter = TopologicalEntropyAdapter(
            batch_size=batch_size, max_epochs=1, validation_fraction=None
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapter.fit(X, y)
        found = [str(each.message) for each in caught if "hardly acts" in str(each.message)]
        assert len(found) == warns
        if warns:
            assert "20 of the 20 classes" in found[0]
            assert f"a batch_size larger than {batch_size}" in found[0]

    def test_evaluation_uses_a_bounded_number_of_rows(self, monkeypatch):
        monkeypatch.setattr(_topological_entropy, "_MAX_VALIDATION_ROWS", 20)
        loss = PersistentEntropyLoss("all")
        penalty = _topological_entropy._ClasswiseEntropy(loss)
        points, labels = torch.randn(1, 61, 4), torch.arange(61) % 2
        network = network_and_points()[0]
        torch.testing.assert_close(penalty(points, labels, network), loss(points, labels))
        with torch.no_grad():
            evaluated = penalty(points, labels, network)
        torch.testing.assert_close(evaluated, loss(points[:, ::4], labels[::4]))

    def test_entropy_is_per_class_for_classifiers_and_of_all_points_for_regressors(self):
        X, values = make_regression(64, 5, random_state=0)
        y = (values > 0).astype(int)
        loss = PersistentEntropyLoss("all")
        points = torch.tensor(X).float()
        options = {"bars": "all", "lr": 1e-12, "max_epochs": 1, "validation_fraction": None}
        losses = {}
        for name, head, targets, labels in (
            ("classes", LinearHead(np.zeros((2, 5)), [0, 0], [0, 1]), y, torch.tensor(y)),
            ("values", LinearHead.from_estimator(Ridge().fit(X, values)), values, None),
        ):
            adapter = TopologicalEntropyAdapter(head, **options).fit(X, targets)
            share = np.mean((head.predict(X) - values) ** 2) / np.var(values)
            task = np.log(2) if name == "classes" else share
            losses[name] = adapter.history_[0]["train_loss"]
            assert losses[name] == pytest.approx(task + float(loss(points, labels)), rel=1e-4)
        assert losses["classes"] != losses["values"]

"""The adapters that are trained with a penalty, also with a user-defined one."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression, Ridge

from isoadapt import LinearHead, PenaltyAdapter, adapters
from isoadapt.adapters._engine._coordinates import raw_coordinates, whitened_coordinates
from isoadapt.adapters._spectrum_control import _SVD_INTERVAL, _ExactSpectrum, _second_moment_root
from isoadapt.geometry import Moments
from isoadapt.losses import CosRegLoss, PersistentEntropyLoss, SpectrumControlLoss
from tests.adapters.examples import PENALISED, cone_with_head, network_and_points
from tests.refusals import refusals


@pytest.fixture(scope="module")
def cone():
    return cone_with_head()


@pytest.mark.parametrize("adapter", PENALISED)
class TestAllPenalised:
    def test_starts_as_the_identity(self, adapter, cone):
        X, y, head = cone
        for coordinates in ("whitened", "raw"):
            options = {"coordinates": coordinates, "max_epochs": 1}
            fitted = adapter(head, lr=1e-12, **options).fit(X[:100], y[:100])
            np.testing.assert_allclose(fitted.transform(X), X, atol=1e-4)

    def test_divergence_and_an_infinite_loss_are_errors(self, adapter, cone):
        X, y, head = cone
        with pytest.raises(ValueError, match=r"training diverged with lr=3e\+38"):
            adapter(head, lr=3e38, max_epochs=2).fit(X[:100], y[:100])
        weight = {"alpha": 1e-300} if adapter is adapters.IsotropyLayer else {"lam": 1e300}
        with pytest.raises(ValueError, match=r"training diverged"):
            adapter(head, **weight, max_epochs=2, random_state=0).fit(X[:100], y[:100])


test_parameters_that_exclude_each_other_are_refused = refusals(
    (lambda _: adapters.CosRegAdapter(None, head_training="joint"), "head_training='joint'"),
    (lambda head: adapters.CosRegAdapter(head, device="nowhere"), "device='nowhere'"),
    (lambda head: adapters.IsotropyLayer(head, batch_size=3), "batches of 4 rows"),
    (lambda head: adapters.IStarAdapter(head, batch_size=2, zeta=0.0), "batches of 3 rows"),
    call=lambda make, cone: make(cone[2]).fit(*cone[:2]),
)


class TestCoordinates:
    def test_raw_coordinates_only_change_the_unit(self):
        X = np.random.default_rng(0).normal(size=(7, 3)) * 50 + 20
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


class TestSpectrumControl:
    def test_distance_to_the_target_falls_tenfold(self, cone):
        X, y, head = cone
        c1 = float(np.linalg.svd(X, compute_uv=False)[0] / np.sqrt(len(X)))
        distance = SpectrumControlLoss("exponential", c1=c1)
        options = {"max_epochs": 120, "batch_size": 300, "validation_fraction": None}
        options |= {"decay": "exponential", "random_state": 0}
        adapter = adapters.SpectrumControlAdapter(head, **options).fit(X, y)
        Z = torch.tensor(adapter.transform(X))
        assert float(distance(Z)) < float(distance(torch.tensor(X))) / 10

    def test_bound_is_above_the_loss_and_tight_where_it_is_renewed(self):
        network, points = network_and_points(members=2)
        root = torch.tensor(_second_moment_root(Moments().update(points))).float()
        exact = SpectrumControlLoss("polynomial", c1=3.0)
        loss = SpectrumControlLoss("polynomial", c1=3.0, per_row=False)
        penalty = _ExactSpectrum(loss, root[None], loss.target(5)[None])
        generator = torch.Generator().manual_seed(0)
        for step in range(2 * _SVD_INTERVAL):
            value = penalty(network(points).points, None, network)
            distance = exact(network(points).points)
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
            evaluated = penalty(network(points).points, None, network)
        torch.testing.assert_close(evaluated, exact(network(points).points), rtol=1e-3, atol=1e-3)
        assert penalty.step == 2 * _SVD_INTERVAL


class TestPersistentEntropy:
    @pytest.mark.parametrize(("batch_size", "warns"), [(64, True), (100, False)])
    def test_a_batch_size_that_skips_most_classes_is_warned_of(self, batch_size, warns):
        X, y = np.random.default_rng(0).normal(size=(400, 4)), np.arange(400) % 20
        head = LinearHead(np.eye(20, 4), np.zeros(20), range(20))
        options = {"max_epochs": 1, "validation_fraction": None}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapters.TopologicalEntropyAdapter(head, batch_size=batch_size, **options).fit(X, y)
        assert ["20 of the 20 classes" in str(each.message) for each in caught] == [True] * warns

    def test_entropy_is_per_class_for_classifiers_and_of_all_points_for_regressors(self):
        X, values = make_regression(64, 5, random_state=0)
        y = (values > 0).astype(int)
        ridge = LinearHead.from_estimator(Ridge().fit(X, values))
        classifier = LinearHead(np.zeros((2, 5)), [0, 0], [0, 1])
        error = np.mean((ridge.predict(X) - values) ** 2) / np.var(values)
        options = {"bars": "all", "lr": 1e-12, "max_epochs": 1, "validation_fraction": None}
        for head, targets, task, labels in (
            (classifier, y, np.log(2), torch.tensor(y)),
            (ridge, values, error, None),
        ):
            adapter = adapters.TopologicalEntropyAdapter(head, **options).fit(X, targets)
            entropy = float(PersistentEntropyLoss("all")(torch.tensor(X).float(), labels))
            assert adapter.history_[0]["train_loss"] == pytest.approx(task + entropy, rel=1e-4)


X, Y = make_classification(200, 8, n_informative=4, random_state=0)
X = X * [9, 3, 1, 1, 1, 1, 0.5, 0.5]
HEAD = LinearHead.from_estimator(LogisticRegression().fit(X, Y))
QUICK = {"max_epochs": 2, "random_state": 0}
ALL_ROWS = {"validation_fraction": None, **QUICK}


class CosRegOfMembers(CosRegLoss):
    member_axis = True


def test_loss_of_the_library_gives_the_result_of_its_adapter():
    shared = {"coordinates": "raw", "ridge": 0.0, "lr_schedule": "constant", **QUICK}
    theirs = adapters.CosRegAdapter(HEAD, lam=2.0, **QUICK).fit(X, Y)
    for loss in (CosRegLoss(), CosRegOfMembers()):
        ours = PenaltyAdapter(loss, HEAD, lam=2.0, **shared).fit(X, Y)
        np.testing.assert_allclose(ours.map_.matrix, theirs.map_.matrix, rtol=1e-6)


def test_penalty_gets_the_classes_or_the_values_in_their_own_units():
    values = np.c_[1000 + 50 * X[:, 0], X[:, 1] - 4]
    for head, y in ((HEAD, Y), ("ridge", values)):
        recorded = []

        def penalty(Z, labels, recorded=recorded):
            recorded.append(labels.clone())
            return Z.sum() * 0

        PenaltyAdapter(penalty, head, **ALL_ROWS).fit(X, y)
        epoch = np.concatenate(recorded[: len(recorded) // QUICK["max_epochs"]])
        assert epoch.dtype.kind == ("i" if head is HEAD else "f")
        expected = np.sort(y, axis=0)
        np.testing.assert_allclose(np.sort(epoch, axis=0), expected, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("coordinates", ["whitened", "raw"])
def test_prior_cov_is_the_covariance_of_all_adapted_rows(coordinates):
    recorded = []

    def penalty(Z, prior_cov):
        recorded.append(prior_cov.clone())
        return Z.sum() * 0

    adapter = PenaltyAdapter(penalty, HEAD, coordinates=coordinates, lr=1e-9, **ALL_ROWS).fit(X, Y)
    ratio = np.cov(adapter.transform(X).T) / recorded[-1].numpy()
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-2)


test_invalid_return_values_are_refused = refusals(
    (lambda Z: Z.mean(1), "penalty=.*one number"),
    (lambda Z: Z.detach().var(), "penalty=.*without a gradient"),
    (lambda Z, labels: Z[labels == 7].mean(), "penalty=.*must be finite"),
    call=lambda penalty: PenaltyAdapter(penalty, HEAD, **ALL_ROWS).fit(X, Y),
)

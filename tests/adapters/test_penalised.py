"""The adapters that are trained with a penalty."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.covariance import OAS
from sklearn.datasets import make_classification, make_regression
from sklearn.linear_model import LogisticRegression, Ridge

from isoadapt import (
    CosRegAdapter,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.adapters import Affine, _istar, _topological_entropy
from isoadapt.adapters._istar import (
    _STEPS,
    _ExactShrinkage,
    _SampledShrinkage,
    _steps_between,
)
from isoadapt.adapters._row_space import row_space
from isoadapt.adapters._spectrum_control import _SVD_INTERVAL, _ExactSpectrum, _second_moment_root
from isoadapt.adapters._training._batches import Batches, Rows
from isoadapt.adapters._training._coordinates import (
    Coordinates,
    raw_coordinates,
    whitened_coordinates,
)
from isoadapt.adapters._training._networks import LinearNetwork, MLPNetwork
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss, PersistentEntropyLoss, SpectrumControlLoss
from isoadapt.metrics import anisotropy, isoscore, mean_cosine_similarity

PENALISED = [IsotropyLayer, IStarAdapter, CosRegAdapter, SpectrumControlAdapter]
PENALISED += [TopologicalEntropyAdapter]


@pytest.fixture(scope="module")
def cone():
    """Embeddings with one dominant direction, their labels and a head."""
    X, y = make_classification(600, 16, n_informative=6, n_redundant=0, random_state=0)
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]
    X = (X * np.geomspace(1, 0.03, 16)) @ rotation + np.outer(y * 6.0 + 2, rotation[0])
    return X, y, LinearHead.from_estimator(LogisticRegression(max_iter=5000).fit(X, y))


def network_and_points(kind=LinearNetwork, d=5, n=60, members=1):
    """A network with changed parameters, and input points."""
    rng = np.random.default_rng(0)
    start = Affine(np.eye(d) + 0.3 * rng.normal(size=(d, d)), rng.normal(size=d))
    generators = [torch.Generator().manual_seed(0) for _ in range(members)]
    network = kind([start] * members, *([generators] if kind is MLPNetwork else []))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator()))
    return network, torch.tensor(rng.normal(size=(n, d)) * np.arange(1, d + 1) + 1).float()


def covariance_root(points):
    """Root of the covariance of the points (1, d, d), as the penalty expects it."""
    eigenvalues, vectors = torch.linalg.eigh(Moments().update(points).covariance())
    return (vectors * eigenvalues.sqrt())[None].float()


def single_batch(points):
    """Batches that consist of all points."""
    return Batches(Rows(points, None), torch.arange(len(points)), len(points), [])


@pytest.mark.parametrize("adapter", PENALISED)
class TestAllPenalised:
    @pytest.mark.parametrize("network", ["linear", "mlp"])
    def test_starts_as_the_identity(self, adapter, network, cone):
        X, y, head = cone
        for coordinates in ("raw", "whitened"):
            fitted = adapter(
                head, network=network, coordinates=coordinates, lr=1e-12, max_epochs=1
            ).fit(X, y)
            np.testing.assert_allclose(fitted.transform(X), X, atol=1e-4)

    def test_divergence_is_an_error(self, adapter, cone):
        X, y, head = cone
        with pytest.raises(ValueError, match=r"training diverged with lr=3e\+38.*smaller lr"):
            adapter(head, lr=3e38, max_epochs=2).fit(X, y)

    def test_interrupt_leaves_the_estimator_unchanged(self, adapter, cone, monkeypatch):
        X, y, head = cone
        fitted = adapter(head, max_epochs=1, random_state=0).fit(X, y)
        before = dict(vars(fitted))

        def interrupt(*args, **kwargs):
            torch.set_grad_enabled(False)  # as if it came before the end of a torch.no_grad()
            raise KeyboardInterrupt

        monkeypatch.setattr(
            "isoadapt.adapters._training._loop.EpochEvaluator.on_epoch_end", interrupt
        )
        try:
            with pytest.raises(KeyboardInterrupt):
                fitted.fit(X, y)
            assert vars(fitted) == before
            assert torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)

    def test_very_small_classes_duplicates_and_an_absent_class(self, adapter):
        rng = np.random.default_rng(0)
        y = np.repeat([0, 1, 2, 3, 4], [60, 1, 2, 4, 5])
        X = rng.normal(size=(72, 6)) + y[:, None]
        X[5:15] = X[5]  # duplicates
        head = LinearHead(rng.normal(size=(6, 6)), np.zeros(6), range(6))  # no row has label 5
        fitted = adapter(head, batch_size=16, max_epochs=3, random_state=0).fit(X, y)
        assert np.isfinite(fitted.transform(X)).all()

    @pytest.mark.filterwarnings("ignore:this fit harms the task")
    def test_many_rows(self, adapter):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40_000, 4)).astype(np.float32) * [9, 1, 1, 1]
        y = (X[:, 0] > 0).astype(int)
        fitted = adapter(batch_size=4096, max_epochs=1, validation_fraction=0.05).fit(X, y)
        assert np.isfinite(fitted.transform(X)).all()


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


class TestIStar:
    def test_sign_of_lam_raises_or_lowers_isoscore(self, cone):
        X, y, head = cone
        options = {"validation_fraction": None, "random_state": 0, "max_epochs": 15}
        low, control, high = (
            isoscore(IStarAdapter(head, lam=lam, **options).fit(X, y).transform(X))
            for lam in (-5.0, 0.0, 5.0)
        )
        assert low < control / 2 < control < high / 4

    def test_adapters_agree_without_a_penalty(self, cone):
        X, y, head = cone
        options = {"coordinates": "whitened", "validation_fraction": None, "random_state": 0}
        options |= {"ridge": 0.0, "lr": 1e-3, "lr_schedule": "constant"}
        expected = IStarAdapter(head, lam=0.0, **options).fit(X, y).transform(X)
        for other in (CosRegAdapter, TopologicalEntropyAdapter):
            Z = other(head, lam=0.0, **options).fit(X, y).transform(X)
            np.testing.assert_allclose(Z, expected, atol=1e-5)
        layer = IsotropyLayer(head, alpha=1.0, balance=None, **options).fit(X, y)
        np.testing.assert_allclose(layer.transform(X), expected, atol=1e-5)

    @pytest.mark.parametrize("members", [1, 3])
    def test_exact_shrinkage_is_the_covariance_of_all_outputs(self, members):
        network, points = network_and_points(members=members)
        outputs = network(points)
        loss = IsoScoreLoss(0.4, "linear")
        penalty = _ExactShrinkage(loss, covariance_root(points), [1], detached=False)
        expected = torch.stack([loss(Z[:9], torch.cov(Z.T)) for Z in outputs])
        torch.testing.assert_close(penalty(outputs[:, :9], None, network), expected)

    @pytest.mark.parametrize("own_rows", [False, True])
    def test_validation_by_the_covariance_of_its_rows_equals_that_of_adapted_rows(self, own_rows):
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
    def test_fits_are_those_that_adapt_the_validation_rows(
        self, cone, monkeypatch, coordinates, with_head
    ):
        X, y, head = cone
        adapter = IStarAdapter(
            head if with_head else None, coordinates=coordinates, max_epochs=4, random_state=0
        )
        by_covariance = clone(adapter).fit(X, y)
        monkeypatch.setattr(_ExactShrinkage, "on_validation", lambda self, network: None)
        adapter.fit(X, y)
        np.testing.assert_array_equal(by_covariance.transform(X), adapter.transform(X))
        for ours, theirs in zip(by_covariance.history_, adapter.history_, strict=True):
            assert ours["valid_score"] == pytest.approx(theirs["valid_score"], abs=1e-5)
            assert ours["valid_cost"] == pytest.approx(theirs["valid_cost"], abs=1e-5)

    def test_exact_shrinkage_carries_gradient_and_detached_does_not(self):
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

    def test_squared_norm_is_estimated_from_the_last_exact_one(self):
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
    def test_estimates_are_used_for_fewer_steps_with_large_rates_and_zeta(self, zeta, lr, steps):
        assert _steps_between(zeta, lr) == steps

    @pytest.mark.parametrize("zeta", [0.2, 0.4, 0.6, 0.8, 1.0])
    @pytest.mark.parametrize("lr", ["auto", 0.002, 0.03])
    def test_isotropy_is_that_of_exact_steps(self, cone, monkeypatch, zeta, lr):
        X, y, head = cone
        settings = {"lam": 5.0, "zeta": zeta, "lr": lr, "batch_size": 16, "patience": None}
        scores = []
        for most_steps in (_STEPS, 1):
            monkeypatch.setattr(_istar, "_STEPS", most_steps)
            fits = [
                IStarAdapter(head, **settings, max_epochs=4, random_state=s).fit(X, y)
                for s in range(3)
            ]
            scores.append(np.mean([isoscore(fitted.transform(X)) for fitted in fits]))
        assert scores[0] == pytest.approx(scores[1], abs=0.03)

    def test_sampled_shrinkage_uses_a_bounded_number_of_rows(self):
        network, points = network_and_points(MLPNetwork, members=2)
        penalty = _SampledShrinkage(IsoScoreLoss(0.4, "linear"), 25)
        with torch.no_grad():
            penalty.refresh(network, single_batch(points))
            sampled = network(points[::3])
        expected = torch.stack([torch.cov(Z.T) for Z in sampled])
        torch.testing.assert_close(penalty.prior_cov, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("options", [{"network": "mlp"}, {"shrinkage": "detached"}])
    def test_other_networks_and_shrinkages_raise_isoscore(self, cone, options):
        X, y, head = cone
        fitted = IStarAdapter(head, lam=5.0, random_state=0, **options).fit(X, y)
        assert isoscore(fitted.transform(X)) > 3 * isoscore(X)

    def test_exact_solver_equals_that_of_the_isotropy_layer(self, cone):
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
    def test_parameters_without_exact_solution_are_refused(self, cone, options, message):
        X, y, head = cone
        with pytest.raises(ValueError, match=message):
            IStarAdapter(head, solver="exact", **options).fit(X, y)

    def test_bias_correction_needs_four_rows(self, cone):
        X, y, head = cone
        message = r"batch_size=3 .* at least 4 rows in a batch \(3 with bias_corrected=False\), so"
        with pytest.raises(ValueError, match=message):
            IStarAdapter(head, bias_corrected=True, batch_size=3).fit(X, y)
        message = r"batch_size=2 .* at least 3 rows in a batch \(2 with zeta above 0\), so"
        with pytest.raises(ValueError, match=message):
            IStarAdapter(head, zeta=0, batch_size=2).fit(X, y)
        options = {"batch_size": 2, "validation_fraction": None, "max_epochs": 1}
        for without_a_limit in ({}, {"lam": 0.0, "zeta": 0.0}):
            IStarAdapter(head, **without_a_limit, **options).fit(X[:50], y[:50])
        IsotropyLayer(head, alpha=1.0, **options).fit(X[:50], y[:50])

    @pytest.mark.parametrize("adapter", [IStarAdapter, IsotropyLayer])
    def test_bias_correction_warns_of_batches_without_a_penalty(self, adapter):
        X = np.random.default_rng(0).normal(size=(9, 3)) * [9, 1, 1]
        options = {"validation_fraction": None, "max_epochs": 2, "batch_size": 4}
        with pytest.warns(UserWarning, match="batches of 3 with batch_size=4"):
            fitted = adapter(None, bias_corrected=True, **options).fit(X)
        assert adapter is IStarAdapter or [row["train_loss"] for row in fitted.history_] == [0, 0]


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
        adapter = SpectrumControlAdapter(
            head,
            decay=decay,
            network=network,
            max_epochs=120,
            validation_fraction=None,
            random_state=0,
        ).fit(X, y)
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
        penalty = _topological_entropy._ClasswiseEntropy(loss, by_class=True)
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

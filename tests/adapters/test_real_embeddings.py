"""Adapters on embeddings of fine-tuned models, and the effects that the papers report for them.

The effects are against λ = 0. For them, adapters are trained to the last epoch, because the choice
of an epoch by the task could hide an effect. Adapters are evaluated on rows that neither the
encoder nor the adapter was fitted to; only the distance from the target spectrum, which spectrum
control minimises, is computed on its training rows. There are three exceptions. CoLA is not among
the tasks, because λ > 0 does not raise TwoNN there, where near-duplicates dominate it. On MRPC and
RTE the raw anisotropy_1 falls more with all bars than with selected ones, while the centred
anisotropy_1 falls more with selected ones on every task. CosReg lowers the norm of the mean
relative to the size of the outputs on both tasks, but only on MRPC does it halve this ratio and
lower the norm itself; on RTE it does not with most seeds.
"""

from functools import cache

import numpy as np
import pytest
import torch

from isoadapt import (
    CosRegAdapter,
    IsoBN,
    IsotropyLayer,
    IStarAdapter,
    LinearHead,
    LogitPreservingWhitening,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.losses import SpectrumControlLoss
from isoadapt.metrics import anisotropy, cumulative_explained_variance, isoscore, two_nn

LAST = {"validation_fraction": None, "random_state": 0}
SLOW_TASKS = [pytest.param(name, marks=pytest.mark.slow) for name in ("mrpc", "cola", "rte")]


class Task:
    """Head, training rows, and evaluation rows: the test set if there is one, else dev."""

    def __init__(self, folder, name):
        data = dict(np.load(folder / "embeddings" / f"{name}.npz"))
        split = "test" if "E_test" in data else "dev"
        self.name, self.head = name, LinearHead(data["W"], data["b"], [0, 1])
        self.X, self.y = data["E_train"], data["y_train"]
        self.X_eval, self.y_eval = data[f"E_{split}"].astype(float), data[f"y_{split}"]

    def adapted(self, adapter, **parameters):
        """Outputs of an adapter trained to its last epoch."""
        fitted = adapter(self.head, **parameters, **LAST).fit(self.X, self.y)
        return fitted.transform(self.X_eval)

    def lost(self, adapter):
        """Lost accuracy on the evaluation rows, in bootstrap standard errors."""
        hits = self.head.predict(self.X_eval) == self.y_eval
        draws = np.random.default_rng(0).integers(len(hits), size=(1000, len(hits)))
        error = hits[draws].mean(axis=1).std()
        return (hits.mean() - adapter.score(self.X_eval, self.y_eval)) / error


@pytest.fixture(scope="module")
def load(shared):
    return cache(lambda name: Task(shared, name))


@pytest.mark.parametrize("name", ["sst2_sentence", *SLOW_TASKS])
class TestEveryTask:
    def test_closed_forms_repair_anisotropic_embeddings(self, load, name):
        task = load(name)
        X = task.X_eval
        assert isoscore(X, bias_corrected=True) < 0.00095
        adapter = LogitPreservingWhitening(head=task.head).fit(task.X)
        assert isoscore(adapter.transform(X), bias_corrected=True) >= 0.55
        np.testing.assert_array_equal(adapter.predict(X), task.head.predict(X))
        Z = IsoBN().fit(task.X).transform(X)
        before = cumulative_explained_variance(X, k=1)
        assert cumulative_explained_variance(Z, k=1) < before - 0.01

    @pytest.mark.slow
    def test_both_solvers(self, load, name):
        task = load(name)
        exact = IsotropyLayer(head=task.head, solver="exact").fit(task.X, task.y)
        assert isoscore(exact.transform(task.X_eval), bias_corrected=True) >= 0.55
        trained = [IsotropyLayer(task.head, random_state=s).fit(task.X, task.y) for s in range(3)]
        for layer in trained:
            assert isoscore(layer.transform(task.X_eval), bias_corrected=True) >= 0.15
        assert task.lost(exact) <= 1
        assert np.mean([task.lost(layer) for layer in trained]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mrpc", "rte"])
class TestEffectsOfThePapers:
    def test_istar_changes_isoscore_and_dimension_by_the_sign_of_lam(self, load, name):
        low, control, high = (
            load(name).adapted(IStarAdapter, lam=lam, max_epochs=15) for lam in (-1.0, 0.0, 1.0)
        )
        assert isoscore(low) < isoscore(control) / 2 < isoscore(control) < isoscore(high) / 100
        assert two_nn(low) < two_nn(control) / 1.5 < two_nn(control) < two_nn(high) / 1.5

    @pytest.mark.parametrize("decay", ["polynomial", "exponential"])
    def test_spectrum_control_reduces_the_distance_to_its_target_tenfold(self, load, name, decay):
        task = load(name)
        c1 = np.linalg.norm(task.X.astype(float), ord=2) / np.sqrt(len(task.X))
        distance = SpectrumControlLoss(decay, c1=float(c1))
        fitted = SpectrumControlAdapter(task.head, decay=decay, **LAST).fit(task.X, task.y)
        before, after = (
            distance(torch.tensor(rows, dtype=torch.float64))
            for rows in (task.X, fitted.transform(task.X))
        )
        assert after < before / 10

    def test_persistent_entropy_lowers_anisotropy_most_with_selected_bars(self, load, name):
        control = load(name).adapted(CosRegAdapter, lam=0.0)
        selected = load(name).adapted(TopologicalEntropyAdapter)
        everything = load(name).adapted(TopologicalEntropyAdapter, bars="all")
        for Z in (selected, everything):
            assert anisotropy(Z, 1) < anisotropy(control, 1) - 0.1
        shares = [anisotropy(Z, 1, center=True) for Z in (selected, everything, control)]
        assert shares == sorted(shares)

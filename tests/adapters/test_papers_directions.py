"""The effect that the papers report for each method, on fine-tuned embeddings and against λ = 0.

Adapters are trained to the last epoch, because the choice of an epoch by the task could hide an
effect. They are evaluated on rows that neither the encoder nor the adapter was fitted to; only the
distance from the target spectrum, which spectrum control minimises, is computed on its training
rows. There are three exceptions. CoLA is not among the tasks, because λ > 0 does not raise TwoNN
there, where near-duplicates dominate it. On MRPC and RTE the raw anisotropy_1 falls more with all
bars than with selected ones, while the centred anisotropy_1 falls more with selected ones on every
task. CosReg lowers the norm of the mean relative to the size of the outputs on both tasks, but only
on MRPC does it halve this ratio and lower the norm itself; on RTE it does not with most seeds.
"""

import numpy as np
import pytest
import torch

from isoadapt import (
    CosRegAdapter,
    IsoBN,
    IStarAdapter,
    LinearHead,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt.losses import SpectrumControlLoss
from isoadapt.metrics import anisotropy, cumulative_explained_variance, isoscore, two_nn

pytestmark = pytest.mark.slow


class Task:
    def __init__(self, path):
        self.name = path.stem
        data = dict(np.load(path))
        split = "test" if "E_test" in data else "dev"
        self.head = LinearHead(data["W"], data["b"], [0, 1])
        self.X, self.y = data["E_train"], data["y_train"]
        self.X_eval = data[f"E_{split}"].astype(float)

    def adapted(self, adapter, **parameters):
        """Outputs of an adapter trained to its last epoch."""
        options = {"validation_fraction": None, "random_state": 0}
        fitted = adapter(self.head, **parameters, **options).fit(self.X, self.y)
        return fitted.transform(self.X_eval)


@pytest.fixture(scope="module", params=["mrpc", "rte"])
def task(request, shared):
    return Task(shared / "embeddings" / f"{request.param}.npz")


@pytest.fixture(scope="module")
def raw_control(task):
    return task.adapted(CosRegAdapter, lam=0.0)


def test_istar_changes_isoscore_and_dimension_by_the_sign_of_lam(task):
    low, control, high = (
        task.adapted(IStarAdapter, lam=lam, max_epochs=15) for lam in (-1.0, 0.0, 1.0)
    )
    assert isoscore(low) < isoscore(control) / 2 < isoscore(control) < isoscore(high) / 100
    assert two_nn(low) < two_nn(control) / 1.5 < two_nn(control) < two_nn(high) / 1.5


def test_cosreg_lowers_the_mean_but_does_not_raise_isoscore(task, raw_control):
    Z = task.adapted(CosRegAdapter)
    assert relative_mean(Z) < relative_mean(raw_control)
    if task.name == "mrpc":
        assert np.linalg.norm(Z.mean(0)) < np.linalg.norm(raw_control.mean(0))
        assert relative_mean(Z) < relative_mean(raw_control) / 2
    assert max(isoscore(Z), isoscore(raw_control)) < 1e-3  # both are far from isotropic


@pytest.mark.parametrize("decay", ["polynomial", "exponential"])
def test_spectrum_control_reduces_the_distance_to_its_target_tenfold(task, decay):
    c1 = np.linalg.norm(task.X.astype(float), ord=2) / np.sqrt(len(task.X))
    distance = SpectrumControlLoss(decay, c1=float(c1))
    fitted = SpectrumControlAdapter(
        task.head, decay=decay, validation_fraction=None, random_state=0
    ).fit(task.X, task.y)
    before, after = (
        distance(torch.tensor(rows, dtype=torch.float64))
        for rows in (task.X, fitted.transform(task.X))
    )
    assert after < before / 10


def test_persistent_entropy_lowers_anisotropy_most_with_selected_bars(task, raw_control):
    selected = task.adapted(TopologicalEntropyAdapter)
    everything = task.adapted(TopologicalEntropyAdapter, bars="all")
    for Z in (selected, everything):
        assert anisotropy(Z, 1) < anisotropy(raw_control, 1) - 0.1
    shares = [anisotropy(Z, 1, center=True) for Z in (selected, everything, raw_control)]
    assert shares == sorted(shares)


def test_isobn_lowers_ev1(task):
    Z = IsoBN().fit(task.X).transform(task.X_eval)
    before = cumulative_explained_variance(task.X_eval, k=1)
    assert cumulative_explained_variance(Z, k=1) < before - 0.01


def relative_mean(Z):
    return np.linalg.norm(Z.mean(0)) / np.sqrt((Z**2).sum(1).mean())

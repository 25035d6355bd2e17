"""What runs on a GPU, on a pretended one: equal to the CPU, and without waiting for the device."""

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification

from isoadapt import (
    CosRegAdapter,
    FlowAdapter,
    IsotropyLayer,
    IStarAdapter,
    PenaltyAdapter,
    SpectrumControlAdapter,
    TopologicalEntropyAdapter,
)
from isoadapt._utils.devices import resolve_device
from isoadapt.adapters._training._loop import AdapterNet
from isoadapt.model_selection import AdapterSearchCV
from tests.pretended_cuda import UNAVAILABLE, pretended_cuda

pytestmark = [
    pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE),
    pytest.mark.usefixtures("fixed_penalty"),
]

X, Y = make_classification(200, 8, n_informative=6, random_state=0)
WEIGHTS, GROUPS = np.arange(200) % 3 + 1.0, np.arange(200) // 2
VALUES = np.column_stack([X @ np.arange(8), X[:, 0]])
SHORT = {"max_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def cuda():
    """The record of a pretended GPU."""
    with pretended_cuda() as record:
        yield record


class CountedPenalty(torch.nn.Module):
    """A user's penalty with a parameter and a buffer, which lie on the CPU when it is made."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, Z, labels, prior_cov):
        self.count += 1
        within = torch.where(labels[:, None] == 1, Z, 0).var(0) * self.scale
        return within.sum() + prior_cov.trace()


def classifies(adapter):
    return adapter, Y


FITS = {
    "layer": IsotropyLayer(**SHORT),
    "layer, cumulative": IsotropyLayer(balance="cumulative", lr_schedule="constant", **SHORT),
    "layer, joint mlp": IsotropyLayer(network="mlp", head_training="joint", **SHORT),
    "layer, alternating": IsotropyLayer(head_training="alternating", **SHORT),
    "layer, raw": IsotropyLayer(coordinates="raw", ridge=0.0, **SHORT),
    "layer, no validation": IsotropyLayer(validation_fraction=None, **SHORT),
    "layer, exact": IsotropyLayer(solver="exact", max_epochs=2),
    "layer, no head": IsotropyLayer(None, **SHORT),
    "layer, regression": IsotropyLayer("ridge", **SHORT),
    "istar": IStarAdapter(**SHORT),
    "istar, detached": IStarAdapter(shrinkage="detached", zeta=0.8, **SHORT),
    "istar, negative": IStarAdapter(lam=-1, zeta=0.0, **SHORT),
    "istar, mlp": IStarAdapter(network="mlp", **SHORT),
    "istar, corrected": IStarAdapter(bias_corrected=True, **SHORT),
    "cosreg": CosRegAdapter(weight_decay=0.1, **SHORT),
    "spectrum": SpectrumControlAdapter(**SHORT),
    "spectrum, mlp": SpectrumControlAdapter(network="mlp", decay="exponential", **SHORT),
    "entropy": TopologicalEntropyAdapter(**SHORT),
    "penalty": PenaltyAdapter(torch.var, **SHORT),
    "penalty, module": PenaltyAdapter(CountedPenalty(), lam=0.1, **SHORT),
    "flow": FlowAdapter(n_blocks=2, hidden=8, **SHORT),
    "flow, head": FlowAdapter("logistic", alpha=0.5, n_blocks=2, hidden=8, **SHORT),
}
ON_HOST = {"entropy": 3}  # points and labels to the host, where the trees are found, and back


def fitted(adapter, name, device):
    y = VALUES if "regression" in name else Y
    options = {}
    if not isinstance(adapter, FlowAdapter):
        options = {"sample_weight": WEIGHTS, "groups": GROUPS} if len(name) % 2 else {}
    return clone(adapter).set_params(device=device).fit(X, y, **options)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_equals_that_on_the_cpu_and_its_steps_do_not_wait(name, cuda, monkeypatch):
    adapter, events, step = FITS[name], [], AdapterNet.train_step
    expected = fitted(adapter, name, "cpu")

    def counted(self, *arguments, **options):
        before = cuda.copy()
        found = step(self, *arguments, **options)
        events.append(cuda - before)
        return found

    monkeypatch.setattr(AdapterNet, "train_step", counted)
    found = fitted(adapter, name, "auto")
    scale = np.abs(expected.transform(X)).max()
    np.testing.assert_allclose(found.transform(X), expected.transform(X), 1e-4, 1e-5 * scale)
    if expected.head_ is not None:
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    if "exact" not in name:
        outside = [{key: n for key, n in each.items() if key[0] != "kernel"} for each in events]
        assert max(sum(each.values()) for each in outside) <= ON_HOST.get(name, 0), outside


def test_a_search_equals_that_on_the_cpu(cuda):
    grid = {"lam": [0.1, 1.0], "zeta": [0.2, 0.8]}
    searches = [
        AdapterSearchCV(IStarAdapter(device=device, **SHORT), grid, cv=2).fit(X, Y)
        for device in ("cpu", "cuda")
    ]
    expected, found = (search.cv_results_["mean_test_score"] for search in searches)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_was_fitted_on_a_gpu_is_used_without_one(tmp_path):
    with pretended_cuda():
        adapter = IsotropyLayer(device="cuda", **SHORT).fit(X, Y)
        expected = adapter.transform(X)
        joblib.dump(adapter, tmp_path / "adapter.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "adapter.joblib").transform(X), expected)


def test_auto_is_the_device_that_cuda_is(cuda):
    assert resolve_device("auto") == resolve_device("cuda")

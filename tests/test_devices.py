"""What runs on a GPU, on a pretended one: equal to the CPU, and without waiting for the device."""

from collections import Counter
from contextlib import contextmanager
from unittest.mock import patch

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from isoadapt import AdaptedEncoder, IsotropyLayer, TransformerEncoder, adapters, losses
from isoadapt.adapters._engine._loop import AdapterNet
from isoadapt.encoders import EmbeddingCache, _opened, load_checkpoint
from isoadapt.finetune import IsotropyTrainer, add_isobn
from isoadapt.geometry import Moments, persistence_bars
from isoadapt.interop import export_onnx, merge_into_checkpoint, to_sentence_transformer
from isoadapt.model_selection import AdapterSearchCV
from tests.finetune.runs import make_rows, quiet_arguments
from tests.pretended_cuda import UNAVAILABLE, pretended_cuda
from tests.tiny_models import TEXTS, make_model

pytestmark = [
    pytest.mark.skipif(bool(UNAVAILABLE), reason=UNAVAILABLE),
    pytest.mark.usefixtures("fixed_penalty"),
    pytest.mark.filterwarnings("ignore:R² of the teacher's vectors"),
]

X, Y = make_classification(200, 8, n_informative=6, random_state=0)
WEIGHTS, GROUPS = np.arange(200) % 3 + 1.0, np.arange(200) // 2
VALUES = np.column_stack([X @ np.arange(8), X[:, 0]])
SHORT = {"max_epochs": 2, "random_state": 0}


@contextmanager
def counted_steps(record):
    """Collect what each training step does on the pretended GPU."""
    events, step = [], AdapterNet.train_step

    def counted(net, *args, **kwargs):
        before = record.copy()
        found = step(net, *args, **kwargs)
        events.append(record - before)
        return found

    with patch.object(AdapterNet, "train_step", counted):
        yield events


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


FITS = {
    "layer": IsotropyLayer(**SHORT),
    "layer, cumulative": IsotropyLayer(balance="cumulative", lr_schedule="constant", **SHORT),
    "layer, joint": IsotropyLayer(head_training="joint", **SHORT),
    "layer, alternating": IsotropyLayer(head_training="alternating", **SHORT),
    "layer, raw": IsotropyLayer(coordinates="raw", ridge=0.0, **SHORT),
    "layer, no validation": IsotropyLayer(validation_fraction=None, **SHORT),
    "layer, exact": adapters.ExactIsotropyLayer(),
    "layer, no head": IsotropyLayer(None, **SHORT),
    "layer, regression": IsotropyLayer("ridge", **SHORT),
    "istar": adapters.IStarAdapter(**SHORT),
    "istar, detached": adapters.IStarAdapter(shrinkage="detached", zeta=0.8, **SHORT),
    "istar, negative": adapters.IStarAdapter(lam=-1, zeta=0.0, **SHORT),
    "istar, corrected": adapters.IStarAdapter(bias_corrected=True, **SHORT),
    "cosreg": adapters.CosRegAdapter(weight_decay=0.1, **SHORT),
    "spectrum": adapters.SpectrumControlAdapter(**SHORT),
    "entropy": adapters.TopologicalEntropyAdapter(**SHORT),
    "penalty": adapters.PenaltyAdapter(torch.var, **SHORT),
    "penalty, module": adapters.PenaltyAdapter(CountedPenalty(), lam=0.1, **SHORT),
    "penalty, alternating": adapters.PenaltyAdapter(
        torch.var, head_training="alternating", **SHORT
    ),
    "flow": adapters.FlowAdapter(n_blocks=2, hidden=8, **SHORT),
    "flow, head": adapters.FlowAdapter("logistic", alpha=0.5, n_blocks=2, hidden=8, **SHORT),
}
WEIGHTED = {"layer, joint", "layer, exact", "istar", "cosreg", "spectrum", "penalty, module"}
ON_HOST = {"entropy": 3}  # points and labels to the host, where the trees are found, and back


def fitted(adapter, name, device):
    y = VALUES if "regression" in name else Y
    options = {"sample_weight": WEIGHTS, "groups": GROUPS} if name in WEIGHTED else {}
    return clone(adapter).set_params(device=device).fit(X, y, **options)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_equals_that_on_the_cpu_and_its_steps_do_not_wait(name, cuda):
    adapter = FITS[name]
    expected = fitted(adapter, name, "cpu")
    before = cuda.copy()
    with counted_steps(cuda) as events:
        found = fitted(adapter, name, "auto")
    assert (cuda - before).total()
    scale = np.abs(expected.transform(X)).max()
    np.testing.assert_allclose(found.transform(X), expected.transform(X), 1e-4, 1e-5 * scale)
    if expected.head_ is not None:
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    assert bool(events) == ("exact" not in name)
    for each in events:
        assert each.of("wait", "to host", "to device") <= ON_HOST.get(name, 0), each
        assert any(key[1].startswith("_fused_adam") for key in each)


@pytest.mark.parametrize("name", ["layer", "istar", "flow, head"])
def test_an_epoch_waits_twice(name, cuda):
    """Once for its loss, and once for what the validation rows tell."""
    waits = []
    for n_epochs in (1, 3):
        before = cuda.copy()
        fitted(clone(FITS[name]).set_params(max_epochs=n_epochs, patience=None), name, "cuda")
        waits.append((cuda - before).of("wait", "to host"))
    assert waits[1] - waits[0] <= 2 * (3 - 1)


def test_a_search_equals_that_on_the_cpu(cuda):
    grid = {"lam": [0.1, 1.0], "zeta": [0.2, 0.8]}
    searches = [
        AdapterSearchCV(adapters.IStarAdapter(device=device, **SHORT), grid, cv=2).fit(X, Y)
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


# --- models --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        *({"pooling": mode} for mode in ("cls", "mean", "max", "head_input", "readout")),
        {"pooling": "mean", "layer": 1},
        {"pooling": [("head_input", -1), ("mean", 1)]},
    ],
    ids=str,
)
def test_vectors_equal_those_of_the_cpu(options, checkpoint, cuda, empty_store):
    found, expected = (
        TransformerEncoder(checkpoint, device=device, **options).transform(TEXTS)
        for device in ("auto", "cpu")
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_aligned_vectors_equal_those_of_the_cpu(checkpoint, cuda, empty_store):
    def vectors(device):
        encoder = TransformerEncoder(checkpoint, device=device)
        teacher = TransformerEncoder(checkpoint, pooling="mean", device=device)
        model = AdaptedEncoder(encoder, adapters.TeacherReadout(ridge=0.01), teacher, general=None)
        return model.fit(TEXTS * 3).transform(TEXTS)

    np.testing.assert_allclose(vectors("auto"), vectors("cpu"), atol=1e-4)


def test_encoding_copies_a_batch_once_and_fetches_vectors_last(checkpoint, cuda, empty_store, spy):
    encoder = TransformerEncoder(checkpoint, pooling="mean", batch_tokens=16)
    encoder.transform(TEXTS)
    sent = spy(_opened, "to_device", lambda batch, _: (cuda.of("to host"), len(batch)))
    cuda.clear()
    encoder.transform(TEXTS)
    fetched, n_inputs = zip(*sent, strict=True)
    assert len(fetched) > 2
    assert not any(fetched)
    assert cuda.of("wait") <= len(fetched)  # transformers asks whether a mask has padding
    copies = Counter(name for kind, name, _ in cuda.elements() if kind == "to device")
    assert copies == {"non_blocking": sum(n_inputs)}


def test_vectors_of_both_devices_share_a_cache(checkpoint, cuda, empty_store, tmp_path):
    cache = EmbeddingCache(tmp_path)
    for device in ("auto", "cpu"):
        TransformerEncoder(checkpoint, cache=cache, device=device).transform(TEXTS)
    assert cache.stats().misses == len(set(TEXTS))


def test_all_names_of_a_device_share_a_model(checkpoint, cuda, empty_store):
    devices = "auto", "cuda", "cuda:0"
    opened = [TransformerEncoder(checkpoint, device=device).open() for device in devices]
    assert len({id(each.backbone.model) for each in opened}) == 1


def test_a_head_is_read_from_the_device(checkpoint, cuda, empty_store):
    encoder, head = load_checkpoint(checkpoint)
    expected = load_checkpoint(checkpoint, device="cpu")[1]
    np.testing.assert_array_equal(head.coef_, expected.coef_)
    assert encoder.open().backbone.model.device.type == "cuda"


@pytest.mark.parametrize("penalty", [losses.IsoScoreLoss(zeta=0.2), "anchor"])
def test_a_training_with_a_penalty_and_isobn_equals_that_on_the_cpu(penalty, cuda, tmp_path):
    found = []
    for use_cpu in (True, False):
        model = add_isobn(make_model(num_hidden_layers=1, hidden_dropout_prob=0.0))
        arguments = quiet_arguments(tmp_path, max_steps=2, use_cpu=use_cpu, logging_steps=1)
        options = {"train_dataset": make_rows(16), "penalty": penalty, "lam": 0.5}
        trainer = IsotropyTrainer(model, arguments, **options)
        trainer.train()
        found.append([row["loss"] for row in trainer.state.log_history if "loss" in row])
    np.testing.assert_allclose(*found, rtol=1e-4)


# --- folders and graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("write", [export_onnx, to_sentence_transformer, merge_into_checkpoint])
def test_models_on_the_device_are_written(write, shallow, cuda, empty_store, tmp_path):
    """Each function compares what it wrote with the model, and raises if they differ."""
    encoder = TransformerEncoder(shallow, device="cuda")
    merges = write is merge_into_checkpoint
    adapter = adapters.Whitening(shrinkage=0.5) if merges else adapters.LogitPreservingWhitening()
    model = AdaptedEncoder(encoder, adapter).fit(TEXTS)
    if write is export_onnx:
        assert write(model, tmp_path / "served" / "model.onnx").exists()
    else:
        assert write(model, shallow, tmp_path / "served").exists()


def test_a_live_model_on_the_device_is_encoded(shallow, cuda, empty_store):
    live = AutoModelForSequenceClassification.from_pretrained(shallow).to("cuda")
    encoder = TransformerEncoder((live, AutoTokenizer.from_pretrained(shallow)))
    expected = TransformerEncoder(shallow, device="cpu").transform(TEXTS)
    np.testing.assert_allclose(encoder.transform(TEXTS), expected, atol=1e-5)


# --- losses and geometry -------------------------------------------------------------------------

MEASURES = {
    "isoscore_star": lambda Z: losses.IsoScoreLoss(zeta=0.2)(Z, Z.detach().T.cov()),
    "isoscore": lambda Z: losses.IsoScoreLoss(bias_corrected=True)(Z),
    "degenerate": lambda Z: losses.IsoScoreLoss()(Z * 0),
    "cosreg": losses.CosRegLoss(),
    "spectrum": losses.SpectrumControlLoss(c1=2.0),
    "entropy": losses.PersistentEntropyLoss(),
    "entropy of all bars": lambda Z: losses.PersistentEntropyLoss("all")(
        Z, torch.arange(len(Z)) % 2
    ),
    "joint": lambda Z: losses.JointLoss(0.5, "ema").to(Z.device)(Z.square().mean(), Z.var()),
    "bars": lambda Z: persistence_bars(Z).sum(),
    "moments": lambda Z: Moments().update(Z).covariance().sum() + 0 * Z.sum(),
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_loss_and_its_gradient_equal_those_of_the_cpu(name, cuda):
    points = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "cuda"):
        Z = points.clone().to(device).requires_grad_()
        value = MEASURES[name](Z)
        value.backward()
        results.append((value.detach().cpu(), Z.grad.cpu()))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_moments_without_weights_do_not_wait(cuda):
    before = cuda.copy()
    Moments().update(torch.tensor(X, device="cuda"))
    assert (cuda - before).of("wait", "to host") == 0

"""IsoBN in training: its statistics, and checkpoints that plain transformers predicts with."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, Trainer

from isoadapt import IsoBN, load_checkpoint
from isoadapt.encoders._models import quiet
from isoadapt.finetune import IsoBNLayer, add_isobn
from tests.finetune.runs import quiet_arguments
from tests.refusals import refusals
from tests.tiny_models import TEXTS, make_model, make_tokenizer

MIXED = np.random.default_rng(0).normal(size=(200, 6))
MIXED = MIXED @ np.random.default_rng(1).normal(size=(6, 6)) * [30, 4, 1, 1, 0.3, 0.01] + 5
X = torch.tensor(MIXED)


def batch(architecture="bert"):
    texts = [text or "a" for text in TEXTS]
    tokenizer = make_tokenizer(architecture)
    if tokenizer.pad_token is None:  # texts of one length
        texts = ["the cat sat on the mat", "the dog ran under a tree"] * 4
    return tokenizer(texts, padding=tokenizer.pad_token is not None, return_tensors="pt")


def trained(architecture="bert", steps=3, **settings):
    """A model with IsoBN after a few steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = add_isobn(make_model(architecture, pad_token_id=1), **settings)
        train(model, architecture, steps)
    return model.eval()


def train(model, architecture="bert", steps=3):
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = model(**batch(architecture)).logits
        optimiser.zero_grad()
        nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 3).backward()
        optimiser.step()


@torch.no_grad()
def logits(model, architecture="bert"):
    return model.eval()(**batch(architecture)).logits


def head_of(model):
    return next(module for module in model.modules() if hasattr(module, "isobn"))


# --- the layer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "eps"), [(0.5, 0.5), (1.0, 1e-3)])
def test_scale_of_one_large_batch_is_the_adapters(beta, eps):
    layer = IsoBNLayer(6, beta, eps).double()
    Z = layer(X)
    adapter = IsoBN(beta, eps).fit(X.numpy())
    np.testing.assert_allclose(layer.scale(), adapter.scale_, rtol=1e-5)
    np.testing.assert_allclose(Z, adapter.transform(X.numpy()), rtol=1e-5)


def test_identity_before_the_first_step_and_frozen_in_evaluation():
    layer = IsoBNLayer(6).eval()
    torch.testing.assert_close(layer(X), X)
    layer.train()(X)
    scale = layer.eval().scale()
    torch.testing.assert_close(layer(3 * X), 3 * X * scale, check_dtype=False)
    assert torch.equal(layer.scale(), scale)
    assert int(layer.n_steps) == 1


@pytest.mark.parametrize("momentum", [0.05, 1.0])
def test_average_is_bias_corrected(momentum):
    layer = IsoBNLayer(6, momentum=momentum).double()
    batches = X.reshape(4, 50, 6)
    for rows in batches:
        layer(rows)
    weights = torch.tensor([(1 - momentum) ** (3 - k) for k in range(4)], dtype=torch.float64)
    covs = torch.stack([torch.cov(rows.T, correction=0) for rows in batches])
    expected = torch.einsum("k,kij->ij", weights / weights.sum(), covs)
    torch.testing.assert_close(layer.cov, expected, rtol=1e-5, atol=1e-9)


def test_no_gradient_through_the_scale():
    layer = IsoBNLayer(6).double()
    rows = X[:5].clone().requires_grad_()
    weights = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (layer(rows) * weights).sum().backward()
    torch.testing.assert_close(rows.grad, weights * layer.scale())
    assert torch.autograd.gradcheck(layer.eval(), rows)
    assert not list(layer.parameters())


def test_a_layer_of_half_precision_keeps_its_statistics():
    rows = (X / X.std(0) * torch.tensor([300, 200, 100, 1, 1, 1])).half()
    layer, expected = nn.Sequential(IsoBNLayer(6)).half(), IsoBNLayer(6)
    expected(rows.float())
    Z = layer(rows)
    torch.testing.assert_close(layer[0].cov, expected.cov)  # 90000 is beyond half precision
    assert Z.dtype == torch.float16
    torch.testing.assert_close(Z.float(), rows * expected.scale(), rtol=1e-2, atol=1e-2)
    scale = layer[0].scale()
    assert layer.float().half().eval()[0].scale().equal(scale)


def test_batches_that_tell_nothing_change_nothing():
    layer = IsoBNLayer(6)
    layer(X.float())
    state = copy.deepcopy(layer.state_dict())
    for odd in (X[:1], torch.full((4, 6), 0.5), X[:0], X * torch.inf, X * torch.nan):
        assert layer(odd.float()).isfinite().equal(odd.isfinite())
    torch.testing.assert_close(layer.state_dict(), state, rtol=0, atol=0)


# --- models with the layer ------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
def test_plain_checkpoint_predicts_as_the_trained_model(tmp_path, architecture):
    model = trained(architecture, beta=0.8, eps=1e-2, momentum=0.2)
    expected = logits(model, architecture)
    assert (head_of(model).isobn.scale() - 1).abs().max() > 0.1
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    with quiet():
        plain, report = AutoModelForSequenceClassification.from_pretrained(
            tmp_path, output_loading_info=True
        )
    assert not report["missing_keys"]
    assert all(".isobn." in key for key in report["unexpected_keys"])
    torch.testing.assert_close(logits(plain, architecture), expected, atol=1e-5, rtol=0)

    resumed = add_isobn(tmp_path, momentum=0.5)
    assert not resumed.training
    assert resumed.config.isoadapt_isobn == {"beta": 0.8, "eps": 1e-2, "momentum": 0.5}
    head, own = head_of(resumed), head_of(model)
    assert (head.isobn.beta, head.isobn.eps, head.isobn.momentum) == (0.8, 1e-2, 0.5)
    torch.testing.assert_close(resumed.state_dict(), model.state_dict(), rtol=0, atol=0)
    before = int(head.isobn.n_steps)
    train(resumed, architecture, 1)
    assert int(head.isobn.n_steps) == before + 1
    assert not torch.equal(head.weight, own.weight)


def test_load_checkpoint_splits_before_the_layer():
    model = trained()
    encoder, head = load_checkpoint((model, make_tokenizer()), device="cpu")
    E = encoder.transform(TEXTS[:2])
    with torch.no_grad():
        inputs = make_tokenizer()(TEXTS[:2], padding=True, return_tensors="pt")
        expected = model(**inputs).logits
        pooled = model.bert(**inputs).pooler_output
    np.testing.assert_allclose(E, pooled, atol=1e-5)
    np.testing.assert_allclose(head.decision_function(E), expected, atol=1e-5)
    assert int(head_of(model).isobn.n_steps) == 3


def test_a_trainer_resumes_as_if_uninterrupted(tmp_path):
    rows = [
        {name: values[i] for name, values in batch().items()} | {"labels": i % 3} for i in range(8)
    ]
    settings = {"per_device_train_batch_size": 4, "learning_rate": 1e-2}
    settings |= {"logging_strategy": "no", "save_strategy": "steps", "save_steps": 1}
    states = []
    for checkpoint in (None, str(tmp_path / "checkpoint-1")):
        args = quiet_arguments(tmp_path, **settings)
        trainer = Trainer(add_isobn(make_model(), 0.7), args, train_dataset=rows)
        trainer.train(resume_from_checkpoint=checkpoint)
        states.append(trainer.model.state_dict())
    torch.testing.assert_close(*states, rtol=0, atol=1e-6)


test_what_is_refused = refusals(
    (lambda _: IsoBNLayer(3, beta=1.5), "beta"),
    (lambda _: IsoBNLayer(3, momentum=0.0), "momentum"),
    (lambda _: add_isobn(add_isobn(make_model())), "already has IsoBN"),
    (lambda _: add_isobn(make_model(kind="AutoModelForTokenClassification")), "model is a"),
    (add_isobn, "was saved without IsoBN"),
    (lambda _: add_isobn("nowhere"), "'nowhere' is not a folder", FileNotFoundError),
    call=lambda make, checkpoint: make(checkpoint),
)

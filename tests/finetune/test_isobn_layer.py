"""IsoBN in training: its statistics, and checkpoints that plain transformers predicts with."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSequenceClassification, Trainer

from isoadapt import IsoBN, load_checkpoint
from isoadapt.encoders._models import quiet
from isoadapt.finetune import IsoBNLayer, add_isobn
from tests.finetune.runs import quiet_arguments
from tests.tiny_models import TEXTS, make_model, make_tokenizer

CLASSIFIERS = ["bert", "roberta", "distilbert", "modernbert", "gpt2"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    mixed = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6))
    return torch.tensor(mixed * [30, 4, 1, 1, 0.3, 0.01] + 5)


def batch(architecture="bert"):
    texts = [text or "a" for text in TEXTS]
    tokenizer = make_tokenizer(architecture)
    if tokenizer.pad_token is None:  # texts of one length
        texts = ["the cat sat on the mat", "the dog ran under a tree"] * 4
    return tokenizer(texts, padding=tokenizer.pad_token is not None, return_tensors="pt")


def trained(architecture="bert", steps=4, **settings):
    """A model with IsoBN after a few steps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = add_isobn(make_model(architecture, pad_token_id=1), **settings)
        train(model, architecture, steps)
    return model.eval()


def train(model, architecture="bert", steps=4):
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


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("eps", [1e-3, 0.5])
def test_scale_of_one_large_batch_is_the_adapters(X, beta, eps):
    layer = IsoBNLayer(6, beta, eps).double()
    Z = layer(X)
    adapter = IsoBN(beta, eps).fit(X.numpy())
    np.testing.assert_allclose(layer.scale(), adapter.scale_, rtol=1e-5)
    np.testing.assert_allclose(Z, adapter.transform(X.numpy()), rtol=1e-5)


def test_identity_before_the_first_step_and_frozen_in_evaluation(X):
    layer = IsoBNLayer(6).eval()
    torch.testing.assert_close(layer(X), X)
    layer.train()(X)
    layer.eval()
    scale = layer.scale()
    torch.testing.assert_close(layer(3 * X), 3 * X * scale, check_dtype=False)
    assert torch.equal(layer.scale(), scale)
    assert int(layer.n_steps) == 1


@pytest.mark.parametrize("momentum", [0.05, 0.3, 1.0])
def test_average_is_bias_corrected(X, momentum):
    layer = IsoBNLayer(6, momentum=momentum).double()
    for _ in range(7):
        layer(X)
    torch.testing.assert_close(layer.cov, torch.cov(X.T, correction=0), rtol=1e-5, atol=0)

    layer = IsoBNLayer(6, momentum=momentum).double()
    batches = X.reshape(4, 50, 6)
    for rows in batches:
        layer(rows)
    weights = torch.tensor([(1 - momentum) ** (3 - k) for k in range(4)], dtype=torch.float64)
    covs = torch.stack([torch.cov(rows.T, correction=0) for rows in batches])
    expected = torch.einsum("k,kij->ij", weights / weights.sum(), covs)
    torch.testing.assert_close(layer.cov, expected, rtol=1e-5, atol=1e-9)


def test_no_gradient_through_the_scale(X):
    layer = IsoBNLayer(6).double()
    rows = X[:5].clone().requires_grad_()
    weights = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (layer(rows) * weights).sum().backward()
    torch.testing.assert_close(rows.grad, weights * layer.scale())
    assert torch.autograd.gradcheck(layer.eval(), rows)
    assert not list(layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.0, 7.0])
def test_adversarial_batches_are_finite(X, dtype, value):
    rows = torch.where(torch.arange(6) == 2, value, X).to(dtype)
    for odd in (rows, rows[:1], rows[:1].expand(8, 6), 0 * rows, rows[:0]):
        layer = IsoBNLayer(6)
        with torch.autocast("cpu", torch.bfloat16):
            Z = layer(odd)
        assert Z.dtype == dtype
        assert layer.cov.dtype == torch.float32
        assert Z.isfinite().all()
        assert layer(rows).isfinite().all()
        assert layer.scale().isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_layer_of_half_precision_keeps_its_statistics(X, dtype):
    rows = (X / X.std(0) * torch.tensor([300, 200, 100, 1, 1, 1])).to(dtype)
    layer, expected = nn.Sequential(IsoBNLayer(6)).to(dtype), IsoBNLayer(6)
    expected(rows.float())
    Z = layer(rows)
    assert int(layer[0].n_steps) == 1
    torch.testing.assert_close(layer[0].cov, expected.cov)  # 90000 is beyond half precision
    assert Z.dtype == dtype
    torch.testing.assert_close(Z.float(), rows * expected.scale(), rtol=1e-2, atol=1e-2)
    scale = layer[0].scale()
    assert layer.float().to(dtype).eval()[0].scale().equal(scale)


def test_batches_that_tell_nothing_change_nothing(X):
    layer = IsoBNLayer(6)
    layer(X.float())
    state = copy.deepcopy(layer.state_dict())
    for odd in (X[:1], torch.full((4, 6), 0.5), X[:0], X * torch.inf, X * torch.nan):
        layer(odd.float())
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_features": 0}, "n_features=0 must be 1 or more"),
        ({"beta": 1.5}, r"beta=1.5 must lie in \[0, 1\]"),
        ({"eps": 0.0}, r"eps=0.0 must be more than 0"),
        ({"momentum": 0.0}, r"momentum=0.0 must lie in \(0, 1\]"),
    ],
)
def test_parameters_out_of_range(parameters, message):
    with pytest.raises(ValueError, match=message):
        IsoBNLayer(**{"n_features": 3} | parameters)


def test_rows_of_another_width(X):
    with pytest.raises(ValueError, match=r"x has shape \(200, 1\); IsoBNLayer\(n_features=6\)"):
        IsoBNLayer(6)(X[:, :1])


@pytest.mark.slow
def test_two_processes_see_one_batch(tmp_path, X):
    torch.save(X.float(), tmp_path / "X.pt")
    program = (
        "import sys, torch\n"
        "from torch import distributed as dist\n"
        "from isoadapt.finetune import IsoBNLayer\n"
        "folder, rank = sys.argv[1], int(sys.argv[2])\n"
        "dist.init_process_group('gloo', f'file://{folder}/store', rank=rank, world_size=2)\n"
        "X = torch.load(folder + '/X.pt')\n"
        "layer = IsoBNLayer(6)\n"
        "layer(X[:30] if rank else X[30:100])\n"
        "layer(X[100:101] if rank else X[101:102])\n"
        "torch.save(layer.state_dict(), f'{folder}/state{rank}.pt')\n"
        "dist.destroy_process_group()\n"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), str(rank)])
        for rank in range(2)
    ]
    assert [process.wait(120) for process in ranks] == [0, 0]
    layer = IsoBNLayer(6)
    layer(X[:100].float())
    layer(X[100:102].float())
    for rank in range(2):
        state = torch.load(tmp_path / f"state{rank}.pt")
        torch.testing.assert_close(state, dict(layer.state_dict()))


@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_plain_checkpoint_predicts_as_the_trained_model(tmp_path, architecture):
    model = trained(architecture, beta=0.8, eps=1e-2, momentum=0.2)
    expected = logits(model, architecture)
    assert (head_of(model).isobn.scale() - 1).abs().max() > 0.1
    model.save_pretrained(tmp_path)
    with quiet():
        plain, report = AutoModelForSequenceClassification.from_pretrained(
            tmp_path, output_loading_info=True
        )
    assert not report["missing_keys"]
    assert all(".isobn." in key for key in report["unexpected_keys"])
    torch.testing.assert_close(logits(plain, architecture), expected, atol=1e-5, rtol=0)

    resumed = add_isobn(tmp_path)
    assert not resumed.training
    head, own = head_of(resumed), head_of(model)
    assert (head.isobn.beta, head.isobn.eps, head.isobn.momentum) == (0.8, 1e-2, 0.2)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)
    torch.testing.assert_close(head.weight, own.weight, rtol=0, atol=0)
    torch.testing.assert_close(logits(resumed, architecture), expected)
    before = int(head.isobn.n_steps)
    train(resumed, architecture, 2)
    assert int(head.isobn.n_steps) == before + 2
    assert not torch.equal(head.weight, own.weight)


def test_no_key_is_renamed():
    plain = make_model()
    keys = set(plain.state_dict())
    added = set(add_isobn(plain).state_dict()) - keys
    assert added == {f"classifier.isobn.{name}" for name in ("cov", "n_steps", "weight")}
    assert set(plain.state_dict()) == keys | added


def test_load_checkpoint_splits_before_the_layer():
    model = trained()
    encoder, head = load_checkpoint((model, make_tokenizer()), device="cpu")
    E = encoder.transform(TEXTS[:2])
    layer = head_of(model).isobn
    with torch.no_grad():
        inputs = make_tokenizer()(TEXTS[:2], padding=True, return_tensors="pt")
        expected = model(**inputs).logits
        pooled = model.bert(**inputs).pooler_output
    np.testing.assert_allclose(E, pooled, atol=1e-5)
    np.testing.assert_allclose(head.decision_function(E), expected, atol=1e-5)
    np.testing.assert_allclose(
        head.coef_, head_of(model).weight.detach() * layer.scale(), atol=1e-6
    )
    assert int(layer.n_steps) == 4


class _Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return {name: values[i] for name, values in batch().items()} | {"labels": i % 3}


def trainer(folder, **changes):
    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 3, "learning_rate": 1e-2}
    settings |= {"logging_strategy": "no", "save_strategy": "epoch"}
    args = quiet_arguments(folder, **settings | changes)
    data = _Rows()
    return Trainer(add_isobn(make_model(), 0.7), args, train_dataset=data, eval_dataset=data)


def test_trainer_resumes_as_if_uninterrupted(tmp_path):
    whole = trainer(tmp_path)
    whole.train()
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert int(head_of(resumed.model).isobn.n_steps) == 6
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=0, atol=1e-6)


def test_trainer_loads_its_best_model(tmp_path):
    run = trainer(tmp_path, eval_strategy="epoch", load_best_model_at_end=True)
    run.train()
    best = add_isobn(run.state.best_model_checkpoint)
    torch.testing.assert_close(logits(run.model), logits(best), atol=1e-6, rtol=0)


def test_training_in_bfloat16_is_finite(tmp_path):
    run = trainer(tmp_path, bf16=True, save_strategy="no")
    run.train()
    assert head_of(run.model).isobn.cov.dtype == torch.float32
    assert all(value.isfinite().all() for value in run.model.state_dict().values())


def test_folder_in_shards_and_other_parameters(tmp_path):
    model = trained()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model*.safetensors"))) > 1
    resumed = add_isobn(str(tmp_path), momentum=0.5)
    torch.testing.assert_close(logits(resumed), logits(model))
    assert head_of(resumed).isobn.momentum == 0.5
    assert resumed.config.isoadapt_isobn == {"beta": 0.5, "eps": 1e-3, "momentum": 0.5}


def test_what_cannot_be_done(tmp_path, checkpoint):
    with pytest.raises(ValueError, match=r"already has IsoBN \(IsoBNLayer\(16, beta=0.5"):
        add_isobn(trained())
    for kind in ("", "ForQuestionAnswering", "ForTokenClassification"):
        with pytest.raises(ValueError, match=f"Bert{kind or 'Model'}; .* sequence classification"):
            add_isobn(make_model(kind=f"AutoModel{kind}"))
    with pytest.raises(ValueError, match=r"NoneType; .* pass such a model, or its folder"):
        add_isobn(None)
    with pytest.raises(ValueError, match="was saved without IsoBN; to add it, pass the loaded"):
        add_isobn(checkpoint)
    with pytest.raises(FileNotFoundError, match="is not a folder with safetensors weights"):
        add_isobn(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="beta=2 must lie"):
        add_isobn(make_model(), beta=2)


def test_a_folder_without_the_statistics(tmp_path):
    trained().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    incomplete = {key: value for key, value in weights.items() if not key.endswith("isobn.cov")}
    save_file(incomplete, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="saved without IsoBN"):
        add_isobn(tmp_path)

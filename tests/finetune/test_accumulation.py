"""The task loss under gradient accumulation, against the plain Trainer of transformers."""

import pytest
import torch
import transformers
from transformers import AutoConfig, Trainer

from isoadapt.finetune import IsotropyTrainer
from isoadapt.losses import CosRegLoss
from tests.finetune.runs import make_rows, quiet_arguments

_SIZES = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": 16, "pad_token_id": 1}
_GPT2 = {"vocab_size": 24, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 = ("GPT2LMHeadModel", "gpt2", _GPT2 | {"bos_token_id": 2, "eos_token_id": 2})
# class of the model, type of its configuration, changes to that, whether its loss counts labels
CASES = [(*GPT2, True), ("BertForMaskedLM", "bert", _SIZES, False)]


def make_language_model(name, model_type, settings):
    """A model with random weights and without dropout."""
    torch.manual_seed(0)
    model = getattr(transformers, name)(AutoConfig.for_model(model_type, **settings))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def language_rows(n):
    """Texts of very different lengths, whose padding has no label."""
    rows = make_rows(n)
    for row in rows:
        mask = row["attention_mask"]
        row["labels"] = [i if m else -100 for i, m in zip(row["input_ids"], mask, strict=True)]
    rows[0]["labels"][2:] = [-100] * 10
    return rows


def train(trainer_class, model, rows, folder, **options):
    """Logged losses and trained weights: steps of three parts each, and one of the remainder."""
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    settings |= {"learning_rate": 0.05, "optim": "sgd", "max_grad_norm": 0.0}
    settings |= {"lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    args = quiet_arguments(folder, **settings)
    trainer = trainer_class(model=model, args=args, train_dataset=rows, **options)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return torch.tensor(losses), torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def assert_same_training(ours, theirs):
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("name", "model_type", "settings", "counts_labels"), CASES)
def test_the_loss_is_that_of_the_plain_trainer(name, model_type, settings, counts_labels, tmp_path):
    """A loss that is not divided by the labels of the step: of one that knows it for a mean."""
    models = [make_language_model(name, model_type, settings) for _ in range(2)]
    if not counts_labels:
        models[0].accepts_loss_kwargs = False
    theirs = train(Trainer, models[0], language_rows(10), tmp_path)
    options = {"penalty": CosRegLoss(), "lam": 0.0, "where": "last"}
    ours = train(IsotropyTrainer, models[1], language_rows(10), tmp_path, **options)
    assert_same_training(ours, theirs)


def test_a_first_batch_without_labels_does_not_decide(tmp_path):
    rows = language_rows(8)
    for row in rows[:2]:
        row["labels"] = [-100] * len(row["labels"])
    theirs = train(Trainer, make_language_model(*GPT2), rows, tmp_path)
    ours = train(IsotropyTrainer, make_language_model(*GPT2), rows, tmp_path)
    assert_same_training(ours, theirs)

"""Small runs of IsotropyTrainer."""

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import TrainingArguments

from isoadapt.finetune import IsotropyTrainer
from tests.tiny_models import make_model


def make_rows(n, seed=0, length=12):
    """Padded token ids of random length; the label is the second token's, modulo 3."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        size = int(torch.randint(3, length, (1,), generator=generator))
        ids = torch.randint(4, 24, (size,), generator=generator).tolist()
        mask = [1] * size + [0] * (length - size)
        ids += [1] * (length - size)
        rows.append({"input_ids": ids, "attention_mask": mask, "labels": ids[1] % 3})
    return rows


class Items(Dataset):
    """A dataset of torch, which says how long it is and does not end by itself."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i % len(self.items)]


class Stream(IterableDataset):
    """A stream of items, which does not say how long it is."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def plain_model(architecture="bert", kind="AutoModelForSequenceClassification", **changes):
    """A tiny model that computes the same in training and evaluation."""
    model = make_model(architecture, kind, **changes)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def quiet_arguments(folder, **changes):
    """Arguments of an epoch on the CPU that logs every step, saves nothing and prints nothing."""
    settings = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3}
    settings |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none"}
    settings |= {"disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    return TrainingArguments(str(folder), **settings | changes)


def make_trainer(model, rows, folder, penalty=None, arguments=None, **options):
    """A trainer that logs every step; without a model, one that makes its own for each training."""
    args = quiet_arguments(folder, **(arguments or {}))
    if model is None:
        options["model_init"] = lambda: plain_model()
    return IsotropyTrainer(model=model, args=args, train_dataset=rows, penalty=penalty, **options)


def step_gradient(trainer, rows):
    """Gradient of the joint loss of one batch, all parameters in one vector."""
    trainer.current_gradient_accumulation_steps = 1
    batch = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
    trainer.model.train().zero_grad()
    trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
    return gradient(trainer.model)


def gradient(model):
    """Gradients of all parameters in one vector."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.nn.utils.parameters_to_vector(found).detach()


def trained_weights(penalties, folder, batch_size):
    """Weights after two steps with plain SGD and each of the penalties in turn, and the logs."""
    found = {}
    for name, (penalty, options) in penalties.items():
        arguments = {"per_device_train_batch_size": batch_size, "optim": "sgd"}
        arguments |= {"learning_rate": 0.1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
        model = plain_model()
        trainer = make_trainer(model, make_rows(32), folder, penalty, arguments, **options)
        trainer.train()
        found[name] = {n: p.detach().clone() for n, p in model.named_parameters()}
        log = [entry for entry in trainer.state.log_history if "task_loss" in entry]
        keys = ("task_loss", "penalty", "isoscore_star", "anisotropy1")
        found[name]["log"] = torch.tensor([[entry[key] for key in keys] for entry in log])
    return found

"""Small runs of IsotropyTrainer, and one that torchrun starts in several processes."""

import sys

import torch
from accelerate.utils import gather_object
from transformers import TrainingArguments

from isoadapt.finetune import IsoBNLayer, IsotropyTrainer
from tests.tiny_models import make_model


def make_rows(n, seed=0, length=12):
    """Padded token ids of random length; the label is the second token's, modulo 3."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        size = int(torch.randint(3, length, (1,), generator=generator))
        ids = torch.randint(4, 24, (size,), generator=generator).tolist()
        rows.append(
            {
                "input_ids": ids + [1] * (length - size),
                "attention_mask": [1] * size + [0] * (length - size),
                "labels": ids[1] % 3,
            }
        )
    return rows


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
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten().detach()
            for p in model.parameters()
        ]
    )


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


def penalties_to_distribute():
    """Penalties of every kind of place, each with what else the trainer is told."""
    from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss

    return {
        "istar": (IsoScoreLoss(0.3, "linear"), {"where": "all", "lam": -1.0}),
        "balanced": (IsoScoreLoss(), {"where": "last", "balance": "ema"}),
        "entropy": (PersistentEntropyLoss(), {"where": "head_input"}),
        "cosreg": (CosRegLoss(), {"where": [1]}),
    }


def isobn_batches():
    """Rows (n, 6) that each of two processes has in the batches of an IsoBNLayer."""
    rows = torch.randn(102, 6, generator=torch.Generator().manual_seed(0))
    return rows[:100].split([70, 30]), rows[100:].split(1)


if __name__ == "__main__":
    found = trained_weights(penalties_to_distribute(), sys.argv[1], batch_size=8)
    rank, layer = torch.distributed.get_rank(), IsoBNLayer(6)
    for parts in isobn_batches():
        layer(parts[rank])
    found["isobn"] = gather_object([dict(layer.state_dict())])
    if rank == 0:
        torch.save(found, sys.argv[2])
    torch.distributed.destroy_process_group()

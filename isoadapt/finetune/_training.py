"""Training of a classifier with the IsotropyTrainer according to a recipe, without output files."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)

from isoadapt.finetune._recipes import Recipe
from isoadapt.finetune._trainer import IsotropyTrainer

Row = dict[str, Any]

_MAX_NORM = 1.0


def train_classifier(
    network: Any,
    tokenizer: Any,
    rows: list[Row],
    recipe: Recipe,
    *,
    device: torch.device,
    seed: int,
    folder: Path,
    show_progress: bool,
    shuffle: bool = True,
    **options: Any,
) -> None:
    """Train a float32 classifier in place on rows of token lists and ``labels``.

    This seeds the global generators with `seed`, below 2**32, and may change the current GPU.
    Nothing is written to `folder`, which must exist. `options` are the arguments that only the
    IsotropyTrainer has: penalty, lam, balance and where. A FloatingPointError is raised if the
    loss is not finite at the end of an epoch, or the weights or their outputs at the end.
    """
    callbacks: list[TrainerCallback] = [_Progress()] if show_progress else []
    callbacks.append(_Divergence(recipe))
    held_out = None
    if recipe.validation:
        rows, held_out = _split(rows, recipe.validation, seed)
        callbacks.append(_Best())
    n_steps = recipe.epochs * math.ceil(len(rows) / (recipe.batch_size * recipe.accumulation))
    if n_steps == 1:  # the first step of a warm-up has the learning rate 0
        recipe = replace(recipe, warmup=0.0)
    order = {} if shuffle else {"train_sampling_strategy": "sequential"}
    adam = (torch.optim.Adam, {"lr": recipe.lr, "fused": True})
    trainer = IsotropyTrainer(
        model=network,
        args=training_arguments(recipe, device, seed, folder, network.config, **order),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
        compute_metrics=_score,
        callbacks=callbacks,
        optimizer_cls_and_kwargs=adam if recipe.optimiser == "adam" else None,
        **options,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    _check_finite(_loss_after(trainer, rows[: recipe.batch_size]), recipe)


def training_arguments(
    recipe: Recipe, device: torch.device, seed: int, folder: Path, config: Any, **changes: Any
) -> TrainingArguments:
    """Convert a recipe into TrainingArguments; `changes` override single arguments."""
    device = torch.empty(0, device=device).device  # resolves "cuda" to "cuda:0" or another index
    schedules = {"linear": "linear", "constant": "constant_with_warmup"}
    settings = {
        "output_dir": str(folder),
        "num_train_epochs": recipe.epochs,
        "learning_rate": recipe.lr,
        "lr_scheduler_type": schedules[recipe.schedule],
        "warmup_steps": recipe.warmup,
        "weight_decay": recipe.decay,
        "max_grad_norm": _MAX_NORM,
        "per_device_train_batch_size": recipe.batch_size,
        "gradient_accumulation_steps": recipe.accumulation,
        "train_sampling_strategy": "group_by_length",
        "fp16": recipe.half and device.type == "cuda",
        "seed": seed,
        "eval_strategy": "epoch" if recipe.validation else "no",
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": device.type == "cpu",
        "dataloader_pin_memory": device.type == "cuda",
        "use_cache": getattr(config, "use_cache", False),  # the Trainer would change it in `config`
    }
    arguments = TrainingArguments(**settings | changes)
    if device.type == "cuda":  # otherwise the Trainer would use the first GPU, or all GPUs
        torch.cuda.set_device(device)
        vars(arguments).update(_setup_devices=device, _n_gpu=1)
    return arguments


def _split(rows: list[Row], share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Split off a share of the rows for validation, stratified by class for a classifier."""
    labels = [row["labels"] for row in rows]
    classes = None if isinstance(labels[0], float) else labels
    return train_test_split(rows, test_size=share, stratify=classes, random_state=seed)


def _loss_after(trainer: Any, rows: list[Row]) -> float:
    """Return the loss of a few rows after training; NaN if a weight is not finite."""
    if not all(bool(weight.isfinite().all()) for weight in trainer.model.parameters()):
        return math.nan
    batches = trainer.get_test_dataloader(rows)
    return trainer.evaluation_loop(batches, "", prediction_loss_only=True).metrics["eval_loss"]


def _check_finite(loss: float, recipe: Recipe) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss became {loss}; lower lr={recipe.lr} or increase warmup={recipe.warmup}"
        )


def _score(predictions: Any) -> dict[str, float]:
    """Return the accuracy or R²; minus infinity if a logit is not finite."""
    logits, labels = predictions.predictions, predictions.label_ids
    if not np.isfinite(logits).all():
        return {"score": -math.inf}
    if labels.dtype.kind == "f":
        return {"score": r2_score(labels, logits.squeeze(1).astype(np.float64))}
    return {"score": accuracy_score(labels, np.argmax(logits, 1))}


class _Progress(TrainerCallback):
    """Shows a progress bar with one tick per step."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from tqdm.auto import tqdm

        self.bar = tqdm(total=state.max_steps, unit=" steps", desc="Fine-tuning")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.close()


class _Divergence(TrainerCallback):
    """Stops training with an error if the logged loss is not finite."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        _check_finite(logs.get("loss", 0.0), self.recipe)


class _Best(TrainerCallback):
    """Restores the weights of the epoch with the best validation score when training ends."""

    best: float | None = None
    weights: dict[str, Tensor]  # of the best epoch, on the CPU

    def on_evaluate(self, *_: Any, model: nn.Module, metrics: Any, **kwargs: Any) -> None:
        if self.best is None or metrics["eval_score"] > self.best:
            self.best = metrics["eval_score"]
            self.weights = {
                name: value.to("cpu", copy=True) for name, value in model.state_dict().items()
            }

    def on_train_end(self, *_: Any, model: nn.Module, **kwargs: Any) -> None:
        model.load_state_dict(self.weights)

"""Training of a classifier with the IsotropyTrainer, without output files."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
)

from isoadapt.finetune._trainer import IsotropyTrainer


def train_classifier(
    network: Any,
    tokenizer: Any,
    rows: list[dict[str, Any]],
    arguments: TrainingArguments,
    show_progress: bool,
    **options: Any,
) -> None:
    """Train in place on rows of tokens and labels; FloatingPointError if a loss is not finite."""
    trainer = IsotropyTrainer(
        model=network,
        args=arguments,
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[_Divergence(), *([_Progress()] if show_progress else [])],
        **options,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    some = trainer.get_test_dataloader(rows[: arguments.per_device_train_batch_size])
    after = trainer.evaluation_loop(some, "", prediction_loss_only=True).metrics
    _check_finite(after["eval_loss"], arguments)


def training_arguments(
    device: torch.device, seed: int, folder: Path, config: Any, **settings: Any
) -> TrainingArguments:
    """Make arguments of a training that writes nothing to `folder`; this may change the GPU."""
    device = torch.empty(0, device=device).device  # resolves "cuda" to "cuda:0" or another index
    common = {
        "output_dir": str(folder),
        "seed": seed,
        "max_grad_norm": 1.0,
        "train_sampling_strategy": "group_by_length",
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": device.type == "cpu",
        "dataloader_pin_memory": device.type == "cuda",
        "use_cache": getattr(config, "use_cache", False),  # the Trainer would change it in `config`
    }
    arguments = TrainingArguments(**common | settings)
    if device.type == "cuda":  # otherwise the Trainer would use the first GPU, or all GPUs
        torch.cuda.set_device(device)
        vars(arguments).update(_setup_devices=device, _n_gpu=1)
    return arguments


def _check_finite(loss: float, arguments: TrainingArguments) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss became {loss}; lower lr={arguments.learning_rate} or increase "
            f"warmup={arguments.warmup_steps}"
        )


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

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        _check_finite(logs.get("loss", 0.0), args)

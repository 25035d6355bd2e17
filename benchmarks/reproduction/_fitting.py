"""One fine-tuning run with `IsotropyTrainer`, with its log and times."""

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
    TrainerCallback,
)

from benchmarks.reproduction._measuring import anisotropies, tokenized
from benchmarks.reproduction._training import (
    MAX_LENGTH,
    Job,
    make_penalty,
)
from isoadapt._utils.devices import resolve_device
from isoadapt.datasets import minilm_folder
from isoadapt.encoders._models import quiet
from isoadapt.finetune import IsotropyTrainer
from isoadapt.finetune._objective import Watch
from isoadapt.finetune._training import training_arguments


class Fitted(NamedTuple):
    """A fine-tuned model, its log and its times.

    The seconds are per epoch: of its steps as in `seconds_used`, and of Σ_S as wall-clock time.
    """

    network: Any
    tokenizer: Any
    history: list[dict[str, Any]]
    training_seconds: float
    shrinkage_seconds: float


class PaddedWatch(Watch):
    """Watches the vectors of all positions of a batch, those of padding among them."""

    def _mask(self, inputs: Mapping[str, Any]) -> None:
        return None


class LoggedTrainer(IsotropyTrainer):
    """IsotropyTrainer that also logs the second and third anisotropy."""

    with_padding = False  # whether the penalty and Σ_S count the vectors of padding

    def _watch(self) -> Watch:
        kind = PaddedWatch if self.with_padding else Watch
        model = self.accelerator.unwrap_model(self.model)
        return kind(model, self.isotropy_objective.place)

    def figures(self, points: Tensor) -> dict[str, float]:
        found = super().figures(points)
        more = anisotropies(points) if found else {}
        return found | {name: value for name, value in more.items() if math.isfinite(value)}


class Clock(TrainerCallback):
    """Sums the time of the training steps, without other parts of training."""

    def __init__(self) -> None:
        self.seconds = self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begun = seconds_used()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds += seconds_used() - self._begun


def seconds_used() -> float:
    """Return the processor time, which other programs do not affect; with a GPU, the wall time."""
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def fine_tune(job: Job, texts: Any, labels: NDArray[Any], logging_steps: int) -> Fitted:
    """Fine-tune; for one seed, all penalties have the same order of rows and the same new head."""
    condition, recipe = job.condition, job.recipe
    network, tokenizer = _load(minilm_folder(), labels, job.seed)
    columns = tokenized(tokenizer, texts, MAX_LENGTH)
    rows = [
        {**{name: values[i] for name, values in columns.items()}, "labels": label}
        for i, label in enumerate(labels.tolist())
    ]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = LoggedTrainer(
            model=network,
            args=training_arguments(
                resolve_device("auto"),
                job.seed,
                Path(folder),
                network.config,
                logging_strategy="steps",
                logging_steps=logging_steps,
                logging_first_step=True,
                **recipe.arguments() | condition.arguments,
            ),
            train_dataset=rows,
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            callbacks=[clock],
            penalty=make_penalty(condition),
            lam=condition.lam,
            where=condition.where,
        )
        trainer.with_padding = condition.padding
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    history = trainer.state.log_history
    shrinkage = sum(entry.get("shrinkage_seconds", 0.0) for entry in history)
    epochs = recipe.epochs
    return Fitted(network, tokenizer, history, clock.seconds / epochs, shrinkage / epochs)


def _load(model: str | Path, labels: NDArray[Any], seed: int) -> tuple[Any, Any]:
    """Load an encoder with a new head, which depends only on the seed."""
    n_labels = int(labels.max()) + 1
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        network = AutoModelForSequenceClassification.from_pretrained(
            model,
            num_labels=n_labels,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
        )
    return network, AutoTokenizer.from_pretrained(model)

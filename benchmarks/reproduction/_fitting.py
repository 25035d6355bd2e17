"""One fine-tuning run with `IsotropyTrainer`, with its log."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PrinterCallback,
)

from benchmarks.reproduction._measuring import tokenized
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
    """A fine-tuned model and its log."""

    network: Any
    tokenizer: Any
    history: list[dict[str, Any]]


class PaddedWatch(Watch):
    """Watches the vectors of all positions of a batch, those of padding among them."""

    def _mask(self, inputs: Mapping[str, Any]) -> None:
        return None


class PaddedTrainer(IsotropyTrainer):
    """IsotropyTrainer that may count the vectors of padding too."""

    with_padding = False  # whether the penalty and Σ_S count the vectors of padding

    def _watch(self) -> Watch:
        kind = PaddedWatch if self.with_padding else Watch
        model = self.accelerator.unwrap_model(self.model)
        return kind(model, self.isotropy_objective.place)


def fine_tune(job: Job, texts: Any, labels: NDArray[Any], logging_steps: int) -> Fitted:
    """Fine-tune; for one seed, all penalties have the same order of rows and the same new head."""
    condition, recipe = job.condition, job.recipe
    network, tokenizer = _load(minilm_folder(), labels, job.seed)
    columns = tokenized(tokenizer, texts, MAX_LENGTH)
    rows = [
        {**{name: values[i] for name, values in columns.items()}, "labels": label}
        for i, label in enumerate(labels.tolist())
    ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = PaddedTrainer(
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
            penalty=make_penalty(condition),
            lam=condition.lam,
            where=condition.where,
        )
        trainer.with_padding = condition.padding
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return Fitted(network, tokenizer, trainer.state.log_history)


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

"""Fine-tuning runs of MiniLM, and the saved embeddings of runs without a penalty.

The embeddings are saved in `CACHE`, in one file per run. If the file is missing, the first adapter
that needs it repeats the run.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from benchmarks._data import Embeddings, read_table
from benchmarks._places import FOLDER
from benchmarks.reproduction import _measuring as measuring
from benchmarks.reproduction._records import Cell
from isoadapt import LinearHead
from isoadapt._utils.devices import resolve_device
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt.datasets import minilm_folder
from isoadapt.encoders._backbone import find_last_linear
from isoadapt.encoders._models import quiet
from isoadapt.finetune import IsotropyTrainer
from isoadapt.finetune._objective import Watch
from isoadapt.finetune._penalties import PENALTIES
from isoadapt.finetune._training import training_arguments

CACHE = FOLDER / "results" / "reproduction-cache"  # not committed
MAX_LENGTH = 128
STORED = ("E_train", "y_train", "E_dev", "y_dev", "W", "b")
HELD_OUT = 0.2  # share of the training rows by which recipes, λ and ζ are chosen


class Recipe(NamedTuple):
    """The training settings that differ between tasks."""

    epochs: int
    lr: float
    batch_size: int = 32

    def arguments(self) -> dict[str, Any]:
        """Return arguments of the Trainer, with those that every run has."""
        return {
            "num_train_epochs": self.epochs,
            "learning_rate": self.lr,
            "per_device_train_batch_size": self.batch_size,
            "warmup_steps": 0.1,  # a share of the steps
            "weight_decay": self.lr / 10,
            "lr_scheduler_type": "linear",
        }


@dataclass(frozen=True)
class Condition:
    """A row of a table: a penalty with its parameters, weight and place.

    `arguments` of the Trainer replace those of the recipe; with "padding", the vectors of padding
    are among the points of the penalty and of Σ_S.
    """

    name: str
    penalty: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    lam: float = 1.0
    where: str = "head_input"
    arguments: Mapping[str, Any] = field(default_factory=dict)


BASE = Condition("base")


@dataclass(frozen=True)
class Job:
    """One run, on all training rows, or on those that are not held out for a choice."""

    task: str
    seed: int
    recipe: Recipe
    condition: Condition = BASE
    held_out: float = 0.0

    def settings(self) -> dict[str, Any]:
        """Return what is recorded beside the name, the task and the seed."""
        own = {name: value for name, value in asdict(self.condition).items() if name != "name"}
        return {"recipe": self.recipe._asdict(), **own, "held_out": self.held_out}

    @property
    def file(self) -> Path:
        """The file with the embeddings of a run without a penalty."""
        return CACHE / f"{'-'.join(map(str, (self.task, self.seed, *self.recipe)))}.npz"

    def cell(self, kind: str) -> Cell:
        """Return the cell of the run."""
        return Cell(kind, self.condition.name, self.task, self.seed, self.settings(), self.run)

    def run(self) -> dict[str, Any]:
        """Fine-tune and return the figures on the whole dev set or on the held-out rows."""
        return _on_held_out_rows(self) if self.held_out else _on_dev_set(self)


def base_embeddings(job: Job) -> Embeddings:
    """Return the head's input for training rows and dev set, after a run without a penalty."""
    if not job.file.exists():
        job.run()
    with np.load(job.file) as stored:
        *arrays, coef, intercept = (stored[name] for name in STORED)
        head = LinearHead(coef, intercept, [0, 1])
        return Embeddings(f"{job.task} dev", *arrays, head)


def _on_held_out_rows(job: Job) -> dict[str, Any]:
    texts, labels = read_table(job.task, "train")
    kept, rest = train_test_split(
        np.arange(len(labels)), test_size=job.held_out, stratify=labels, random_state=0
    )
    network, tokenizer, _ = fine_tune(job, [texts[i] for i in kept], labels[kept])
    read = partial(measuring.read, network, tokenizer, max_length=MAX_LENGTH, of_tokens=False)
    found = read([texts[i] for i in rest])
    return measuring.task_figures(job.task, labels[rest], found.outputs.numpy())


def _on_dev_set(job: Job) -> dict[str, Any]:
    (texts, labels), (dev_texts, dev_labels) = (read_table(job.task, s) for s in ("train", "dev"))
    network, tokenizer, history = fine_tune(job, texts, labels)
    read = partial(measuring.read, network, tokenizer, max_length=MAX_LENGTH)
    dev, n_layers = read(dev_texts), network.config.num_hidden_layers
    rows = measuring.prior_rows(tokenizer, texts, MAX_LENGTH, n_layers, job.seed)
    prior = read([texts[i] for i in rows])
    if job.condition == BASE:
        train, head = read(texts, of_tokens=False), find_last_linear(network)
        own = (train.embeddings, labels, dev.embeddings, dev_labels)
        parts = (*own, *(part.detach().cpu() for part in (head.weight, head.bias)))
        writable_folder(job.file.parent)
        with atomic_path(job.file) as temporary, temporary.open("wb") as opened:
            np.savez(opened, **dict(zip(STORED, map(np.asarray, parts), strict=True)))
    return {
        **measuring.task_figures(job.task, dev_labels, dev.outputs.numpy()),
        **measuring.embedding_figures(dev.embeddings),
        **measuring.token_figures(dev, prior),
        **measuring.log_figures(history),
    }


class PaddedWatch(Watch):
    """Watches the vectors of all positions of a batch, those of padding among them."""

    def _mask(self, inputs: Mapping[str, Any]) -> None:
        return None


class PaddedTrainer(IsotropyTrainer):
    """IsotropyTrainer whose penalty and Σ_S count the vectors of padding too."""

    def _watch(self) -> Watch:
        model = self.accelerator.unwrap_model(self.model)
        return PaddedWatch(model, self.isotropy_objective.place)


def fine_tune(job: Job, texts: Any, labels: NDArray[Any]) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return network, tokenizer and log; one seed gives one order of rows and one new head."""
    condition = job.condition
    network, tokenizer = _load(job.seed)
    columns = {**measuring.tokenized(tokenizer, texts, MAX_LENGTH), "labels": labels.tolist()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    penalty = condition.penalty and PENALTIES[condition.penalty].make(**condition.options)
    arguments = job.recipe.arguments() | condition.arguments
    with tempfile.TemporaryDirectory() as folder:
        trainer = (PaddedTrainer if arguments.pop("padding", False) else IsotropyTrainer)(
            model=network,
            args=training_arguments(
                resolve_device("auto"),
                job.seed,
                Path(folder),
                network.config,
                logging_strategy="steps",
                logging_steps=1 if condition.where == "head_input" else 10,
                logging_first_step=True,
                **arguments,
            ),
            train_dataset=rows,
            processing_class=tokenizer,
            penalty=penalty,
            lam=condition.lam,
            where=condition.where,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return network, tokenizer, trainer.state.log_history


def _load(seed: int) -> tuple[Any, Any]:
    """Load the encoder with a new head for two classes, which depends only on the seed."""
    folder, options = minilm_folder(), {"num_labels": 2, "dtype": torch.float32}
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, **options)
    return network, transformers.AutoTokenizer.from_pretrained(folder)

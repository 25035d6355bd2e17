"""The classifiers of the tables on similarity, and the vectors of texts from their layers.

Two are shared models; the others are MiniLM, fine-tuned here and kept in build/ like all vectors.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._data import Floats, shared_folder
from benchmarks._places import ROOT
from benchmarks.quality import _phenomena
from isoadapt.datasets import load_table, minilm_folder

FOLDER = ROOT / "build" / "dual_use"
MANY = "phenomenon-12"
HEAD_INPUT = "head input"
LAYERS = 6
MAX_LENGTH = 256  # tokens of a text whose vector is computed
BATCH_TOKENS = 512  # padding included
EPOCHS = 20
N_TRAINING = {"sst2_sentence": 600, MANY: 500}  # rows of the tasks that are fine-tuned here
ARGUMENTS = {
    "num_train_epochs": EPOCHS,
    "learning_rate": 1e-4,  # after a warm-up over 5 % of the steps; falls linearly to 0
    "warmup_steps": 0.05,
    "per_device_train_batch_size": 32,
    "train_sampling_strategy": "group_by_length",
    "seed": 0,
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
    "use_cpu": True,
    "dataloader_pin_memory": False,
}

Input = str | tuple[str, str]


def training_rows(task: str) -> tuple[list[Any], list[Any]]:
    """Return all training texts or pairs of a task and their labels."""
    if task == MANY:
        texts, names = _phenomena.training_texts()
        classes = sorted(set(names))
        return texts, [classes.index(name) for name in names]
    texts, labels = load_table(shared_folder() / "data" / task / "train.tsv")
    return list(texts), labels.tolist()


def finetuning_rows(task: str) -> tuple[list[Any], list[Any]]:
    """Return the texts and labels that a checkpoint is fine-tuned on."""
    texts, labels = training_rows(task)
    rows = np.random.default_rng(0).permutation(len(texts))[: N_TRAINING.get(task)].tolist()
    return [texts[row] for row in rows], [labels[row] for row in rows]


@dataclass(frozen=True)
class Checkpoint:
    """A classifier: a shared model, or MiniLM after `EPOCHS` epochs on a few rows of its task."""

    name: str
    task: str

    def folder(self) -> Path:
        """Return its folder, after fine-tuning it if it is missing."""
        if self.task not in N_TRAINING:
            return shared_folder() / "models" / self.name
        folder = FOLDER / self.name
        if not folder.exists():
            _finetune(self.task, folder)
        return folder

    def vectors(self, texts: Sequence[Input], pooling: str = HEAD_INPUT) -> Floats:
        """Return the vectors (n, d) of the texts."""
        name = f"{self.name}-{_digest(self.folder())}"
        return cached_vectors(self.folder(), name, texts, pooling)


@cache
def _digest(folder: Path) -> str:
    """Return a digest of the weights in a folder."""
    with (folder / "model.safetensors").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


CHECKPOINTS = {
    name: Checkpoint(name, task)
    for name, task in (
        ("cola-minilm", "cola"),
        ("mrpc-minilm", "mrpc"),
        ("sst2-minilm", "sst2_sentence"),
        ("phenomenon-12-minilm", MANY),
    )
}


def _finetune(task: str, folder: Path) -> None:
    """Fine-tune MiniLM on a few rows of a task and save it."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    texts, labels = finetuning_rows(task)
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder())
    encoded = tokenizer(texts, truncation=True, max_length=32)
    rows = [
        {"labels": label, **{name: values[i] for name, values in encoded.items()}}
        for i, label in enumerate(labels)
    ]
    print(f"fine-tuning MiniLM on {task}", file=sys.stderr, flush=True)
    torch.manual_seed(0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        trainer = Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(
                minilm_folder(), num_labels=len(set(labels)), dtype=torch.float32
            ),
            args=TrainingArguments(scratch, bf16=task == MANY, **ARGUMENTS),
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=rows,
        )
        trainer.train()
        complete = Path(scratch) / "complete"
        trainer.model.save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        complete.rename(folder)


def layer_name(layer: int) -> str:
    """Return the name of the mean-pooled vectors of a layer; 0 is the input of the first layer."""
    return f"mean, layer {layer}"


def cached_vectors(model: Path, name: str, texts: Sequence[Input], pooling: str) -> Floats:
    """Return the vectors (n, d) of the texts from a file, after encoding them if it is missing.

    `name` identifies the checkpoint and must change with its weights. A file holds all poolings.
    """
    distinct = sorted(set(texts))
    digest = hashlib.sha256(json.dumps([name, MAX_LENGTH, *distinct]).encode()).hexdigest()[:20]
    file = FOLDER / "vectors" / f"{digest}.npz"
    if not file.exists():
        print(f"{name}: encoding {len(distinct)} texts", file=sys.stderr, flush=True)
        vectors = layer_vectors(model, distinct)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file.with_suffix(".new.npz"), **vectors)
        file.with_suffix(".new.npz").rename(file)
    with np.load(file) as stored:
        number = {text: row for row, text in enumerate(distinct)}
        return stored[pooling][[number[text] for text in texts]]


@torch.inference_mode()
def layer_vectors(model: Path, texts: Sequence[Input]) -> dict[str, Floats]:
    """Embed texts or pairs of texts by the model of a folder, which must be a BERT.

    The head input is the output of the pooler, as for a classifier in evaluation mode.
    """
    from transformers import AutoModel, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    network = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    columns = (
        [list(texts)]
        if isinstance(texts[0], str)
        else [list(each) for each in zip(*texts, strict=True)]
    )
    tokens = tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
    lengths = [len(row) for row in tokens["input_ids"]]
    found: dict[str, Any] = {}
    for rows in _batches(lengths):
        part = {key: [values[row] for row in rows] for key, values in tokens.items()}
        batch = tokenizer.pad(part, return_tensors="pt")
        output = network(**batch, output_hidden_states=True)
        weights = batch["attention_mask"][:, :, None].float()
        pooled = {
            layer_name(layer): (hidden * weights).sum(1) / weights.sum(1)
            for layer, hidden in enumerate(output.hidden_states)
        }
        for key, values in {**pooled, HEAD_INPUT: output.pooler_output}.items():
            place = found.setdefault(key, np.empty((len(texts), values.shape[1]), np.float32))
            place[rows] = values.numpy()
    return found


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Split rows in the order of their lengths into batches of `BATCH_TOKENS` tokens."""
    batches: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches[-1] and (len(batches[-1]) + 1) * lengths[row] > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(row)
    return batches

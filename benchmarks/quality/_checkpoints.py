"""The classifiers of the tables on similarity, and the vectors of texts from their layers.

Some are shared models; the others are fine-tuned here and kept in build/ like all vectors.
"""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._data import Floats, read_table, shared_folder
from benchmarks._places import ROOT
from benchmarks.quality import _phenomena
from benchmarks.quality._encoders import encoder_folder, molecules
from isoadapt import TransformerEncoder

FOLDER = ROOT / "build" / "dual_use"
MANY, MOLECULES = "phenomenon-12", "bbb"
HEAD_INPUT = "head_input"
MAX_LENGTH = 256  # tokens of a text whose vector is computed
EPOCHS = 20
LIGHT_EPOCHS = 3  # of a light fine-tuning, which trains the last third of the layers and the head
N_TRAINING = {"sst2_sentence": 600, MANY: 500, MOLECULES: 600}  # rows that are fine-tuned on here
N_OTHERS = 2000  # of other tasks
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
    if task == MOLECULES:
        return molecules()
    texts, labels = read_table(task, "train")
    return texts, labels.tolist()


def finetuning_rows(task: str) -> tuple[list[Any], list[Any]]:
    """Return the texts and labels that a checkpoint is fine-tuned on."""
    texts, labels = training_rows(task)
    most = N_TRAINING.get(task, N_OTHERS)
    rows = np.random.default_rng(0).permutation(len(texts))[:most].tolist()
    return [texts[row] for row in rows], [labels[row] for row in rows]


@dataclass(frozen=True)
class Checkpoint:
    """A classifier: a shared model, or an encoder fine-tuned on a few rows of its task."""

    name: str
    task: str
    layers: int = 6
    teacher: str = "minilm"  # the encoder that is fine-tuned, or another one
    light: bool = False  # whether the fine-tuning is a light one

    def folder(self) -> Path:
        """Return its folder, after fine-tuning it if it is missing."""
        shared, folder = shared_folder() / "models" / self.name, FOLDER / self.name
        if shared.exists():
            return shared
        if not folder.exists():
            _finetune(self, folder)
        return folder

    def vectors(self, texts: Sequence[Input], blocks: Sequence[str] = (HEAD_INPUT,)) -> Floats:
        """Return the blocks of columns (n, d) of the texts side by side, all from one pass."""
        means = [("mean", layer) for layer in range(self.layers + 1)]
        every = [(HEAD_INPUT, -1), *means, ("cls", self.layers)]
        encoder = _encoder(self.folder(), pooling=every)
        X, names = encoder.transform(texts), _block_of_columns(encoder)
        return np.hstack([X[:, names == block] for block in blocks])

    def readout_blocks(self) -> list[str]:
        """Return the blocks of pooling="readout"."""
        return list(dict.fromkeys(_block_of_columns(_encoder(self.folder(), pooling="readout"))))

    def head_inputs(self, texts: Sequence[Input]) -> Floats:
        """Return what the head reads, from a pass for it alone."""
        return _encoder(self.folder(), pooling=HEAD_INPUT).transform(texts)

    def readout(self, texts: Sequence[Input]) -> Floats:
        """Return what the head reads and the columns of its layers, of pooling="readout"."""
        return _encoder(self.folder(), pooling="readout").transform(texts)

    def teacher_vectors(self, texts: Sequence[Input]) -> Floats:
        """Return the vectors of the texts by the teacher, at unit length."""
        vectors = _encoder(encoder_folder(self.teacher)).transform(texts)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _encoder(folder: Path, **parameters: Any) -> TransformerEncoder:
    """Return an encoder that keeps its vectors."""
    cache = FOLDER / "vectors"
    return TransformerEncoder(folder, max_length=MAX_LENGTH, cache=cache, **parameters)


def _block_of_columns(encoder: TransformerEncoder) -> NDArray[np.str_]:
    """Return for each column the name of its pooling and layer, such as "layer2_mean"."""
    return np.array([name.rpartition("_")[0] for name in encoder.get_feature_names_out()])


CHECKPOINTS = {
    one.name: one
    for one in (
        Checkpoint("cola-minilm", "cola"),
        Checkpoint("mrpc-minilm", "mrpc"),
        Checkpoint("sst2-minilm", "sst2_sentence"),
        Checkpoint("phenomenon-12-minilm", MANY),
        Checkpoint("cola-l3", "cola", layers=3, teacher="paraphrase-l3"),
    )
}


def _finetune(checkpoint: Checkpoint, folder: Path) -> None:
    """Fine-tune the teacher of a checkpoint on a few rows of its task and save it."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    task, encoder = checkpoint.task, encoder_folder(checkpoint.teacher)
    texts, labels = finetuning_rows(task)
    tokenizer: Any = AutoTokenizer.from_pretrained(encoder)
    encoded = tokenizer(texts, truncation=True, max_length=64 if task == MOLECULES else 32)
    rows = [
        {"labels": label, **{name: values[i] for name, values in encoded.items()}}
        for i, label in enumerate(labels)
    ]
    print(f"fine-tuning {checkpoint.name}", file=sys.stderr, flush=True)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        encoder, num_labels=len(set(labels)), dtype=torch.float32
    )
    arguments = ARGUMENTS | {"bf16": task == MANY}
    if checkpoint.light:
        _freeze_lower_layers(model.base_model)
        arguments |= {"num_train_epochs": LIGHT_EPOCHS, "bf16": False}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(scratch, **arguments),
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=rows,
        )
        trainer.train()
        complete = Path(scratch) / "complete"
        trainer.model.save_pretrained(complete)
        tokenizer.save_pretrained(complete)
        complete.rename(folder)


def _freeze_lower_layers(encoder: Any) -> None:
    """Freeze all of an encoder but the last third of its layers and the pooler."""
    lists = [part for part in encoder.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = max(lists, key=len)
    encoder.requires_grad_(False)
    for part in [*layers[2 * len(layers) // 3 :], getattr(encoder, "pooler", None) or layers[-1]]:
        part.requires_grad_(True)

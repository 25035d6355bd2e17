"""The classifiers of the tables on similarity, and the vectors of texts from their layers.

Some are shared models; the others are fine-tuned here and kept in build/ like all vectors.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks._data import Floats, read_table, shared_folder
from benchmarks._places import ROOT
from benchmarks.quality import _intents, _phenomena
from benchmarks.quality._encoders import built, encoder_folder, molecules
from isoadapt import AdaptedEncoder, TeacherReadout, TransformerEncoder

FOLDER = ROOT / "build" / "dual_use"
MANY, MOLECULES = "phenomenon-12", "bbb"
HEAD_INPUT = "head_input"
MAX_LENGTH = 256  # tokens of a text whose vector is computed
EPOCHS = 20
LIGHT_EPOCHS = 3  # of a light fine-tuning, which trains the last third of the layers and the head
INTENTS: dict[str, dict[str, Any]] = {  # other arguments of fine-tuning on intents
    "clinc150": {"num_train_epochs": 5, "per_device_train_batch_size": 16},
    "banking77": {"num_train_epochs": 5, "learning_rate": 2e-4},
}
N_TRAINING = {  # rows that are fine-tuned on here
    **dict.fromkeys(INTENTS, 3000),
    "sst2_sentence": 600,
    MANY: 500,
    MOLECULES: 600,
}
N_OTHERS = 2000  # of other tasks
ARGUMENTS = {
    "num_train_epochs": EPOCHS,
    "learning_rate": 1e-4,  # after a warm-up over 5 % of the steps; falls linearly to 0
    "warmup_steps": 0.05,
    "per_device_train_batch_size": 32,
    "train_sampling_strategy": "group_by_length",
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
    "use_cpu": True,
    "dataloader_pin_memory": False,
}


def training_rows(task: str) -> tuple[list[Any], list[Any]]:
    """Return all training texts or pairs of a task and their labels."""
    if task == MANY or task in INTENTS:
        texts, names = (
            _intents.training_texts(task) if task in INTENTS else _phenomena.training_texts()
        )
        classes = sorted(set(names))
        return texts, [classes.index(name) for name in names]
    if task == MOLECULES:
        return molecules()
    texts, labels = read_table(task, "train")
    return texts, labels.tolist()


def unseen_rows(task: str) -> tuple[list[Any], Any]:
    """Return texts or pairs that a task is judged on, and their labels."""
    if task == MANY:
        return _phenomena.unseen_texts()
    return _intents.unseen_texts(task) if task in INTENTS else read_table(task, "dev")


def finetuning_rows(task: str) -> tuple[list[Any], list[Any]]:
    """Return the texts and labels that a checkpoint is fine-tuned on."""
    texts, labels = training_rows(task)
    most = N_TRAINING.get(task, N_OTHERS)
    return drawn(texts, most), drawn(labels, most)


def drawn(items: list[Any], most: int, seed: int = 0) -> list[Any]:
    """Return at most so many of the items, drawn with a fixed seed."""
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))[:most]]


class Checkpoint(NamedTuple):
    """A classifier: a shared model, or an encoder fine-tuned on a few rows of its task."""

    name: str
    task: str
    teacher: str = "minilm"  # the encoder that is fine-tuned, or another one
    light: bool = False  # whether the fine-tuning is a light one
    seed: int = 0

    def folder(self) -> Path:
        """Return its folder, after fine-tuning it if it is missing."""
        shared = shared_folder() / "models" / self.name
        return shared if shared.exists() else built(FOLDER / self.name, partial(_finetune, self))

    def vectors(self, texts: Sequence[Any], pooling: Any = HEAD_INPUT, layer: int = -1) -> Floats:
        """Return what the head reads for the texts, or what another pooling gives."""
        return _encoder(self.folder(), pooling=pooling, layer=layer).transform(texts)

    def teacher_vectors(self, texts: Sequence[Any]) -> Floats:
        """Return the vectors of the texts by the teacher, at unit length."""
        vectors = _encoder(encoder_folder(self.teacher)).transform(texts)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def adapted(self, adapter: Any, texts: list[str], **options: Any) -> Any:
        """Return the classifier with an adapter, fitted to texts."""
        taught = isinstance(adapter, TeacherReadout)
        if taught:
            options["teacher"] = _encoder(encoder_folder(self.teacher))
        encoder = _encoder(self.folder(), pooling="readout" if taught else HEAD_INPUT)
        return AdaptedEncoder(encoder, adapter, **options).fit(texts)


def _encoder(folder: Path, **parameters: Any) -> TransformerEncoder:
    """Return an encoder that keeps its vectors."""
    cache = FOLDER / "vectors"
    return TransformerEncoder(folder, max_length=MAX_LENGTH, cache=cache, **parameters)


CHECKPOINTS = {
    one.name: one
    for one in (
        Checkpoint("clinc150-minilm", "clinc150"),
        Checkpoint("banking77-minilm", "banking77"),
        Checkpoint("cola-minilm", "cola"),
        Checkpoint("mrpc-minilm", "mrpc"),
        Checkpoint("sst2-minilm", "sst2_sentence"),
        Checkpoint("phenomenon-12-minilm", MANY),
        Checkpoint("cola-l3", "cola", teacher="paraphrase-l3"),
    )
}


def _finetune(checkpoint: Checkpoint, scratch: Path) -> Path:
    """Fine-tune the teacher of a checkpoint on a few rows of its task and save it."""
    import transformers

    task, encoder = checkpoint.task, encoder_folder(checkpoint.teacher)
    texts, labels = finetuning_rows(task)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(encoder)
    long = task == MOLECULES or task in INTENTS
    encoded = tokenizer(texts, truncation=True, max_length=64 if long else 32)
    rows = [
        {"labels": label, **{name: values[i] for name, values in encoded.items()}}
        for i, label in enumerate(labels)
    ]
    print(f"fine-tuning {checkpoint.name}", file=sys.stderr, flush=True)
    torch.manual_seed(checkpoint.seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        encoder, num_labels=len(set(labels)), dtype=torch.float32
    )
    arguments = ARGUMENTS | {"bf16": task == MANY, "seed": checkpoint.seed} | INTENTS.get(task, {})
    if checkpoint.light:
        _freeze_lower_layers(model.base_model)
        arguments |= {"num_train_epochs": LIGHT_EPOCHS, "bf16": False}
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(str(scratch), **arguments),
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=rows,
    )
    trainer.train()
    for part in (trainer.model, tokenizer):
        part.save_pretrained(scratch / "complete")
    return scratch / "complete"


def _freeze_lower_layers(encoder: Any) -> None:
    """Freeze all of an encoder but the last third of its layers and the pooler."""
    lists = [part for part in encoder.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = max(lists, key=len)
    encoder.requires_grad_(False)
    for part in [*layers[2 * len(layers) // 3 :], getattr(encoder, "pooler", None) or layers[-1]]:
        part.requires_grad_(True)

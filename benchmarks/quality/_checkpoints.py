"""Checkpoints of MiniLM after 1, 5 and 20 epochs of fine-tuning on a task, kept in build/."""

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._data import shared_folder
from benchmarks._places import ROOT
from isoadapt._utils.threads import one_thread
from isoadapt.datasets import load_table, minilm_folder

FOLDER = ROOT / "build" / "dual_use"
EPOCHS = (1, 5, 20)
MANY = "phenomenon-12"

Texts = Sequence[str] | Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Recipe:
    """What a run of fine-tuning depends on; one run gives the checkpoints of all `epochs`."""

    task: str
    rows: int  # drawn from the training split without replacement
    max_length: int  # tokens
    epochs: tuple[int, ...] = EPOCHS
    lr: float = 1e-4  # highest value, after a warm-up over 5 % of the steps; falls linearly to 0
    batch_size: int = 32
    random_state: int = 0
    bfloat16: bool = True  # mixed precision


RECIPES = {
    recipe.task: recipe
    for recipe in (
        Recipe("sst2_sentence", 600, 32, bfloat16=False),
        Recipe(MANY, 500, 32),
        Recipe("cola", 600, 32),
        Recipe("stsb", 250, 48),
        Recipe("mrpc", 150, 64),
        Recipe("rte", 120, 64),
    )
}


def training_rows(task: str) -> tuple[Texts, list[int] | list[float]]:
    """Return all training texts or pairs of a task and their labels, integers or floats."""
    if task == MANY:
        from benchmarks.quality._phenomena import training_texts

        texts, names = training_texts()
        classes = sorted(set(names))
        return texts, [classes.index(name) for name in names]
    texts, labels = load_table(shared_folder() / "data" / task / "train.tsv")
    if labels is None:
        raise ValueError(f"the training split of {task!r} has no column of labels")
    return texts, labels.tolist()


def recipe_rows(recipe: Recipe) -> tuple[list[Any], list[Any]]:
    """Return the texts and labels that a checkpoint is fine-tuned on."""
    texts, labels = training_rows(recipe.task)
    rng = np.random.default_rng(recipe.random_state)
    rows = rng.permutation(len(texts))[: recipe.rows].tolist()
    return [texts[row] for row in rows], [labels[row] for row in rows]


def checkpoint_folder(recipe: Recipe, epoch: int) -> Path:
    """Return the folder of a checkpoint; another recipe or other texts have another folder."""
    content = json.dumps([asdict(recipe), *recipe_rows(recipe)])
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return FOLDER / f"{recipe.task}-{digest}" / f"epoch-{epoch}"


def obtain_checkpoint(recipe: Recipe, epoch: int) -> Path:
    """Return the folder of a checkpoint, after fine-tuning all of the recipe if it is missing."""
    if epoch == 0:
        return minilm_folder()
    folder = checkpoint_folder(recipe, epoch)
    if not folder.exists():
        finetune(recipe)
    return folder


def finetune(recipe: Recipe) -> None:
    """Fine-tune MiniLM on one thread and save it at the epochs of the recipe."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    texts, labels = recipe_rows(recipe)
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_folder())

    class Saver(TrainerCallback):
        """Saves the model at the epochs of the recipe."""

        def on_epoch_end(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
            epoch = round(state.epoch)
            print(f"{recipe.task}: epoch {epoch}", file=sys.stderr, flush=True)
            if epoch in recipe.epochs:
                _save(checkpoint_folder(recipe, epoch), model, tokenizer)

    with one_thread(), tempfile.TemporaryDirectory() as scratch:
        torch.manual_seed(recipe.random_state)
        regression = isinstance(labels[0], float)
        network = AutoModelForSequenceClassification.from_pretrained(
            minilm_folder(),
            num_labels=1 if regression else len(set(labels)),
            problem_type="regression" if regression else "single_label_classification",
            dtype=torch.float32,
        )
        trainer = Trainer(
            model=network,
            args=TrainingArguments(
                output_dir=scratch,
                num_train_epochs=max(recipe.epochs),
                learning_rate=recipe.lr,
                warmup_steps=0.05,
                per_device_train_batch_size=recipe.batch_size,
                train_sampling_strategy="group_by_length",
                seed=recipe.random_state,
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                report_to="none",
                bf16=recipe.bfloat16,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            data_collator=DataCollatorWithPadding(tokenizer),
            train_dataset=_tokenized(tokenizer, texts, labels, recipe.max_length),
            callbacks=[Saver()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def _tokenized(
    tokenizer: Any, texts: list[Any], labels: list[Any], max_length: int
) -> list[dict[str, Any]]:
    pairs = isinstance(texts[0], tuple)
    columns = list(map(list, zip(*texts, strict=True))) if pairs else [texts]
    encoded = tokenizer(*columns, truncation=True, max_length=max_length)
    return [
        {"labels": label, **{name: values[i] for name, values in encoded.items()}}
        for i, label in enumerate(labels)
    ]


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save a checkpoint under a temporary name and rename it, so that it is complete or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        written = Path(scratch) / "new"
        model.save_pretrained(written)
        tokenizer.save_pretrained(written)
        if not folder.exists():
            written.rename(folder)


def main() -> None:
    """Fine-tune on all tasks whose checkpoints are missing."""
    for recipe in RECIPES.values():
        for epoch in recipe.epochs:
            obtain_checkpoint(recipe, epoch)


if __name__ == "__main__":
    main()

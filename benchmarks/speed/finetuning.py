"""Time that a penalty adds to a fine-tuning step of MiniLM, against the Trainer."""

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.speed._harness import Comparison, compare
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import IsotropyTrainer
from isoadapt.losses import CosRegLoss, IsoScoreLoss, PersistentEntropyLoss
from tools.acceptability.corpus import draw_corpus

ISTAR = IsoScoreLoss(0.2, "linear")
# A penalty, its place, and the share of a step without penalty that it may take, by device.
CASES: dict[str, tuple[nn.Module, str, dict[str, float]]] = {
    "I-STAR on the head input": (ISTAR, "head_input", {"cpu": 0.10, "cuda": 0.03}),
    "I-STAR on all layers' tokens": (ISTAR, "all", {"cpu": 0.10, "cuda": 0.03}),
    "CosReg on the last layer's tokens": (CosRegLoss(), "last", {"cpu": 0.02}),
    "persistent entropy on the head input": (PersistentEntropyLoss(), "head_input", {"cpu": 0.05}),
}


def run(quick: bool) -> Iterator[Comparison]:
    """Measure on the CPU."""
    yield from penalty_share(torch.device("cpu"), *((1, 8, 32) if quick else (9, 32, 4096)))


def penalty_share(
    device: torch.device, repeats: int, batch_size: int, n_rows: int
) -> Iterator[Comparison]:
    """Compare steps with each penalty to steps of the Trainer; the target bounds the share.

    A share of a few percent is smaller than the noise of the machine. The time of the penalty alone
    is therefore compared to a whole step too.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = FinetuningBench(device, batch_size, n_rows, folder)
        plain = partial(bench.step, bench.trainer(transformers.Trainer))
        for title, (penalty, where, shares) in CASES.items():
            settings = {"penalty": penalty, "where": where, "shrinkage_tokens": 2048}
            trainer = bench.trainer(IsotropyTrainer, **settings)
            trainer._update_prior_cov()
            trainer.training_step(bench.model, bench.batch)
            share = shares.get(device.type)
            rest: dict[str, Any] = {"repeats": repeats, "rows": trainer._last_points}
            name = f"fine-tuning step with {title}, against without"
            target = share and 1 / (1 + share)
            yield compare(name, partial(bench.step, trainer), plain, target=target, **rest)
            name = f"forward and backward of {title} alone, against a whole plain step"
            target = share and 1 / share
            yield compare(name, partial(bench.penalise, trainer), plain, target=target, **rest)


class FinetuningBench:
    """Fine-tuning of MiniLM with a new head, with one model and one batch for all trainers."""

    def __init__(self, device: torch.device, batch_size: int, n_rows: int, folder: str) -> None:
        self.device, self.batch_size, self.folder = device, batch_size, folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder())
        corpus = draw_corpus(n_rows, 2, seed=0)
        tokens = self.tokenizer(list(corpus.train_texts))["input_ids"]
        self.rows = [
            {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(label)}
            for ids, label in zip(tokens, corpus.train_labels, strict=True)
        ]
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            minilm_folder(), num_labels=2, dtype=torch.float32
        ).to(device)
        batch = transformers.DataCollatorWithPadding(self.tokenizer)(self.rows[:batch_size])
        self.batch = {name: values.to(device) for name, values in batch.items()}

    def trainer(self, kind: Any, **settings: Any) -> Any:
        """Return a trainer of the common model that is ready for a step."""
        args = transformers.TrainingArguments(
            self.folder,
            per_device_train_batch_size=self.batch_size,
            per_device_eval_batch_size=self.batch_size,
            report_to="none",
            disable_tqdm=True,
            use_cpu=self.device.type == "cpu",
        )
        common = {"train_dataset": self.rows, "processing_class": self.tokenizer}
        trainer = kind(model=self.model, args=args, **common, **settings)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.create_optimizer_and_scheduler(100)
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    def step(self, trainer: Any) -> None:
        """Run one training step, and wait until the device has finished it."""
        trainer.training_step(self.model, self.batch)
        trainer.optimizer.step()
        self.model.zero_grad()
        self._wait()

    def penalise(self, trainer: Any) -> None:
        """Compute the penalty of the points of the batch, and its gradient."""
        points, objective = trainer._last_points.requires_grad_(), trainer.isotropy_objective
        labels = self.batch["labels"] if len(points) == self.batch_size else None
        points.grad = None
        objective(points.new_zeros(()), points, labels=labels)[1].backward()
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

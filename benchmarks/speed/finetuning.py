"""Time that a penalty adds to a fine-tuning step of MiniLM, against the Trainer."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.speed._harness import Comparison, Measurement, Result, compare
from benchmarks.speed.isoscore import check_agreement, isoscore_by_singular_values
from isoadapt.encoders._models import quiet
from isoadapt.losses import (
    CosRegLoss,
    IsoScoreLoss,
    PersistentEntropyLoss,
    SpectrumControlLoss,
)

BATCH_SIZE = 32
N_ROWS = 4096
ZETA = 0.2


class Case(NamedTuple):
    """A penalty, its place, and the share of a step without penalty that it may take on a CPU."""

    name: str
    penalty: nn.Module
    where: str
    share: float | None
    share_cuda: float | None = None


class SingularValuesLoss(nn.Module):
    """1 - IsoScore*, computed step by step from its definition."""

    zeta = ZETA

    def forward(self, Z: Tensor, prior_cov: Tensor) -> Tensor:
        return 1 - isoscore_by_singular_values(Z, prior_cov, ZETA)


CASES = (
    Case("I-STAR on the head input", IsoScoreLoss(ZETA, "linear"), "head_input", 0.10, 0.03),
    Case("I-STAR on all layers' tokens", IsoScoreLoss(ZETA, "linear"), "all", 0.10, 0.03),
    Case("I-STAR by svdvals on the head input", SingularValuesLoss(), "head_input", None),
    Case("I-STAR by svdvals on all layers' tokens", SingularValuesLoss(), "all", None),
    Case("CosReg on the last layer's tokens", CosRegLoss(), "last", 0.02),
    Case("persistent entropy on the head input", PersistentEntropyLoss(), "head_input", 0.05),
    Case("spectrum control on the head input", SpectrumControlLoss(), "head_input", None),
)


def run(quick: bool) -> list[Result]:
    """Measure on the CPU; `quick` leaves out the penalties that have no target."""
    if quick:
        cases = [case for case in CASES if case.share is not None]
        return list(penalty_share(torch.device("cpu"), repeats=1, n_rows=64, cases=cases))
    return list(penalty_share(torch.device("cpu"), repeats=9))


def penalty_share(
    device: torch.device,
    repeats: int,
    batch_size: int = BATCH_SIZE,
    n_rows: int = N_ROWS,
    cases: Sequence[Case] = CASES,
) -> Iterator[Result]:
    """Compare steps with each penalty to steps of the Trainer; the target bounds the share.

    A share of a few percent is smaller than the noise of the machine. The time of the penalty alone
    is therefore compared to a whole step too. The last result is the time of Σ_S for the tokens of
    all layers, which is computed once per epoch.
    """
    with tempfile.TemporaryDirectory() as folder:
        bench = FinetuningBench(device, batch_size, n_rows, folder)
        for case in cases:
            trainer = bench.trainer(case.penalty, case.where)
            trainer._update_prior_covs()
            trainer.training_step(bench.model, bench.batch)
            if isinstance(case.penalty, SingularValuesLoss):
                check_agreement(
                    trainer._last_points, trainer.isotropy_objective.prior_covs[0], ZETA
                )
            share = case.share if device.type == "cpu" else case.share_cuda
            result = compare(
                f"fine-tuning step with {case.name}, against without",
                partial(bench.step, trainer),
                partial(bench.step, bench.plain),
                repeats=repeats,
                target=None if share is None else 1 / (1 + share),
                n=len(trainer._last_points),
                d=trainer._last_points.shape[1],
                batch_size=batch_size,
                device=device.type,
            )
            yield with_share(result)
            yield compare(
                f"forward and backward of {case.name} alone, against a whole plain step",
                partial(bench.penalise, trainer),
                partial(bench.step, bench.plain),
                repeats=repeats,
                target=None if share is None else 1 / share,
                n=len(trainer._last_points),
                d=trainer._last_points.shape[1],
                batch_size=batch_size,
                device=device.type,
            )
        yield bench.shrinkage()


def with_share(result: Comparison) -> Comparison:
    """Add the share of a step without penalty that the penalty takes to the facts."""
    return replace(result, facts={**result.facts, "share": 1 / result.ratio - 1})


class FinetuningBench:
    """Fine-tuning of MiniLM with a new head, with one model and one batch for all trainers."""

    def __init__(self, device: torch.device, batch_size: int, n_rows: int, folder: str) -> None:
        from transformers import AutoModelForSequenceClassification, Trainer

        from isoadapt.datasets import minilm_folder

        self.device, self.batch_size, self.folder = device, batch_size, folder
        self.rows, self.collate = _rows(n_rows)
        with quiet():
            self.model = AutoModelForSequenceClassification.from_pretrained(
                minilm_folder(), num_labels=2, dtype=torch.float32
            ).to(device)
        self.plain = self._ready(Trainer)
        self.batch = self.plain._prepare_inputs(self.collate(self.rows[:batch_size]))

    def trainer(self, penalty: nn.Module, where: str) -> Any:
        """Return a trainer of the common model."""
        from isoadapt.finetune import IsotropyTrainer

        make = partial(IsotropyTrainer, penalty=penalty, where=where, shrinkage_tokens=2048)
        return self._ready(make)

    def step(self, trainer: Any) -> None:
        """Run one training step, and wait until the device has finished it."""
        trainer.training_step(self.model, self.batch)
        trainer.optimizer.step()
        self.model.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def penalise(self, trainer: Any) -> None:
        """Compute the penalty of the points of the batch, and its gradient."""
        points = trainer._last_points.requires_grad_()
        labels = self.batch["labels"] if len(points) == self.batch_size else None
        points.grad = None
        trainer.isotropy_objective.values([points], [labels])[0].backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def shrinkage(self) -> Measurement:
        """Measure Σ_S of the tokens of all layers, with the default number of tokens."""
        from isoadapt.finetune import IsotropyTrainer

        make = partial(IsotropyTrainer, penalty=IsoScoreLoss(ZETA), where="all")
        trainer = self._ready(make)
        trainer._update_prior_covs()
        logged = trainer.state.log_history[-1]
        return Measurement(
            "Σ_S of all layers' tokens, once an epoch",
            (logged["shrinkage_seconds"],),
            {"n": int(logged["shrinkage_points"]), "d": self.model.config.hidden_size},
        )

    def _ready(self, make: Callable[..., Any]) -> Any:
        from transformers import PrinterCallback, TrainingArguments

        args = TrainingArguments(
            self.folder,
            per_device_train_batch_size=self.batch_size,
            per_device_eval_batch_size=self.batch_size,
            report_to="none",
            disable_tqdm=True,
            use_cpu=self.device.type == "cpu",
        )
        trainer = make(
            model=self.model, args=args, train_dataset=self.rows, data_collator=self.collate
        )
        trainer.remove_callback(PrinterCallback)
        trainer.create_optimizer_and_scheduler(100)
        trainer.current_gradient_accumulation_steps = 1
        return trainer


def _rows(n_rows: int) -> tuple[list[dict[str, Any]], Any]:
    from transformers import AutoTokenizer, DataCollatorWithPadding

    from isoadapt.datasets import minilm_folder
    from tools.acceptability.corpus import draw_corpus

    corpus = draw_corpus(n_rows, 2, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokens = tokenizer(list(corpus.train_texts))["input_ids"]
    rows = [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(label)}
        for ids, label in zip(tokens, corpus.train_labels, strict=True)
    ]
    return rows, DataCollatorWithPadding(tokenizer)

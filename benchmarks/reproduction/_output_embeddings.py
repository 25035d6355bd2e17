"""Penalties on the output embeddings of a tiny random T5: that the path works, nothing more."""

import tempfile
from typing import Any

import torch

from isoadapt.finetune import IsotropyTrainer
from isoadapt.losses import CosRegLoss, SpectrumControlLoss

PENALTIES = {
    "CosReg": CosRegLoss(),
    "spectrum control, polynomial": SpectrumControlLoss(per_row=False),
    "spectrum control, exponential": SpectrumControlLoss("exponential", per_row=False),
}
VOCABULARY, LENGTH, ROWS, STEPS = 64, 8, 64, 60


def output_embeddings(name: str) -> dict[str, float]:
    """Return the penalty of the output embeddings before and after a few steps of training.

    `after_without` is what it comes to when the same steps are taken without the penalty.
    """
    before, after = _train(name, lam=1.0)
    return {"before": before, "after": after, "after_without": _train(name, lam=0.0)[1]}


def _train(name: str, lam: float) -> tuple[float, float]:
    from transformers import (
        PrinterCallback,
        T5Config,
        T5ForConditionalGeneration,
        TrainingArguments,
    )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_heads=2,
                decoder_start_token_id=0,
            )
        )
        model.get_output_embeddings().weight.data += 1.0  # one direction in common, as in practice
        tokens = torch.randint(2, VOCABULARY, (ROWS, LENGTH))
        with tempfile.TemporaryDirectory() as folder:
            trainer = IsotropyTrainer(
                model=model,
                args=TrainingArguments(
                    folder,
                    max_steps=STEPS,
                    learning_rate=1e-2,
                    use_cpu=True,
                    report_to="none",
                    save_strategy="no",
                    disable_tqdm=True,
                    dataloader_pin_memory=False,
                ),
                train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
                penalty=PENALTIES[name],
                lam=lam,
                where="output_embeddings",
            )
            trainer.remove_callback(PrinterCallback)
            before = _penalty(trainer)
            trainer.train()
    return before, _penalty(trainer)


@torch.no_grad()
def _penalty(trainer: Any) -> float:
    return float(trainer.isotropy_objective.penalties[0](trainer.model.get_output_embeddings().weight))

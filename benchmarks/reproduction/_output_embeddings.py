"""Penalties on the output embeddings of a tiny random T5, only to test that they have an effect."""

import tempfile
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.reproduction._cells import JSON, POINTS, Cell
from benchmarks.reproduction._training import (
    FIGURES,
    Condition,
    make_penalty,
    penalty_settings,
)
from isoadapt.finetune import IsotropyTrainer

PLACE, TASK = "output_embeddings", "tiny T5"
PENALTIES = (
    Condition("CosReg", "cosreg", where=PLACE),
    *(
        Condition(f"spectrum control, {decay}", "spectrum-control", options, where=PLACE)
        for decay in ("polynomial", "exponential")
        for options in [{"decay": decay, "per_row": False}]
    ),
)
VOCABULARY, LENGTH, ROWS, STEPS, RATE = 64, 8, 64, 60, 1e-2
SIZES = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}


def settings(condition: Condition) -> dict[str, JSON]:
    """Return all settings that affect the figures."""
    return {
        **penalty_settings(condition),
        "model": SIZES,
        "vocabulary": VOCABULARY,
        "rows": ROWS,
        "length": LENGTH,
        "steps": STEPS,
        "lr": RATE,
        "figures": FIGURES,
    }


def cell(condition: Condition, seed: int) -> Cell:
    """Return the cell for a penalty and a seed."""
    run = partial(output_embeddings, condition, seed)
    return Cell(POINTS, condition.name, TASK, seed, settings(condition), run)


def output_embeddings(condition: Condition, seed: int = 0) -> dict[str, float]:
    """Return the penalty of the output embeddings before and after a few steps of training.

    `after_without` is its value after the same steps without the penalty.
    """
    before, after = _train(condition, seed)
    without = _train(replace(condition, lam=0.0), seed)
    return {"before": before, "after": after, "after_without": without[1]}


def _train(condition: Condition, seed: int) -> tuple[float, float]:
    from transformers import (
        PrinterCallback,
        T5Config,
        T5ForConditionalGeneration,
        TrainingArguments,
    )

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **SIZES)
        )
        model.get_output_embeddings().weight.data += 1.0  # a common direction
        tokens = torch.randint(2, VOCABULARY, (ROWS, LENGTH))
        with tempfile.TemporaryDirectory() as folder:
            trainer = IsotropyTrainer(
                model=model,
                args=TrainingArguments(
                    folder,
                    max_steps=STEPS,
                    seed=seed,
                    learning_rate=RATE,
                    use_cpu=True,
                    report_to="none",
                    save_strategy="no",
                    disable_tqdm=True,
                    dataloader_pin_memory=False,
                ),
                train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
                penalty=make_penalty(condition),
                lam=condition.lam,
                where=condition.where,
            )
            trainer.remove_callback(PrinterCallback)
            before = _penalty(trainer)
            trainer.train()
    return before, _penalty(trainer)


@torch.no_grad()
def _penalty(trainer: Any) -> float:
    penalty = trainer.isotropy_objective.penalty
    return float(penalty(trainer.model.get_output_embeddings().weight))

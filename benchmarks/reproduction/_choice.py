"""Choice of the learning rate and epochs of a task on a split of its training rows.

If the first bases under the chosen recipe have not learned the task, the recipe of the published
encoder replaces it.
"""

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks.reproduction._bases import PUBLISHED, Learned, learned
from benchmarks.reproduction._cells import CHOICE, Cell, Record, Suite
from benchmarks.reproduction._measuring import embed, task_figures
from benchmarks.reproduction._training import (
    FIGURES,
    MAX_LENGTH,
    SPARSE,
    Job,
    load_task,
    make_penalty,
    run_settings,
)
from benchmarks.reproduction._verdicts import SEEDS_NEEDED
from isoadapt.datasets import minilm_folder
from isoadapt.finetune._recipes import Recipe

RATES = (3e-5, 5e-5, 1e-4)
EPOCHS = (3, 5)
BATCHES = {"rte": 16}  # 32 for other tasks
HELD_OUT = 0.2


def candidates(task: str) -> list[Recipe]:
    """Return the candidate recipes, cheapest first."""
    return [
        Recipe(epochs=epochs, lr=lr, batch_size=BATCHES.get(task, 32))
        for epochs, lr in product(EPOCHS, RATES)
    ]


def candidate_name(recipe: Recipe) -> str:
    """Return the name of a candidate."""
    return f"lr={recipe.lr:g}, {recipe.epochs} epochs"


def candidate_cell(task: str, recipe: Recipe, suite: Suite, seed: int = 0) -> Cell:
    """Return the cell that evaluates a candidate; recipes are chosen by seed 0."""
    settings = {**run_settings(suite, recipe), "held_out": HELD_OUT, "figures": FIGURES}
    run = partial(held_out_figures, Job(task, seed, recipe, suite))
    return Cell(CHOICE, candidate_name(recipe), task, seed, settings, run)


def recipe_of(records: Sequence[Record], task: str, suite: Suite) -> Recipe | None:
    """Return the recipe that a task is run with; None until it has been chosen."""
    if suite.recipe is not None:
        return suite.recipe
    recipe = chosen(records, task, suite)
    if recipe is None or not suite.is_published:
        return recipe
    failed = first_bases(records, task, recipe, suite).passed is False
    return PUBLISHED[task].recipe if failed else recipe


def first_bases(records: Sequence[Record], task: str, recipe: Recipe, suite: Suite) -> Learned:
    """Test whether the first bases under a recipe have learned their task."""
    keys = {Job(task, seed, recipe, suite).cell().key for seed in range(SEEDS_NEEDED)}
    return learned([record for record in records if record["key"] in keys], task)


def chosen(records: Sequence[Record], task: str, suite: Suite) -> Recipe | None:
    """Return the candidate with the best metric, the first of equals; None until all have run."""
    finished = {record["key"]: record["figures"] for record in records if "figures" in record}
    recipes = candidates(task)
    keys = [candidate_cell(task, recipe, suite).key for recipe in recipes]
    if not all(key in finished for key in keys):
        return None
    return recipes[int(np.argmax([finished[key]["metric"] for key in keys]))]


def held_out_figures(job: Job) -> dict[str, Any]:
    """Train on four fifths of the training rows and evaluate on the rest."""
    from benchmarks.reproduction._fitting import Place, fine_tune

    data, condition = load_task(job.task, job.suite), job.condition
    texts, labels = data.train_texts, data.train_labels
    kept, held_out = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=0
    )
    fitted = fine_tune(
        job.suite.model or minilm_folder(),
        [texts[i] for i in kept],
        labels[kept],
        job.recipe,
        job.seed,
        MAX_LENGTH,
        Place(make_penalty(condition), condition.lam, condition.where),
        logging_steps=SPARSE,
    )
    rest = [texts[i] for i in held_out]
    _, logits = embed(fitted.network, fitted.tokenizer, rest, MAX_LENGTH)
    return {
        **task_figures(job.task, labels[held_out], logits.numpy()),
        "training_seconds": fitted.training_seconds,
    }

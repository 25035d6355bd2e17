"""Choice of the learning rate and epochs of a task on a split of its training rows.

If the first bases under the chosen recipe have not learned the task, the recipe of the published
encoder replaces it. A task is judged if the mean of its bases over the seeds says that they have
learned it.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks.reproduction._cells import CHOICE, Cell, Record
from benchmarks.reproduction._figures import (
    SEEDS_NEEDED,
    by_seed,
    defined,
    mean_of,
    mean_sd,
    of,
    task_score,
)
from benchmarks.reproduction._measuring import embed, task_figures
from benchmarks.reproduction._recipe import Recipe
from benchmarks.reproduction._training import (
    BASE,
    FIGURES,
    MAX_LENGTH,
    SPARSE,
    Job,
    load_task,
    run_settings,
)

RATES = (3e-5, 5e-5, 1e-4)
EPOCHS = (3, 5)
BATCHES = {"rte": 16}  # 32 for other tasks
HELD_OUT = 0.2


class Published(NamedTuple):
    """Dev figure, with standard error, of this encoder fine-tuned once by `recipe`."""

    value: float
    error: float
    recipe: Recipe


def of_accuracy(value: float, n: int, recipe: Recipe) -> Published:
    """Return a published accuracy on n rows, with its binomial standard error."""
    return Published(value, math.sqrt(value * (1 - value) / n), recipe)


# Values and recipes: the shared folder's README.md, dev rows. Error of Matthews' correlation: that
# of a bootstrap over the dev rows of the shared embeddings/cola.npz under its own head.
PUBLISHED = {
    "cola": Published(0.3291, 0.0324, Recipe(epochs=5, lr=5e-5)),
    "mrpc": of_accuracy(0.7966, 408, Recipe(epochs=4, lr=5e-5)),
    "rte": of_accuracy(0.6101, 277, Recipe(epochs=5, lr=3e-5, batch_size=16)),
}


class Learned(NamedTuple):
    """Whether the bases reach the published figure; None if there are too few seeds."""

    passed: bool | None
    text: str


def learned(records: Sequence[Record], task: str) -> Learned:
    """Compare the mean of the bases with the published figure minus its standard error."""
    published = PUBLISHED[task]
    values = defined([*by_seed(records, of(BASE.name, task), task_score(task)).values()])
    if len(values) < SEEDS_NEEDED:
        return Learned(None, f"{len(values)} of the {SEEDS_NEEDED} seeds of the base that it needs")
    least = published.value - published.error
    mean, of_first = mean_of(values), mean_of(values[:SEEDS_NEEDED])
    passed = mean >= least
    text = (
        f"base {mean_sd(values)} ({len(values)} seeds), mean {mean:.4f} "
        f"{'reaches' if passed else 'is below'} {least:.4f} = {published.value:.4f} less one "
        f"standard error of {published.error:.4f}"
    )
    if len(values) > SEEDS_NEEDED:
        text += f"; mean of the first {SEEDS_NEEDED}: {of_first:.4f}"
    return Learned(passed, text)


def candidates(task: str) -> list[Recipe]:
    """Return the candidate recipes, cheapest first."""
    return [
        Recipe(epochs=epochs, lr=lr, batch_size=BATCHES.get(task, 32))
        for epochs, lr in product(EPOCHS, RATES)
    ]


def candidate_name(recipe: Recipe) -> str:
    """Return the name of a candidate."""
    return f"lr={recipe.lr:g}, {recipe.epochs} epochs"


def candidate_cell(task: str, recipe: Recipe, seed: int = 0) -> Cell:
    """Return the cell that evaluates a candidate; recipes are chosen by seed 0."""
    settings = {**run_settings(recipe), "held_out": HELD_OUT, "figures": FIGURES}
    run = partial(held_out_figures, Job(task, seed, recipe))
    return Cell(CHOICE, candidate_name(recipe), task, seed, settings, run)


def recipe_of(records: Sequence[Record], task: str) -> Recipe | None:
    """Return the recipe that a task is run with; None until it has been chosen."""
    recipe = chosen(records, task)
    if recipe is None:
        return recipe
    failed = first_bases(records, task, recipe).passed is False
    return PUBLISHED[task].recipe if failed else recipe


def first_bases(records: Sequence[Record], task: str, recipe: Recipe) -> Learned:
    """Test whether the first bases under a recipe have learned their task."""
    keys = {Job(task, seed, recipe).cell().key for seed in range(SEEDS_NEEDED)}
    return learned([record for record in records if record["key"] in keys], task)


def chosen(records: Sequence[Record], task: str) -> Recipe | None:
    """Return the candidate with the best metric, the first of equals; None until all have run."""
    recipes = candidates(task)
    best = best_of(records, [candidate_cell(task, recipe) for recipe in recipes])
    return None if best is None else recipes[best]


def best_of(records: Sequence[Record], cells: Sequence[Cell]) -> int | None:
    """Return the number of the cell with the best metric; None until all have run."""
    figures = {record["key"]: record["figures"] for record in records if "figures" in record}
    if not all(cell.key in figures for cell in cells):
        return None
    return int(np.argmax([figures[cell.key]["metric"] for cell in cells]))


def held_out_figures(job: Job) -> dict[str, Any]:
    """Train on four fifths of the training rows and evaluate on the rest."""
    from benchmarks.reproduction._fitting import fine_tune

    data = load_task(job.task)
    texts, labels = data.train_texts, data.train_labels
    kept, held_out = train_test_split(
        np.arange(len(labels)), test_size=HELD_OUT, stratify=labels, random_state=0
    )
    fitted = fine_tune(job, [texts[i] for i in kept], labels[kept], SPARSE)
    rest = [texts[i] for i in held_out]
    _, logits = embed(fitted.network, fitted.tokenizer, rest, MAX_LENGTH)
    return task_figures(job.task, labels[held_out], logits.numpy())

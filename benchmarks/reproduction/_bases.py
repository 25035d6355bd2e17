"""Test whether the bases of a task have learned it, by their mean over the seeds."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import by_seed, defined, mean_of, mean_sd, of
from benchmarks.reproduction._training import BASE
from benchmarks.reproduction._verdicts import SEEDS_NEEDED
from isoadapt.finetune._recipes import Recipe


class Published(NamedTuple):
    """Dev figure, with standard error, of this encoder fine-tuned once by `recipe`."""

    score: str
    value: float
    error: float
    recipe: Recipe


def of_accuracy(value: float, n: int, recipe: Recipe) -> Published:
    """Return a published accuracy on n rows, with its binomial standard error."""
    return Published("accuracy", value, math.sqrt(value * (1 - value) / n), recipe)


# Values and recipes: the shared folder's README.md, dev rows. Error of Matthews' correlation:
# `standard_error` over the dev rows of the shared embeddings/cola.npz under its own head.
PUBLISHED = {
    "cola": Published("matthews", 0.3291, 0.0324, Recipe(epochs=5, lr=5e-5)),
    "mrpc": of_accuracy(0.7966, 408, Recipe(epochs=4, lr=5e-5)),
    "rte": of_accuracy(0.6101, 277, Recipe(epochs=5, lr=3e-5, batch_size=16)),
    "sst2_sentence": of_accuracy(0.8784, 872, Recipe(epochs=3, lr=3e-5)),
}


class Learned(NamedTuple):
    """Whether the bases reach the published figure; None if there are too few seeds.

    `narrowly` is a part of a sentence on the task if the first seeds alone would decide otherwise.
    """

    passed: bool | None
    text: str
    narrowly: str = ""


def learned(records: Sequence[Record], task: str) -> Learned:
    """Compare the mean of the bases with the published figure minus its standard error."""
    published = PUBLISHED[task]
    values = defined([*by_seed(records, of(BASE.name, task), published.score).values()])
    if len(values) < SEEDS_NEEDED:
        return Learned(None, f"{len(values)} of the {SEEDS_NEEDED} seeds of the base that it needs")
    least = published.value - published.error
    mean, of_first = mean_of(values), mean_of(values[:SEEDS_NEEDED])
    passed, narrowly = mean >= least, ""
    relation = "reaches" if passed else "is below"
    if passed != (of_first >= least):
        narrowly = (
            f"is {'' if passed else 'not '}judged, by a margin of {abs(mean - least):.4f}: the "
            f"mean of its bases had to reach {least:.4f}, and is {mean:.4f} over {len(values)} "
            f"seeds, but {of_first:.4f} over the {SEEDS_NEEDED} that ran first"
        )
    return Learned(
        passed,
        f"base {mean_sd(values)} ({published.score}, {len(values)} seeds), mean {mean:.4f} "
        f"{relation} {least:.4f} = {published.value:.4f} less one standard error of "
        f"{published.error:.4f}"
        + (f"; mean of the first {SEEDS_NEEDED}: {of_first:.4f}" if mean != of_first else ""),
        narrowly,
    )

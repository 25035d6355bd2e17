"""I-STAR asked again: the sign of λ, with λ and ζ chosen on a split of the training rows.

The cells of each task: tries that choose λ and ζ, for each sign; the choices against the base, with
fresh seeds; a control that follows the code released by the authors; and a second learning rate.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from benchmarks.reproduction._cells import FRESH, TRY, Cell, Record, Suite
from benchmarks.reproduction._choice import HELD_OUT, candidate_cell, held_out_figures
from benchmarks.reproduction._training import (
    FIGURES,
    Condition,
    Job,
    penalty_settings,
    run_settings,
)
from isoadapt.finetune._recipes import Recipe

TASKS = ("cola", "mrpc")
RECIPE = Recipe(epochs=5, lr=5e-5)  # the one that both tasks are judged with
SECOND_RATE = replace(RECIPE, lr=3e-5)
AS_RELEASED = replace(RECIPE, warmup=0.0, schedule="constant", weight_decay=0.0)
SIZES, ZETAS = (0.01, 0.1, 1.0), (0.2, 0.8)
TRY_SEED, ZERO_SEEDS = 0, (0, 10, 11, 12, 13, 14)
FRESH_SEEDS = (5, 6, 7, 8, 9)
FEWER_SEEDS = FRESH_SEEDS[:3]
REPORTED = {"cola": (-1.0, 0.8), "mrpc": (-1.0, 0.6)}  # λ and ζ of BERT in the paper's table 2
SIGNS = {-1: "lam<0", 1: "lam>0"}

Make = Callable[[Sequence[Record]], Cell | None]


def tries(sign: int) -> list[tuple[float, float]]:
    """Return λ and ζ of the tries of a sign, in the order in which the first of equals wins."""
    return [(sign * size, zeta) for size, zeta in product(SIZES, ZETAS)]


def try_cell(task: str, lam: float, zeta: float, suite: Suite) -> Cell:
    """Return the cell that evaluates λ and ζ on the rows held out of the training rows."""
    condition = _istar(f"try lam={lam:g} zeta={zeta:g}", lam, zeta)
    settings = {
        **run_settings(suite, RECIPE),
        **penalty_settings(condition),
        "held_out": HELD_OUT,
        "figures": FIGURES,
    }
    run = partial(held_out_figures, Job(task, TRY_SEED, RECIPE, suite, condition))
    return Cell(TRY, condition.name, task, TRY_SEED, settings, run)


def zero_cell(task: str, seed: int, suite: Suite) -> Cell:
    """Return the cell of a try without a penalty."""
    return candidate_cell(task, RECIPE, suite, seed)


def best_try(
    records: Sequence[Record], task: str, sign: int, suite: Suite
) -> tuple[float, float] | None:
    """Return λ and ζ with the best metric on the held-out rows; None until all tries have run."""
    finished = {record["key"]: record["figures"] for record in records if "figures" in record}
    options = tries(sign)
    keys = [try_cell(task, *option, suite).key for option in options]
    if not all(key in finished for key in keys):
        return None
    return options[int(np.argmax([finished[key]["metric"] for key in keys]))]


def cells(suite: Suite) -> Iterator[tuple[str, str, str, int, Make]]:
    """Yield kind, name, task, seed and maker of each cell, in the order in which they run."""
    for task in TASKS:
        for sign in SIGNS:
            for option in tries(sign):
                yield _known(try_cell(task, *option, suite))
        for seed in ZERO_SEEDS[1:]:
            yield _known(zero_cell(task, seed, suite))
    for seed in FRESH_SEEDS:
        for task in TASKS:
            yield from _compared("fresh", task, seed, RECIPE, suite)
    for seed in FEWER_SEEDS:
        for task in TASKS:
            for condition in (_base("released", True), released(task)):
                yield _known(_fresh_cell(Job(task, seed, AS_RELEASED, suite, condition)))
    for seed in FEWER_SEEDS:
        for task in TASKS:
            yield from _compared("second rate", task, seed, SECOND_RATE, suite)


def released(task: str) -> Condition:
    """Return the condition of the control, with the λ and ζ that the paper reports for BERT."""
    lam, zeta = REPORTED[task]
    return replace(_istar("released: I-STAR", lam, zeta), as_released=True)


def _istar(name: str, lam: float, zeta: float) -> Condition:
    return Condition(name, "istar", {"zeta": zeta}, lam, "all")


def _base(series: str, as_released: bool = False) -> Condition:
    return Condition(f"{series}: base", where="all", as_released=as_released)


def _fresh_cell(job: Job) -> Cell:
    return replace(job.cell(), kind=FRESH)


def _compared(
    series: str, task: str, seed: int, recipe: Recipe, suite: Suite
) -> Iterator[tuple[str, str, str, int, Make]]:
    """Yield a base and the chosen penalty of each sign."""
    yield _known(_fresh_cell(Job(task, seed, recipe, suite, _base(series))))
    for sign, word in SIGNS.items():
        name = f"{series}: best {word}"
        yield FRESH, name, task, seed, partial(_chosen, name, sign, task, seed, recipe, suite)


def _chosen(
    name: str,
    sign: int,
    task: str,
    seed: int,
    recipe: Recipe,
    suite: Suite,
    records: Sequence[Record],
) -> Cell | None:
    best = best_try(records, task, sign, suite)
    return best and _fresh_cell(Job(task, seed, recipe, suite, _istar(name, *best)))


def _known(cell: Cell) -> tuple[str, str, str, int, Make]:
    return cell.kind, cell.name, cell.task, cell.seed, lambda records: cell

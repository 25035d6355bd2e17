"""The cells of the suites in the order they run; PLAN.md describes them in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.reproduction import (
    _output_embeddings,
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
    persistent_entropy,
)
from benchmarks.reproduction._cells import (
    BASE_RUN,
    CHOICE,
    PENALTY,
    POINTS,
    POST_HOC,
    Cell,
    Record,
    Suite,
)
from benchmarks.reproduction._choice import candidate_cell, candidate_name, candidates, recipe_of
from benchmarks.reproduction._posthoc import post_hoc_cell
from benchmarks.reproduction._training import BASE, Condition, Job
from benchmarks.reproduction._verdicts import SEEDS_NEEDED
from isoadapt.finetune._recipes import Recipe

FIVE = (
    istar.DOWN,
    istar.UP,
    persistent_entropy.SELECTED,
    istar.COSREG,
    isotropy_calibration.POLYNOMIAL,
)
POST_HOC_ROWS = (*isotropy_layer.rows(), isotropy_calibration.FLOW)
FIRST_TASKS, FIRST_SEEDS = ("cola", "mrpc"), 5
SECOND_TASKS, SECOND_SEEDS = ("rte", "sst2_sentence"), 3
THIRD_SEEDS, POINT_SEEDS = 3, 5
ON_COLA = ("cola",)
THIRD: tuple[tuple[Condition, tuple[str, ...]], ...] = (
    (persistent_entropy.ALL_BARS, ("cola", "mrpc")),
    (isotropy_layer.ISOBN_TRAINED, ("cola", "mrpc", "rte")),
    (isotropy_calibration.EXPONENTIAL, ON_COLA),
    *((condition, ON_COLA) for condition in istar.OTHER_LAMS),
    (istar.NO_ZETA, ON_COLA),
    (istar.OTHER_ZETA, ON_COLA),
    (istar.COSREG_DOWN, ON_COLA),
    (isotropy_calibration.COSREG_HEAD, ON_COLA),
    *((condition, ON_COLA) for condition in istar.BY_LAYER),
)


@dataclass(frozen=True)
class Slot:
    """An entry of the plan, whose cell is known once the recipe of the task has been chosen.

    `make` creates the cell from the recipe. The recipe is None in block 0, which needs no trained
    encoder, and for the runs that the recipe is chosen by.
    """

    block: int
    kind: str
    name: str
    task: str
    seed: int
    make: Callable[[Any], Cell]

    @property
    def needs_recipe(self) -> bool:
        """Whether the cell depends on the choice of the recipe."""
        return self.kind in (BASE_RUN, POST_HOC, PENALTY)

    def fields(self) -> dict[str, Any]:
        """Return the record of a slot whose cell is not yet known."""
        return {
            "key": None,
            "kind": self.kind,
            "name": self.name,
            "task": self.task,
            "seed": self.seed,
        }


def plan(suite: Suite) -> list[Slot]:
    """Return all slots of a suite in the order they run."""
    if suite.recipe is not None:
        return [
            *_points(1),
            _trained(1, BASE, "cola", 0, suite),
            *_adapters(1, "cola", 0, suite),
            *_penalties(1, "cola", 0, suite),
        ]
    return [
        *_points(POINT_SEEDS),
        *_block(1, FIRST_TASKS, FIRST_SEEDS, suite),
        *_block(2, SECOND_TASKS, SECOND_SEEDS, suite),
        *_third(suite),
    ]


def _points(n_seeds: int) -> Iterator[Slot]:
    """Return the slots without a task: Gaussian points, and output embeddings of a tiny T5."""
    for seed in range(n_seeds):
        for cell in (
            istar_scores.cell(seed),
            *(_output_embeddings.cell(item, seed) for item in _output_embeddings.PENALTIES),
        ):
            yield Slot(0, POINTS, cell.name, cell.task, seed, partial(_known, cell))


def _known(cell: Cell, recipe: Recipe | None) -> Cell:
    return cell


def _block(block: int, tasks: Sequence[str], n_seeds: int, suite: Suite) -> Iterator[Slot]:
    """Yield, for each task, the first bases, which decide whether its recipe stays, with adapters.

    The rest follows, for each seed and task: a later base with its adapters, and five penalties.
    """
    for task in tasks:
        yield from _candidates(block, task, suite)
        for seed in range(SEEDS_NEEDED):
            yield _trained(block, BASE, task, seed, suite)
        for seed in range(SEEDS_NEEDED):
            yield from _adapters(block, task, seed, suite)
    for seed in range(n_seeds):
        for task in tasks:
            if seed >= SEEDS_NEEDED:
                yield _trained(block, BASE, task, seed, suite)
                yield from _adapters(block, task, seed, suite)
            yield from _penalties(block, task, seed, suite)


def _candidates(block: int, task: str, suite: Suite) -> Iterator[Slot]:
    for recipe in candidates(task):
        make = partial(_known, candidate_cell(task, recipe, suite))
        yield Slot(block, CHOICE, candidate_name(recipe), task, 0, make)


def _adapters(block: int, task: str, seed: int, suite: Suite) -> Iterator[Slot]:
    for row in POST_HOC_ROWS:
        make = partial(_post_hoc, row, task, seed, suite)
        yield Slot(block, POST_HOC, row.name, task, seed, make)


def _penalties(block: int, task: str, seed: int, suite: Suite) -> Iterator[Slot]:
    for condition in FIVE:
        yield _trained(block, condition, task, seed, suite)


def _post_hoc(row: Any, task: str, seed: int, suite: Suite, recipe: Recipe) -> Cell:
    return post_hoc_cell(row, Job(task, seed, recipe, suite))


def _trained(block: int, condition: Condition, task: str, seed: int, suite: Suite) -> Slot:
    kind = BASE_RUN if condition == BASE else PENALTY

    def make(recipe: Recipe) -> Cell:
        return Job(task, seed, recipe, suite, condition).cell()

    return Slot(block, kind, condition.name, task, seed, make)


def _third(suite: Suite) -> Iterator[Slot]:
    for condition, tasks in THIRD:
        for seed in range(THIRD_SEEDS):
            for task in tasks:
                yield _trained(3, condition, task, seed, suite)


def next_cell(
    slots: Sequence[Slot], records: Sequence[Record], suite: Suite, tried: set[str]
) -> Cell | None:
    """Return the first cell that can run, has no figures and was not tried in this run."""
    finished = {record["key"] for record in records if "figures" in record}
    return next(
        (
            cell
            for cell in known_cells(slots, records, suite)
            if cell.key not in finished | tried and (not cell.needs or cell.needs in finished)
        ),
        None,
    )


def known_cells(slots: Sequence[Slot], records: Sequence[Record], suite: Suite) -> list[Cell]:
    """Return the cells of the slots whose recipe has been chosen."""
    return [cell for _, cell in slot_cells(slots, records, suite) if cell]


def slot_cells(
    slots: Sequence[Slot], records: Sequence[Record], suite: Suite
) -> list[tuple[Slot, Cell | None]]:
    """Return each slot with its cell, None while its task's recipe is not chosen."""
    tasks = {slot.task for slot in slots if slot.needs_recipe}
    recipes = {task: recipe_of(records, task, suite) for task in tasks}
    return [
        (slot, slot.make(recipes.get(slot.task)) if _is_known(slot, recipes) else None)
        for slot in slots
    ]


def _is_known(slot: Slot, recipes: dict[str, Recipe | None]) -> bool:
    return not slot.needs_recipe or recipes[slot.task] is not None


def replaced_records(
    slots: Sequence[Slot], records: Sequence[Record], suite: Suite
) -> list[Record]:
    """Return the records of runs under a recipe that has been replaced."""
    choices = [record for record in records if record["kind"] == CHOICE]
    before = {cell.key for cell in known_cells(slots, choices, suite)}
    now = {cell.key for cell in known_cells(slots, records, suite)}
    return [record for record in records if record["key"] in before - now]


def planned_records(slots: Sequence[Slot], records: Sequence[Record], suite: Suite) -> list[Record]:
    """Return a record for each slot, whether it has run or not, without records of other cells."""
    kept = {record["key"]: record for record in records}
    return [
        kept.get(cell.key, cell.fields()) if cell else slot.fields()
        for slot, cell in slot_cells(slots, records, suite)
    ]

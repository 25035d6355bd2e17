"""The cells of the suites in the order they run; PLAN.md describes them in words."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks._markdown import markdown_table
from benchmarks.reproduction import (
    _output_embeddings,
    _signs,
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
    persistent_entropy,
)
from benchmarks.reproduction._cells import (
    BASE_RUN,
    CHOICE,
    FRESH,
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
SECOND_TASKS, SECOND_SEEDS = ("rte",), 3
POINT_SEEDS = 5
SIGNS = 3  # the block whose cells are made from the records, not from a recipe


@dataclass(frozen=True)
class Slot:
    """An entry of the plan, whose cell is known once what it depends on has been chosen.

    `make` creates the cell from the recipe. The recipe is None in block 0, which needs no trained
    encoder, and for the runs that the recipe is chosen by. In block 3 `make` creates the cell from
    the records, and returns None before λ and ζ are chosen.
    """

    block: int
    kind: str
    name: str
    task: str
    seed: int
    make: Callable[[Any], Cell | None]

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
        *(Slot(SIGNS, *parts) for parts in _signs.cells(suite)),
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

    The rest follows, for each seed and task: a later base with its adapters, and the five penalties
    of block 1.
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
            if block == 1:
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
    return [(slot, _cell(slot, recipes, records)) for slot in slots]


def _cell(slot: Slot, recipes: dict[str, Recipe | None], records: Sequence[Record]) -> Cell | None:
    if slot.block == SIGNS:
        return slot.make(records)
    if slot.needs_recipe and recipes[slot.task] is None:
        return None
    return slot.make(recipes.get(slot.task))


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


def order_table(slots: Sequence[Slot]) -> str:
    """Return a table of the cells in their order, a row for each run of cells of one kind."""
    groups: dict[tuple[int, str, str, str], list[Slot]] = {}
    for slot in slots:
        series = slot.name.split(":")[0] if slot.kind == FRESH else ""
        groups.setdefault((slot.block, slot.task, slot.kind, series), []).append(slot)
    rows = [
        (
            str(block),
            task,
            f"{kind} ({series})" if series and series != kind else kind,
            str(len(dict.fromkeys(slot.name for slot in own))),
            ", ".join(map(str, sorted({slot.seed for slot in own}))),
            str(len(own)),
        )
        for (block, task, kind, series), own in groups.items()
    ]
    table = markdown_table(("block", "task", "kind", "conditions", "seeds", "cells"), rows)
    return f"{table}\n\n{len(slots)} cells."

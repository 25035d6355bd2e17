"""The cells in the order they run; PLAN.md describes them in words."""

from collections.abc import Iterator, Sequence

from benchmarks._markdown import markdown_table
from benchmarks.quality._adapter_rows import Row
from benchmarks.reproduction import (
    _output_embeddings,
    isotropy_calibration,
    isotropy_layer,
    istar,
    istar_scores,
    istar_sign,
    persistent_entropy,
)
from benchmarks.reproduction._cells import (
    BASE_RUN,
    CHOICE,
    FRESH,
    PENALTY,
    POST_HOC,
    Cell,
    Record,
    Slot,
    fields_of,
    known_slot,
)
from benchmarks.reproduction._choice import candidate_cell, candidates, recipe_of
from benchmarks.reproduction._posthoc import post_hoc_cell
from benchmarks.reproduction._training import BASE, Condition, Job

FIVE = (
    istar.DOWN,
    istar.UP,
    persistent_entropy.SELECTED,
    istar.COSREG,
    isotropy_calibration.POLYNOMIAL,
)
POST_HOC_ROWS = (*isotropy_layer.rows(), isotropy_calibration.FLOW)
POINT_SEEDS = 5


def plan() -> list[Slot]:
    """Return all slots in the order they run."""
    return [
        *_points(POINT_SEEDS),
        *(slot for task in ("cola", "mrpc") for slot in _task(1, task, 5, FIVE)),
        *_task(2, "rte", 3, ()),
        *istar_sign.slots(3),
    ]


def _points(n_seeds: int) -> Iterator[Slot]:
    """Yield the slots without a task: Gaussian points, and output embeddings of a tiny T5."""
    for seed in range(n_seeds):
        yield known_slot(0, istar_scores.cell(seed))
        for condition in _output_embeddings.PENALTIES:
            yield known_slot(0, _output_embeddings.cell(condition, seed))


def _task(block: int, task: str, n_seeds: int, penalties: Sequence[Condition]) -> Iterator[Slot]:
    """Yield the runs that choose the recipe of a task, and the runs with that recipe."""
    for recipe in candidates(task):
        yield known_slot(block, candidate_cell(task, recipe))
    yield from _runs(block, task, n_seeds, penalties)


def _runs(block: int, task: str, n_seeds: int, penalties: Sequence[Condition]) -> Iterator[Slot]:
    """Yield the bases of a task, which may replace its recipe, their adapters and the penalties."""

    def slot(
        kind: str, name: str, seed: int, row: Row | None = None, condition: Condition = BASE
    ) -> Slot:
        def make(records: Sequence[Record]) -> Cell | None:
            recipe = recipe_of(records, task)
            if recipe is None:
                return None
            job = Job(task, seed, recipe, condition)
            return post_hoc_cell(row, job) if row else job.cell()

        return Slot(block, kind, name, task, seed, make)

    for seed in range(n_seeds):
        yield slot(BASE_RUN, BASE.name, seed)
    for seed in range(n_seeds):
        for row in POST_HOC_ROWS:
            yield slot(POST_HOC, row.name, seed, row)
        for condition in penalties:
            yield slot(PENALTY, condition.name, seed, condition=condition)


def next_cell(slots: Sequence[Slot], records: Sequence[Record], tried: set[str]) -> Cell | None:
    """Return the first cell that can run, has no figures and was not tried in this run."""
    finished = {record["key"] for record in records if "figures" in record}
    return next(
        (
            cell
            for cell in known_cells(slots, records)
            if cell.key not in finished | tried and (not cell.needs or cell.needs in finished)
        ),
        None,
    )


def known_cells(slots: Sequence[Slot], records: Sequence[Record]) -> list[Cell]:
    """Return the cells of the slots for which all that they depend on has been chosen."""
    return [cell for slot in slots if (cell := slot.make(records))]


def replaced_records(slots: Sequence[Slot], records: Sequence[Record]) -> list[Record]:
    """Return the records of runs under a recipe that has been replaced."""
    choices = [record for record in records if record["kind"] == CHOICE]
    before = {cell.key for cell in known_cells(slots, choices)}
    now = {cell.key for cell in known_cells(slots, records)}
    return [record for record in records if record["key"] in before - now]


def planned_records(slots: Sequence[Slot], records: Sequence[Record]) -> list[Record]:
    """Return a record for each slot, whether it has run or not, without records of other cells."""
    kept = {record["key"]: record for record in records}
    cells = [slot.make(records) for slot in slots]
    return [
        kept.get(cell.key, cell.fields()) if cell else fields_of(slot)
        for slot, cell in zip(slots, cells, strict=True)
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

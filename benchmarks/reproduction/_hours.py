"""The time that the finished cells took, and an estimate for those that remain."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._plan import Slot
from benchmarks.reproduction._running import expected_seconds
from benchmarks.reproduction._tables import TASKS

HOUR = 3600.0
FIRST_BLOCK = 1
UNKNOWN = "no rate yet"
EXPLANATION = """\
What is left is estimated by the median processor time of the same condition on the task, or of its
kind on the task if that condition has not run. The runs share their cores with other work, so that
the hours by the clock can be several times as many."""


class Hours(NamedTuple):
    """Cells of one kind: how many, processor and clock hours so far, and processor hours left.

    `left` is None if no cell of the kind has finished on the task.
    """

    finished: int
    planned: int
    processor: float
    clock: float
    left: float | None


def hours(records: Sequence[Record], every: Sequence[Record]) -> Hours:
    """Sum the hours of some of the planned records; `every` has those that rates are taken from."""
    finished = [record for record in every if "figures" in record]
    known = {(record["kind"], record["task"]) for record in finished}
    open_ = [record for record in records if "figures" not in record]
    estimated = all((record["kind"], record["task"]) in known for record in open_)
    return Hours(
        len(records) - len(open_),
        len(records),
        sum(record.get("processor_seconds", 0.0) for record in records) / HOUR,
        sum(record.get("seconds", 0.0) for record in records) / HOUR,
        sum(expected_seconds(record, finished) for record in open_) / HOUR if estimated else None,
    )


def block_hours(slots: Sequence[Slot], records: Sequence[Record], block: int) -> Hours:
    """Sum the hours of a block; `records` has the planned record of each slot."""
    own = [item for slot, item in zip(slots, records, strict=True) if slot.block == block]
    return hours(own, records)


def first_block_text(slots: Sequence[Slot], records: Sequence[Record]) -> str:
    """Return what is recorded of the first block with trained encoders, and what it still needs."""
    found = block_hours(slots, records, FIRST_BLOCK)
    done = sum("figures" in record for record in records)
    tasks = dict.fromkeys(TASKS[slot.task] for slot in slots if slot.block == FIRST_BLOCK)
    text = (
        f"{done} of {len(records)} planned cells, which are single runs, are recorded; of block "
        f"{FIRST_BLOCK} ({' and '.join(tasks)}), "
        f"{found.finished} of {found.planned}, in {found.processor:.1f} processor hours and "
        f"{found.clock:.1f} hours by the clock."
    )
    if not found.left:
        return text
    return (
        f"{text} At this rate, the rest of block {FIRST_BLOCK} needs about {found.left:.1f} more "
        "processor hours."
    )


def hours_text(slots: Sequence[Slot], records: Sequence[Record]) -> str:
    """Return a table of cells and hours by block, task and kind, and the sum of each block."""
    groups: dict[tuple[int, str, str], list[Record]] = {}
    for slot, record in zip(slots, records, strict=True):
        groups.setdefault((slot.block, record["task"], record["kind"]), []).append(record)
    rows = []
    for block in sorted({block for block, _, _ in groups}):
        rows += [
            [str(block), TASKS.get(task, task), kind, *_columns(hours(own, records))]
            for (of_block, task, kind), own in groups.items()
            if of_block == block
        ]
        rows.append([str(block), "all", "all", *_columns(block_hours(slots, records, block))])
    header = (
        "block",
        "task",
        "kind",
        "finished cells",
        "processor hours",
        "hours by the clock",
        "processor hours left, about",
    )
    return f"{EXPLANATION}\n\n{markdown_table(header, rows)}"


def _columns(found: Hours) -> list[str]:
    return [
        f"{found.finished} of {found.planned}",
        f"{found.processor:.2f}",
        f"{found.clock:.2f}",
        UNKNOWN if found.left is None else f"{found.left:.2f}",
    ]

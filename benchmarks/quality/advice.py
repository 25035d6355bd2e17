"""Whether figures of vectors tell when whitening helps: the sentence that the records support.

A record is one pooling of one checkpoint, with figures of the vectors of its task's training texts
and the Spearman correlation on STS-B before and after `Whitening(shrinkage="oas")`, fitted to the
same vectors. The records are not measured again.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks._places import FOLDER
from benchmarks.quality import Cells, Record

SECTION = "advice"
RECORDS = FOLDER / "quality" / "results" / "advice.jsonl"
KEY = ("task", "checkpoint", "pooling", "normalised", "data")


def cells() -> Cells:
    """Yield nothing."""
    yield from ()


def gains(record: Record) -> bool:
    """Whether whitening raises the correlation."""
    return record["after"] > record["before"]


def threshold(records: Sequence[Record], figure: str) -> tuple[int, float, bool]:
    """Return the right answers of the best rule, its threshold, and whether it advises above it."""
    values = np.array([record["figures"][figure] for record in records])
    raised = np.array([gains(record) for record in records])
    known = np.unique(values[~np.isnan(values)])
    bounds = np.concatenate([[-np.inf], (known[1:] + known[:-1]) / 2])
    advised = values >= bounds[:, None]
    right = {above: ((advised == above) == raised).sum(1) for above in (True, False)}
    above = bool(right[True].max() >= right[False].max())
    best = int(right[above].argmax())
    return int(right[above][best]), float(bounds[best]), above


def hit_rates(records: Sequence[Record], figures: Sequence[str]) -> tuple[float, float]:
    """Return the hit rates of the best figure's rule and of always giving the usual answer.

    Both are fitted to all tasks but one and judged on that one, for each task.
    """
    right = usual = 0
    for task in {record["task"] for record in records}:
        others = [record for record in records if record["task"] != task]
        figure = max(figures, key=lambda name: threshold(others, name)[0])
        _, bound, above = threshold(others, figure)
        majority = 2 * sum(map(gains, others)) >= len(others)
        for record in records:
            if record["task"] == task:
                advised = (record["figures"][figure] >= bound) == above
                right += advised == gains(record)
                usual += majority == gains(record)
    return right / len(records), usual / len(records)


def text(records: Sequence[Record]) -> str:
    """Return what the records say."""
    figures = list(records[0]["figures"])
    chosen, usual = hit_rates(records, figures)
    alone = {figure: hit_rates(records, [figure])[0] for figure in figures}
    best = max(alone, key=alone.__getitem__)
    return (
        f"Whitening raised the correlation on STS-B in {sum(map(gains, records))} of "
        f"{len(records)} cases "
        "(checkpoints after 0, 1, 5 and 20 epochs on six tasks and two fully trained ones, "
        "each with five poolings, at unit length or not). A rule with a threshold on one of ten "
        "figures of the vectors, fitted to all tasks but one and judged on that one, is right in "
        f"{chosen:.3f} of the cases with the figure that is best on the other tasks, and the more "
        f"frequent answer in {usual:.3f}; the best figure after the fact, {best}, reaches "
        f"{alone[best]:.3f}."
    )

"""Every method against its control, on the metric of the task: does anything gain?"""

from collections.abc import Sequence
from textwrap import fill
from typing import NamedTuple

from benchmarks._markdown import markdown_table
from benchmarks.quality._adapter_rows import (
    BASE as NO_ADAPTER,
    ISOBN,
    MINIBATCH,
    NO_PENALTY,
    NO_PENALTY_RAW,
    REFIT,
)
from benchmarks.reproduction._cells import PENALTY, POST_HOC, Record, Slot
from benchmarks.reproduction._figures import TASKS, metric_name, of
from benchmarks.reproduction._statistics import needed
from benchmarks.reproduction._training import BASE
from benchmarks.reproduction._verdicts import (
    COLLAPSED,
    FAILS,
    NOT_JUDGED,
    WAITING,
    Claim,
    Line,
    judge_claims,
    moves,
)
from benchmarks.reproduction.isotropy_calibration import FLOW
from benchmarks.reproduction.isotropy_layer import (
    RAW,
    TRAINED_HEADS,
    control_with_head,
    with_head,
)

CONTROLS = {
    REFIT: NO_ADAPTER,
    MINIBATCH: NO_PENALTY,
    **{with_head(training): control_with_head(training) for training in TRAINED_HEADS},
    RAW: NO_PENALTY_RAW,
    ISOBN: REFIT,
    FLOW.name: REFIT,
}
EXPLANATION = """\
Each method is compared with its control: a penalty in fine-tuning with the base, an adapter with
the same adapter without a penalty or with a mere refit of the head, and that refit with no adapter.
The cells show the mean difference of the metric, its 95 % interval over seeds, and that over dev
rows. These comparisons are not claims of a paper. They were added after the plan was written; the
row "head refit only" was added when its figures were known. Their p-values are adjusted after Holm
for all of them together. The penalty of a refitted head is chosen by cross-validation; records with
C = 1, an earlier default, are among those that have left the plan."""


class Comparison(NamedTuple):
    """A method and its control on a task."""

    method: str
    control: str
    task: str


Gains = dict[Comparison, Line]


def gains(slots: Sequence[Slot], records: Sequence[Record]) -> Gains:
    """Judge all planned comparisons, with p-values adjusted together."""
    found = [
        Comparison(slot.name, BASE.name if slot.kind == PENALTY else CONTROLS[slot.name], slot.task)
        for slot in slots
        if slot.kind == PENALTY or (slot.kind == POST_HOC and slot.name in CONTROLS)
    ]
    unique = list(dict.fromkeys(found))
    claims = []
    for method, control, task in unique:
        rises = moves(of(control, task), of(method, task), "metric", 1)
        claims.append(Claim("", method, "", rises, task, about_metric=True))
    return dict(zip(unique, judge_claims(claims, records), strict=True))


def gains_text(found: Gains) -> str:
    """Return the answer in one sentence and the table of the comparisons that have begun."""
    begun = {item: line for item, line in found.items() if line.judged.n_seeds}
    judged = [item for item in begun if begun[item].judged.outcome not in (WAITING, NOT_JUDGED)]
    gaining = [item for item in judged if begun[item].verdict == "**holds**"]
    named = "; ".join(f"{item.method} ({TASKS[item.task]})" for item in gaining) or "none"
    answer = (
        f"Of the {len(judged)} comparisons judged, of {len(found)} planned, these gain after "
        f"Holm's adjustment: {named}. The first of so many is shown if its mean is at least "
        f"{needed(5, len(found)):.1f} standard deviations of the differences between five seeds, "
        f"or {needed(3, len(found)):.1f} of those between three: small gains cannot be excluded."
    )
    tasks = [task for task in TASKS if any(item.task == task for item in begun)]
    rows = dict.fromkeys((item.method, item.control) for item in begun)
    cells = {item: _cell(line) for item, line in begun.items()}
    header = ("method", "compared with", *(f"{TASKS[task]}, {metric_name(task)}" for task in tasks))
    body = [[*row, *(cells.get(Comparison(*row, task), "") for task in tasks)] for row in rows]
    table = [markdown_table(header, body, words=True)] if begun else []
    return "\n\n".join([fill(answer, 100), EXPLANATION, *table])


def _cell(line: Line) -> str:
    judged = line.judged
    words = {
        "**holds**": "**gains**",
        "holds, but not after Holm": "gains, but not after Holm",
        f"**{FAILS}**": "**is worse**",
        f"{FAILS}, but not after Holm": "is worse, but not after Holm",
        f"**{COLLAPSED}**": f"**{COLLAPSED}**",
        NOT_JUDGED: NOT_JUDGED,
        WAITING: WAITING,
    }
    rows = f"rows {judged.bootstrap}" if judged.bootstrap else ""
    parts = (judged.interval, rows, words.get(line.verdict, ""), judged.reason)
    return ", ".join(filter(None, parts))

"""Every method against its control, on the metric of the task: does anything gain?"""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks._markdown import markdown_table
from benchmarks.quality._adapter_rows import (
    BASE as NO_ADAPTER,
    ISOBN,
    MINIBATCH,
    NO_PENALTY,
    NO_PENALTY_RAW,
)
from benchmarks.reproduction._cells import PENALTY, POST_HOC, Record, Suite
from benchmarks.reproduction._figures import format_means, mean_of, n_planned, of, paired
from benchmarks.reproduction._judging import Line, judge_claims
from benchmarks.reproduction._plan import Slot
from benchmarks.reproduction._statistics import LEVEL
from benchmarks.reproduction._tables import TASKS, metric_name
from benchmarks.reproduction._training import BASE
from benchmarks.reproduction._verdicts import (
    FAILS,
    HOLDS,
    NOT_JUDGED,
    SEEDS_NEEDED,
    WAITING,
    Claim,
    ClaimJudge,
    Judged,
    judge_steps,
)
from benchmarks.reproduction.isotropy_calibration import FLOW
from benchmarks.reproduction.isotropy_layer import (
    RAW,
    REFIT,
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
the same adapter without a penalty or with a mere refit of the head, and that refit with no
adapter. The cells show the mean difference of the metric over the seeds, and its 95 % t-interval
from {needed} seeds on. These comparisons are not claims of a paper. They were added after the plan
was written, the row of the refit when its figures were known. Their p-values are adjusted after
Holm for all of them together."""


class Comparison(NamedTuple):
    """A method and its control on a task."""

    method: str
    control: str
    task: str


class Gain(NamedTuple):
    """A comparison, its mean difference and its judgement; NaN without a seed."""

    comparison: Comparison
    mean: float
    line: Line


def comparisons(slots: Sequence[Slot]) -> list[Comparison]:
    """Return the planned comparisons of methods with their controls."""
    found = [
        Comparison(slot.name, BASE.name if slot.kind == PENALTY else CONTROLS[slot.name], slot.task)
        for slot in slots
        if slot.kind == PENALTY or (slot.kind == POST_HOC and slot.name in CONTROLS)
    ]
    return list(dict.fromkeys(found))


def gains(slots: Sequence[Slot], records: Sequence[Record], suite: Suite) -> list[Gain]:
    """Judge all planned comparisons, with p-values adjusted together."""
    found = comparisons(slots)
    claims = [Claim("", item.method, "", _judge(item), item.task) for item in found]
    lines = judge_claims(claims, records, suite)
    return [
        Gain(item, mean_of(_steps(item, records)), line)
        for item, line in zip(found, lines, strict=True)
    ]


def _steps(item: Comparison, records: Sequence[Record]) -> list[float]:
    before, after = of(item.control, item.task), of(item.method, item.task)
    return [*paired(records, before, after, "metric").steps().values()]


def _judge(item: Comparison) -> ClaimJudge:
    before, after = of(item.control, item.task), of(item.method, item.task)

    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, "metric")
        return judge_steps(pairs.steps(), n_planned(records, before, after), format_means(pairs))

    return judge


def gains_text(found: Sequence[Gain]) -> str:
    """Return the answer in one sentence and the table of the comparisons that have begun."""
    begun = [gain for gain in found if gain.line.judged.n_seeds]
    tasks = [task for task in TASKS if any(gain.comparison.task == task for gain in begun)]
    rows = dict.fromkeys((gain.comparison.method, gain.comparison.control) for gain in begun)
    cells = {gain.comparison: _cell(gain) for gain in begun}
    table = markdown_table(
        ("method", "compared with", *(f"{TASKS[task]}, {metric_name(task)}" for task in tasks)),
        [[*row, *(cells.get(Comparison(*row, task), "") for task in tasks)] for row in rows],
        words=True,
    )
    return "\n\n".join(
        [_answer(found), EXPLANATION.format(needed=SEEDS_NEEDED), *([table] if begun else [])]
    )


def _answer(found: Sequence[Gain]) -> str:
    judged = [gain for gain in found if gain.line.judged.outcome not in (WAITING, NOT_JUDGED)]
    if not judged:
        return (
            f"This cannot be said yet: none of the {len(found)} planned comparisons has "
            f"{SEEDS_NEEDED} seeds on a base that has learned."
        )
    named = "; ".join(
        f"{gain.comparison.method} ({TASKS[gain.comparison.task]})"
        for gain in judged
        if _is_gain(gain)
    )
    return (
        f"Of the {len(judged)} comparisons judged so far, of {len(found)} planned, these gain "
        f"after Holm's adjustment: {named or 'none'}."
    )


def _is_gain(gain: Gain) -> bool:
    adjusted = gain.line.adjusted
    return gain.line.judged.outcome == HOLDS and adjusted is not None and adjusted <= LEVEL


def _cell(gain: Gain) -> str:
    judged = gain.line.judged
    if judged.outcome == WAITING:
        return f"{gain.mean:+.3g} ({judged.n_seeds} of {SEEDS_NEEDED} seeds)"
    if judged.outcome == NOT_JUDGED:
        return NOT_JUDGED
    if judged.outcome == HOLDS:
        word = " **gains**" if _is_gain(gain) else " gains, but not after Holm"
    else:
        word = " is worse" if judged.outcome == FAILS else ""
    return f"{judged.interval}{word}"

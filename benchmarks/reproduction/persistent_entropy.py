"""Papers 000 and 001, tables 2 and 3 and figure 1: persistent entropy during fine-tuning."""

from collections.abc import Sequence

from benchmarks._pairs import Pairs
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import by_seed, format_means, n_planned, of
from benchmarks.reproduction._tables import TASKS, condition_table, metric_name, tasks_of
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import (
    Claim,
    ClaimJudge,
    Headline,
    Judged,
    judge_steps,
    moves,
    not_testable,
)

SELECTED = Condition("selected bars", "topological-entropy", {"bars": "selected"})
ALL_BARS = Condition("all bars", "topological-entropy", {"bars": "all"})
CONDITIONS = (BASE, SELECTED, ALL_BARS)
NAMES = tuple(condition.name for condition in CONDITIONS)
TESTED = ("cola", "mrpc")
CUT = 1 / 0.85  # selected bars should give a decrease of 15 % on CoLA
GAIN, AGAINST_ALL = 0.013, 0.016  # differences in Matthews' correlation on CoLA with BERT
RAISE = Headline("Selected bars raise Matthews (nothing is claimed of MRPC's F1)")
LOWER = Headline("Selected bars lower centred anisotropy_1", rank=1)
LOWER_BY = Headline("Selected bars lower centred anisotropy_1 by 15 % or more", rank=1)
BERT = {  # BERT-base: no penalty → selected bars, then all bars; of MRPC's F1 nothing is claimed
    "cola": {
        "anisotropy1": "0.647 → 0.499, all bars 0.502",
        "anisotropy1_centered": "0.660 → 0.468, all bars 0.478",
        "metric": "0.575 → 0.588, all bars 0.572",
    },
    "mrpc": {
        "anisotropy1": "0.679 → 0.485, all bars 0.541",
        "anisotropy1_centered": "0.733 → 0.483, all bars 0.576",
    },
}


def claims() -> list[Claim]:
    """Return the claims of both tables and the figure, for each task."""
    theirs = "MRPC 0.832 → 0.611, CoLA 0.700 → 0.512"
    roberta = Claim(
        "table 3",
        "RoBERTa: selected bars lower centred anisotropy_1",
        theirs,
        not_testable("needs roberta-base, which is not available here"),
    )
    return [*(claim for task in TESTED for claim in _task_claims(task)), roberta]


def _task_claims(task: str) -> list[Claim]:
    base, chosen, every = (of(name, task) for name in NAMES)
    cut, asked = (CUT, " by 15 % or more") if task == "cola" else (1.0, "")
    theirs = {name: f"{figures} (BERT)" for name, figures in BERT[task].items()}
    theirs["profile"] = "curves only drawn (RoBERTa, MRPC)"

    def claim(
        where: str, text: str, figure: str, judge: ClaimJudge, headline: Headline | None = None
    ) -> Claim:
        return Claim(where, f"{TASKS[task]}: {text}", theirs[figure], judge, task, headline)

    centred, raw = "anisotropy1_centered", "anisotropy1"
    found = [
        claim(
            "table 3",
            f"selected bars lower centred anisotropy_1{asked} (whole dev set)",
            centred,
            moves(base, chosen, centred, -1, cut),
            LOWER_BY if asked else LOWER,
        ),
        claim(
            "table 3",
            f"selected bars lower it{asked} on batches, last 30 % of training",
            centred,
            moves(base, chosen, f"batch_{centred}", -1, cut),
        ),
        claim("table 3", "selected bars lower raw anisotropy_1", raw, moves(base, chosen, raw, -1)),
        claim(
            "table 3",
            "selected bars lower centred anisotropy_1 more than all bars",
            centred,
            moves(every, chosen, centred, -1),
        ),
        claim(
            "figure 1",
            "without a penalty anisotropy rises in training (centred, on batches)",
            "profile",
            rises_in_training(task),
        ),
    ]
    if "metric" in BERT[task]:
        metric = metric_name(task)
        found += [
            claim(
                "table 2",
                f"selected bars raise {metric}",
                "metric",
                moves(base, chosen, "metric", 1, size=GAIN),
                RAISE,
            ),
            claim(
                "table 2",
                f"selected bars have a higher {metric} than all bars",
                "metric",
                moves(every, chosen, "metric", 1, size=AGAINST_ALL),
            ),
        ]
    return found


def rises_in_training(task: str) -> ClaimJudge:
    """Judge that the anisotropy of the base rises from the first to the last tenth of its steps."""
    fields = of(BASE.name, task)

    def judge(records: Sequence[Record]) -> Judged:
        start, end = (
            by_seed(records, fields, f"batch_anisotropy1_centered_{part}")
            for part in ("start", "end")
        )
        pairs = Pairs(start, end)
        reason = "first to last tenth of the steps"
        planned = n_planned(records, fields)
        return judge_steps(pairs.steps(), planned, format_means(pairs), reason=reason)

    return judge


def tables(records: Sequence[Record]) -> str:
    """Return tables 2 and 3 for each task, measured in both ways."""
    return "\n\n".join(_tables(records, task) for task in tasks_of(records, NAMES[1:]))


def _tables(records: Sequence[Record], task: str) -> str:
    whole = {"metric": metric_name(task), "cross_entropy": "cross-entropy"}
    late = {}
    for ending, word in (("", "raw"), ("_centered", "centred")):
        for k in (1, 2, 3):
            whole[f"anisotropy{k}{ending}"] = f"{word} {k}"
            late[f"batch_anisotropy{k}{ending}"] = f"{word} {k}"
    whole["first_token_anisotropy1_centered"] = "centred 1 of [CLS]"
    return (
        f"Tables 2 and 3, {TASKS[task]}: anisotropy of what enters the head, on the whole dev set "
        "in eval mode. The paper takes [CLS] of the last layer, from which the head's input is "
        "made.\n\n"
        f"{condition_table(records, task, NAMES, whole)}\n\n"
        "The paper's own way: means over the last 30 % of the training steps, on batches.\n\n"
        f"{condition_table(records, task, NAMES, late)}"
    )

"""Papers 000 and 001, tables 2 and 3 and figure 1: persistent entropy during fine-tuning."""

from collections.abc import Sequence

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    LATER,
    TASKS,
    Pairs,
    by_seed,
    format_means,
    n_planned,
    of,
)
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import Claim, ClaimJudge, Judged, judge_steps, moves

SELECTED = Condition("selected bars", "topological-entropy", {"bars": "selected"})
CUT = 1 / 0.85  # selected bars should give a decrease of 15 % on CoLA
RAW, RAW_2 = "anisotropy1", "anisotropy2"
GAIN = 0.013  # difference in Matthews' correlation on CoLA with BERT
SETTING = {
    "where": ("[CLS] of the last layer",),
    "epochs": (10,),
    "lr": (5e-5,),
    "batch_size": (64,),
}
BERT = {  # BERT-base: no penalty → selected bars, raw and centred anisotropy_1, raw anisotropy_2
    "cola": ("0.647 → 0.499", "0.660 → 0.468", "0.099 → 0.076"),
    "mrpc": ("0.679 → 0.485", "0.733 → 0.483", "0.125 → 0.098"),
}


def claims() -> list[Claim]:
    """Return the claims of both tables and the figure, for each task."""
    gains = Claim(
        "table 2",
        "CoLA: selected bars raise Matthews",
        "0.575 → 0.588 (BERT)",
        moves(of(BASE.name, "cola"), of(SELECTED.name, "cola"), "metric", 1, size=GAIN),
        "cola",
        about_metric=True,
        paper=SETTING,
        method=of(SELECTED.name, "cola"),
    )
    return [*(claim for task in BERT for claim in _task_claims(task)), gains]


def _task_claims(task: str) -> list[Claim]:
    base, chosen = of(BASE.name, task), of(SELECTED.name, task)
    cut, asked = (CUT, " by 15 % or more") if task == "cola" else (1.0, "")
    raw, centred, second = (f"{figures} (BERT)" for figures in BERT[task])
    figure, later = "anisotropy1_centered", f"table 3, {LATER}"
    lines = [
        (
            "table 3",
            f"selected bars lower centred anisotropy_1{asked} (whole dev set)",
            centred,
            moves(base, chosen, figure, -1, cut),
        ),
        (
            "table 3",
            f"selected bars lower it{asked} on batches, last 30 % of training",
            centred,
            moves(base, chosen, f"batch_{figure}", -1, cut),
        ),
        ("table 3", "selected bars lower raw anisotropy_1", raw, moves(base, chosen, RAW, -1)),
        (
            "figure 1",
            "without a penalty anisotropy rises in training (centred, on batches)",
            "curves only drawn (RoBERTa, MRPC)",
            rises_in_training(task),
        ),
        (
            later,
            f"selected bars lower centred anisotropy_1 of the last layer's [CLS]{asked}",
            centred,
            moves(base, chosen, f"first_token_{figure}", -1, cut),
        ),
        (later, "selected bars lower raw anisotropy_2", second, moves(base, chosen, RAW_2, -1)),
    ]
    found = [
        Claim(where, f"{TASKS[task]}: {text}", theirs, judge, task, method=chosen)
        for where, text, theirs, judge in lines
    ]
    if task == "cola":
        found[0], found[-2] = (found[number]._replace(paper=SETTING) for number in (0, -2))
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

"""Paper 004, tables 1 and 4: CosReg, spectrum control and a flow during fine-tuning."""

from collections.abc import Sequence

from scipy.stats import spearmanr

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    LATER,
    SEEDS_NEEDED,
    TASKS,
    by_seed,
    mean_sd,
    metric_name,
    n_planned,
    of,
)
from benchmarks.reproduction._output_embeddings import PENALTIES, TASK as TINY
from benchmarks.reproduction._posthoc import row_named
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import (
    Claim,
    Judged,
    judge_steps,
    moves,
    none_better,
    stays,
    waiting,
)
from benchmarks.reproduction.istar import COSREG

POLYNOMIAL = Condition("spectrum control, polynomial", "spectrum-control", {"decay": "polynomial"})
FLOW = row_named("FlowAdapter, head refit")
COMPARED = (COSREG.name, POLYNOMIAL.name, FLOW.name)
TESTED = ("cola", "mrpc")
NOTABLE = 0.01  # difference of a metric up to which a result is not better
SLIGHT = 0.01  # spread of I1 in the paper
PAPER = {"lr": (2e-5,), "schedule": ("constant",), "batch_size": (32,)}


def claims() -> list[Claim]:
    """Return the claims of tables 1 and 4, and one on the output embeddings."""
    path = Claim(
        "section 3",
        "Penalties on output embeddings are lowered in training: the path works, on a tiny random "
        "T5, against the same steps without the penalty",
        "no such figure",
        _path_works,
    )
    per_task = (claim for task in TESTED for claim in _task_claims(task))
    unmoved = [_unmoved(name, task) for task in TESTED for name in (COSREG.name, FLOW.name)]
    return [*per_task, _ruin(), *unmoved, path, *map(_relation, TESTED)]


def _task_claims(task: str) -> list[Claim]:
    name, base, after = TASKS[task], of(BASE.name, task), of(POLYNOMIAL.name, task)
    none = none_better(base, {item: of(item, task) for item in COMPARED}, "metric", NOTABLE)
    spectrum = f"{name}: {POLYNOMIAL.name}"
    return [
        Claim(
            "table 1",
            f"{name}: none of these methods is better than the base by more than {NOTABLE:g} of "
            f"{metric_name(task)}",
            "no significant gain with BERT (t-test), on any task",
            none,
            task,
            about_metric=True,
            paper={**PAPER, "epochs": (5 if task == "mrpc" else 3,)},
            method=base,
        ),
        Claim(
            "table 4",
            f"{spectrum} raises I1",
            "0.91 → 1.00 (BERT)",
            moves(base, after, "partition_isotropy", 1),
            task,
            paper={**PAPER, "epochs": (3,)} if task == "cola" else None,
            method=after,
        ),
        Claim(
            "table 4",
            f"{spectrum} lowers I2",
            "0.38–0.40 → 0.02 or less (BERT)",
            moves(base, after, "partition_dispersion", -1),
            task,
        ),
    ]


def _ruin() -> Claim:
    return Claim(
        "table 1",
        f"CoLA: {POLYNOMIAL.name} ruins Matthews (at most half of it is left)",
        "0.5316 → 0 (BERT)",
        moves(of(BASE.name, "cola"), of(POLYNOMIAL.name, "cola"), "metric", -1, 2.0),
        "cola",
        about_metric=True,
        paper={**PAPER, "epochs": (3,)},
        method=of(POLYNOMIAL.name, "cola"),
    )


def _unmoved(name: str, task: str) -> Claim:
    where = " (last layer's tokens)" if name == COSREG.name else ""
    base, after = of(BASE.name, task), of(name, task)
    return Claim(
        "table 4" if task == "cola" else f"table 4, {LATER}",
        f"{TASKS[task]}: {name}{where} leaves I1 where it was (within {SLIGHT})",
        f"0.91 → {0.92 if (name, task) == (COSREG.name, 'mrpc') else 0.91} (BERT)",
        stays(base, after, "partition_isotropy", SLIGHT, as_factor=False),
        task,
    )


def _relation(task: str) -> Claim:
    conditions = [of(name, task) for name in (BASE.name, *COMPARED)]

    def judge(records: Sequence[Record]) -> Judged:
        isotropy, metric = (
            [by_seed(records, item, figure) for item in conditions]
            for figure in ("partition_isotropy", "metric")
        )
        steps = {}
        for seed in sorted(set.intersection(*map(set, metric))):
            columns = ([side[seed] for side in each] for each in (isotropy, metric))
            steps[seed] = float(spearmanr(*columns).statistic)
        ours, planned = mean_sd([*steps.values()]), n_planned(records, *conditions)
        return judge_steps(steps, planned, ours, sign=-1)

    return Claim(
        f"appendix C, {LATER}",
        f"{TASKS[task]}: the higher I1 of base, CosReg, spectrum control and flow, the lower their "
        f"{metric_name(task)} (mean rank correlation below 0)",
        "said of all tables, without a figure",
        judge,
        task,
        about_metric=True,
    )


def _path_works(records: Sequence[Record]) -> Judged:
    """Judge by the smallest relative decrease among the three penalties, for each seed."""
    fields = [of(condition.name, TINY) for condition in PENALTIES]
    without, after = (
        [by_seed(records, item, figure) for item in fields] for figure in ("after_without", "after")
    )
    seeds = set.intersection(*map(set, after))
    if len(seeds) < SEEDS_NEEDED:
        return waiting("–", len(seeds))
    steps = {
        seed: min(
            1 - penalised[seed] / plain[seed]
            for penalised, plain in zip(after, without, strict=True)
        )
        for seed in sorted(seeds)
    }
    reason = "smallest share by which a penalty is lower; a random model's scores mean nothing"
    return judge_steps(steps, n_planned(records, *fields), "see interval", reason=reason)

"""Paper 002, table 1 and figures 3, 4 and 6: I-STAR and CosReg during fine-tuning."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    TASKS,
    arrays_by_seed,
    defined,
    mean_sd,
    metric_name,
    n_planned,
    of,
)
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import Claim, Judged, judge_steps, moves, stays

ZETA = 0.2
ASKED = 1.5  # factor by which IsoScore* should change at lam = -1 and 1
UNMOVED = 1.5  # factor up to which a figure counts as unchanged
DRAWN = "curves only drawn"
BERT = {  # table 1: I-STAR, base, CosReg
    "cola": (0.5960, 0.5922, 0.5790),
    "mrpc": (0.8676, 0.8651, 0.8529),
}
RATES = {"lr": (1e-5, 3e-5, 5e-5), "batch_size": (8, 16, 32)}  # the paper's best of these
REPORTED = {"cola": (-1.0, 0.8), "mrpc": (-1.0, 0.6)}  # λ and ζ of BERT in the paper's table 2
PAPER = {task: {"lam": (lam,), "zeta": (z,), **RATES} for task, (lam, z) in REPORTED.items()}


def istar(name: str, lam: float, zeta: float = ZETA) -> Condition:
    """Return a condition of I-STAR on the tokens of all layers."""
    return Condition(name, "istar", {"zeta": zeta}, lam, "all")


DOWN, UP = istar("I-STAR lam=-1", -1.0), istar("I-STAR lam=1", 1.0)
COSREG = Condition("CosReg lam=1", "cosreg", where="last")


def claims() -> list[Claim]:
    """Return the claims of table 1 and figures 3, 4 and 6."""
    early = Claim(
        "figure 6",
        "CoLA: lam=1 changes IsoScore* more in the first half of the layers than in the second",
        f"QNLI: {DRAWN}",
        _early_layers,
        "cola",
    )
    per_task = (
        claim for task in BERT for claim in (*_geometry_claims(task), *_metric_claims(task))
    )
    return [*per_task, early]


def _geometry_claims(task: str) -> list[Claim]:
    base, down, up, cosreg = (of(item.name, task) for item in (BASE, DOWN, UP, COSREG))
    by = f"by a factor of {ASKED:g} or more (tokens of all layers)"
    lines = [
        (
            "figure 3",
            f"lam=-1 lowers IsoScore* {by}",
            DRAWN,
            moves(base, down, "isoscore_star", -1, ASKED),
        ),
        (
            "figure 3",
            f"lam=1 raises IsoScore* {by}",
            DRAWN,
            moves(base, up, "isoscore_star", 1, ASKED),
        ),
        (
            "figure 4",
            "CosReg (lam=1) moves the last layer's mean towards 0 (its norm)",
            f"QNLI: {DRAWN}",
            moves(base, cosreg, "last_mean_norm", -1),
        ),
        (
            "figure 4",
            f"CosReg leaves the last layer's IsoScore* where it was (within a factor of "
            f"{UNMOVED:g})",
            "0.004–0.007 with CosReg (SST-2)",
            stays(base, cosreg, "last_isoscore_star", UNMOVED, as_factor=True),
        ),
    ]
    *others, unmoved = (
        Claim(where, f"{TASKS[task]}: {text}", theirs, judge, task)
        for where, text, theirs, judge in lines
    )
    paper = {"lam": (1.0,), **RATES} if task == "cola" else None
    return [*others, unmoved._replace(paper=paper, method=cosreg)]


def _metric_claims(task: str) -> list[Claim]:
    base, down, up, cosreg = (of(item.name, task) for item in (BASE, DOWN, UP, COSREG))
    name, metric = TASKS[task], metric_name(task)
    istar_, base_, cosreg_ = BERT[task]
    lines = [
        (
            "table 1",
            f"{name}: I-STAR with lam=-1 has a higher {metric} than the base",
            f"{base_:.4f} → {istar_:.4f} (BERT, best λ < 0)",
            moves(base, down, "metric", 1, size=istar_ - base_),
        ),
        (
            "figure 3",
            f"{name}: {metric} is higher with lam=-1 than with lam=1",
            DRAWN,
            moves(up, down, "metric", 1),
        ),
        (
            "table 1",
            f"{name}: I-STAR with lam=-1 has a higher {metric} than CosReg",
            f"{cosreg_:.4f} → {istar_:.4f} (BERT, best λ < 0)",
            moves(cosreg, down, "metric", 1, size=istar_ - cosreg_),
        ),
    ]
    first, *others = (Claim(*line, task, about_metric=True) for line in lines)
    return [first._replace(paper=PAPER[task], method=down), *others]


def _early_layers(records: Sequence[Record]) -> Judged:
    fields = [of(condition.name, "cola") for condition in (BASE, UP)]
    before, after = (arrays_by_seed(records, item, "layers_isoscore_star") for item in fields)
    halves = {seed: _halves(before[seed], after[seed]) for seed in before if seed in after}
    steps = {seed: early - late for seed, (early, late) in halves.items()}
    early, late = (mean_sd(defined([pair[i] for pair in halves.values()])) for i in (0, 1))
    ours = f"log ratio {early} early, {late} late"
    return judge_steps(steps, n_planned(records, *fields), ours)


def _halves(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean absolute log ratio in the first and in the second half of the layers."""
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.abs(np.log(after / before))
    half = len(changes) // 2
    return float(changes[:half].mean()), float(changes[half:].mean())

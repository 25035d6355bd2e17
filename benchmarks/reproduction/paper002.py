"""Paper 002, table 1 and figures 3 to 8: I-STAR and CosReg while fine-tuning."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from benchmarks.reproduction._cells import (
    NOT_RUN,
    QUICK,
    Cell,
    Claim,
    Judge,
    Judged,
    Record,
    Suite,
    not_testable,
)
from benchmarks.reproduction._tables import (
    TASKS,
    condition_table,
    layer_table,
    metric_name,
    tasks_of,
)
from benchmarks.reproduction._training import BASE, Condition, training_cells
from benchmarks.reproduction._verdicts import (
    Fields,
    arrays_by_seed,
    by_seed,
    decide,
    defined,
    gains,
    mean_of,
    mean_sd,
    moves,
    paired,
    selected,
    stays,
    tally,
)

ZETA = 0.2
LAMS = (-5.0, -3.0, -1.0, 0.5, 1.0, 3.0, 5.0)
LAYERS = (1, 3, 6)
ASKED = 1.5  # factor by which IsoScore* is to move at lam = -1 and 1
UNMOVED = 1.5  # a factor up to it counts as no change
LAMS_NEEDED = 5  # for a rank correlation


def istar(lam: float, zeta: float = ZETA, layer: int | None = None) -> Condition:
    """Return I-STAR on the tokens of all layers, or of one."""
    name = f"I-STAR lam={lam:g}"
    if zeta != ZETA:
        name += f" zeta={zeta:g}"
    if layer is not None:
        name += f" layer {layer}"
    return Condition(name, "istar", {"zeta": zeta}, lam, "all" if layer is None else [layer])


def cosreg(lam: float) -> Condition:
    """Return cosine regularisation of the last layer's tokens."""
    return Condition(f"CosReg lam={lam:g}", "cosreg", lam=lam, where="last")


DOWN, UP = istar(-1.0), istar(1.0)
BY_ZETA = (istar(-1.0, 0.0), DOWN, istar(-1.0, 0.8))
BY_LAYER = tuple(istar(-1.0, layer=layer) for layer in LAYERS)
RANKED = {  # on CoLA: what each rank of cells decides, first the directions
    0: (BASE, DOWN, UP),
    2: (cosreg(1.0),),
    4: (istar(-5.0), istar(5.0)),
    5: (istar(-3.0), istar(3.0), istar(0.5), cosreg(-1.0)),
    9: (BY_ZETA[0], BY_ZETA[2]),
    10: BY_LAYER,
}
SECOND = (BASE, DOWN, UP, cosreg(1.0))
SECOND_RANK, QUICK_RANKS = 6, (0, 2)
SHOWN = (BASE, *map(istar, LAMS), cosreg(1.0), cosreg(-1.0), BY_ZETA[0], BY_ZETA[2], *BY_LAYER)
NAMES = tuple(condition.name for condition in SHOWN)


def cells(suite: Suite) -> list[Cell]:
    """Return CoLA's cells by rank, then the directions on the other tasks."""
    found = [
        cell
        for rank, conditions in RANKED.items()
        if suite.name != QUICK.name or rank in QUICK_RANKS
        for condition in conditions
        for cell in training_cells("002", condition, ["cola"], suite, rank)
    ]
    others = [task for task in ("sst2", "rte") if task in suite.tasks]
    for condition in SECOND:
        found += training_cells("002", condition, others, suite, SECOND_RANK)
    return found


def claims() -> list[Claim]:
    """Return the claims of table 1 and figures 3 to 8."""
    return [
        *_directions("cola"),
        *_lambda_claims(),
        *_cosreg_claims("cola"),
        *_dimension_claims(),
        *_directions("sst2"),
        *_cosreg_claims("sst2"),
        *_untested(),
    ]


def _directions(task: str) -> list[Claim]:
    base = _of(BASE, task)
    theirs = "curves only drawn (BERT, ALBERT, DistilBERT)"
    return [
        Claim(
            "002",
            "figure 3",
            f"{TASKS[task]}: lam={condition.lam:g} {word} IsoScore* by a "
            f"factor of {ASKED:g} or more (tokens of all layers)",
            theirs,
            moves(base, _of(condition, task), "isoscore_star", sign, ASKED),
        )
        for condition, word, sign in ((DOWN, "lowers", -1), (UP, "raises", 1))
    ]


def _lambda_claims() -> list[Claim]:
    drawn = "only drawn"
    return [
        Claim(
            "002",
            "figure 3",
            "CoLA: IsoScore* rises with lam",
            drawn,
            _ranked("lam", "isoscore_star", 1),
        ),
        Claim(
            "002",
            "figure 3",
            "CoLA: the metric falls as IsoScore* rises (the paper finds no "
            "strong trend for ALBERT on CoLA)",
            drawn,
            _ranked("isoscore_star", "metric", -1),
        ),
        Claim(
            "002",
            "table 1",
            "CoLA: I-STAR with its best lam, which is negative, beats the base",
            "59.22 → 59.60 (BERT)",
            _best_against(BASE, negative=True),
        ),
        Claim(
            "002",
            "table 1",
            "CoLA: I-STAR with its best lam beats CosReg",
            "57.90 → 59.60 (BERT)",
            _best_against(cosreg(1.0), negative=False),
        ),
        Claim(
            "002",
            "figure 7",
            "CoLA: without shrinkage (zeta=0) the metric is lower than with the best zeta",
            "RTE: 3.85, 6.19, 0.76 % lower",
            _zeta_matters,
        ),
        Claim(
            "002",
            "figure 8",
            "CoLA: no layer alone is better than all layers in every seed",
            drawn,
            _single_layers,
        ),
    ]


def _cosreg_claims(task: str) -> list[Claim]:
    base, drawn = _of(BASE, task), "QNLI: only drawn"
    up, down = _of(cosreg(1.0), task), _of(cosreg(-1.0), task)
    name = TASKS[task]
    found = [
        Claim(
            "002",
            "figure 4",
            f"{name}: CosReg (lam=1) moves the last layer's mean towards 0 (its norm)",
            drawn,
            moves(base, up, "last_mean_norm", -1),
        ),
        Claim(
            "002",
            "figure 4",
            f"{name}: CosReg leaves the last layer's IsoScore* where it was "
            f"(within a factor of {UNMOVED:g} in every seed)",
            "0.004–0.007 with CosReg (SST-2)",
            stays(base, up, "last_isoscore_star", _factor, UNMOVED),
        ),
    ]
    if task == "cola":
        found.append(
            Claim(
                "002",
                "figure 4",
                f"{name}: CosReg with lam=-1 moves the mean away from 0",
                drawn,
                moves(base, down, "last_mean_norm", 1),
            )
        )
    return found


def _dimension_claims() -> list[Claim]:
    base, drawn = _of(BASE, "cola"), "SST-2: curves only drawn"
    return [
        *(
            Claim(
                "002",
                "figure 5",
                f"CoLA: lam={lam:g} {word} the TwoNN dimension of the last layer's [CLS]",
                drawn,
                moves(base, _of(istar(lam), "cola"), "last_two_nn", sign),
            )
            for lam, word, sign in ((-5.0, "lowers", -1), (5.0, "raises", 1))
        ),
        Claim(
            "002",
            "figure 6",
            "CoLA: lam=1 changes IsoScore* more in the first half of the layers than in the second",
            "QNLI: curves only drawn",
            _early_layers,
        ),
    ]


def _untested() -> list[Claim]:
    return [
        Claim(
            "002",
            "table 1",
            "The same on QNLI, QQP, SST-5 and SQuAD, and with BERT, ALBERT and DistilBERT",
            "the other columns and rows of table 1",
            not_testable("neither these models nor these data are to be had here"),
        ),
    ]


def _of(condition: Condition, task: str) -> Fields:
    return {"paper": "002", "name": condition.name, "task": task}


def _by_lam(records: Sequence[Record], figure: str) -> dict[float, list[float]]:
    """A figure of each lam of the suite on CoLA, empty where it has yet to run; 0 is the base."""
    conditions = {0.0: BASE} | {lam: istar(lam) for lam in LAMS}
    return {
        lam: list(by_seed(records, _of(condition, "cola"), figure).values())
        for lam, condition in sorted(conditions.items())
        if selected(records, _of(condition, "cola"))
    }


def _ranked(first: str, second: str, sign: int) -> Judge:
    """Judge by the rank correlation of the means over the seeds, one-sided at 0.05."""

    def judge(records: Sequence[Record]) -> Judged:
        seconds = {lam: values for lam, values in _by_lam(records, second).items() if values}
        firsts = _by_lam(records, first) if first != "lam" else {lam: [lam] for lam in seconds}
        lams = [lam for lam in seconds if defined(seconds[lam]) and defined(firsts[lam])]
        if len(seconds) < 2:
            return NOT_RUN
        n = min(map(len, seconds.values()))
        reason = f"over lam = {', '.join(f'{lam:g}' for lam in lams)}"
        if len(lams) < len(seconds):
            reason += f" ({len(seconds) - len(lams)} undefined)"
        others, means = ([mean_of(found[lam]) for lam in lams] for found in (firsts, seconds))
        if len(lams) < LAMS_NEEDED or np.ptp(means) == 0 or np.ptp(others) == 0:
            return Judged("–", None, n, f"{reason}: {LAMS_NEEDED} that differ are needed")
        found = kendalltau(others, means, alternative="greater" if sign > 0 else "less")
        shown = f"Kendall's tau {found.statistic:.2f}"
        holds = decide(sign * found.statistic, found.pvalue)
        return Judged(shown, holds, n, f"{reason}; p = {found.pvalue:.2g}")

    return judge


def _best_against(other: Condition, negative: bool) -> Judge:
    """Judge I-STAR's best lam, chosen on the dev set as in the paper, by a paired t-test."""

    def judge(records: Sequence[Record]) -> Judged:
        found = {lam: values for lam, values in _by_lam(records, "metric").items() if lam}
        means = {lam: mean_of(values) for lam, values in found.items() if defined(values)}
        if not means:
            return NOT_RUN
        best = max(means, key=lambda lam: means[lam])
        rises = gains(_of(other, "cola"), _of(istar(best), "cola"), "metric", choices=len(means))
        judged = rises(records)
        if judged == NOT_RUN:
            return NOT_RUN
        holds = False if negative and best > 0 else judged.holds
        reason = f"best lam={best:g}, chosen on the same dev set; {judged.reason}"
        if n_waiting := sum(not values for values in found.values()):
            holds, reason = None, f"{n_waiting} of {len(found)} lam have yet to run; {reason}"
        return judged._replace(holds=holds, reason=reason)

    return judge


def _zeta_matters(records: Sequence[Record]) -> Judged:
    found = [
        (list(by_seed(records, _of(condition, "cola"), "metric").values()), condition)
        for condition in BY_ZETA
    ]
    if not all(values for values, _ in found):
        return NOT_RUN
    known = [(mean_of(values), condition) for values, condition in found[1:] if defined(values)]
    _, best = max(known, key=lambda item: item[0], default=(math.nan, DOWN))
    rises = gains(_of(BY_ZETA[0], "cola"), _of(best, "cola"), "metric", choices=len(known))
    judged = rises(records)
    reason = f"best zeta={best.options['zeta']}, chosen on the same dev set; {judged.reason}"
    return judged if judged == NOT_RUN else judged._replace(reason=reason)


def _factor(before: float, after: float) -> float:
    low, high = sorted([before, after])
    return high / low if low > 0 else math.nan


def _early_layers(records: Sequence[Record]) -> Judged:
    before, after = (
        arrays_by_seed(records, _of(condition, "cola"), "layers_isoscore_star")
        for condition in (BASE, UP)
    )
    seeds = [seed for seed in before if seed in after]
    if not seeds:
        return NOT_RUN
    pairs = [_halves(before[seed], after[seed]) for seed in seeds]
    shown = "factor " + ", ".join(
        f"{mean_sd(values)} {word}"
        for values, word in zip(zip(*pairs, strict=True), ("early", "late"), strict=True)
    )
    more, n = sum(early > late for early, late in pairs), len(seeds)
    undefined = n - len(defined([early + late for early, late in pairs]))
    return Judged(shown, more == n, n, tally(more, n, undefined))


def _halves(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """Geometric means of the factors by which the first and the second half of layers change."""
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.abs(np.log(after / before))
    half = len(changes) // 2
    return float(np.exp(changes[:half].mean())), float(np.exp(changes[half:].mean()))


def _single_layers(records: Sequence[Record]) -> Judged:
    steps = [
        paired(records, _of(DOWN, "cola"), _of(condition, "cola"), "metric").steps
        for condition in BY_LAYER
    ]
    if not all(steps):
        return NOT_RUN
    shown = ", ".join(f"{mean_of(step):+.3g}" for step in steps)
    layers = ", ".join(map(str, LAYERS))
    reason = f"metric of layers {layers} alone less that of all, lam=-1"
    better = any(all(value > 0 for value in step) for step in steps)
    return Judged(shown, not better, min(map(len, steps)), reason)


def tables(records: Sequence[Record]) -> str:
    """Return table 1 and figures 3 to 8 as tables, for each task that has records."""
    return "\n\n".join(_tables(records, task) for task in tasks_of(records, "002"))


def _tables(records: Sequence[Record], task: str) -> str:
    columns = {
        "metric": metric_name(task),
        "accuracy": "accuracy",
        "cross_entropy": "cross-entropy",
        "isoscore_star": "IsoScore*, all layers",
        "last_isoscore_star": "last layer",
        "isoscore_corrected": "head's input, corrected",
        "last_mean_norm": "norm of the last layer's mean",
        "last_largest_mean": "its largest entry",
        "last_variance": "trace of its covariance",
        "last_mean_cosine": "mean cosine there",
        "training_seconds": "training, processor s/epoch",
        "shrinkage_seconds": "Σ_S, s/epoch",
    }
    return (
        f"Table 1 and figures 3, 4, 7 and 8, {TASKS[task]}. IsoScore* is that of the dev set's "
        f"tokens with zeta={ZETA:g} and Σ_S of the training rows' tokens; lam=0 is the base.\n\n"
        f"{condition_table(records, '002', task, NAMES, columns)}\n\n"
        "Figure 6: IsoScore* layer by layer.\n\n"
        f"{layer_table(records, '002', task, NAMES, 'layers_isoscore_star')}\n\n"
        "Figure 5: TwoNN dimension of [CLS] layer by layer.\n\n"
        f"{layer_table(records, '002', task, NAMES, 'layers_two_nn')}"
    )

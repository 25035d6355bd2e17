"""Paper 002, table 1 and figures 3 to 8: I-STAR and CosReg while fine-tuning."""

from collections.abc import Sequence

import numpy as np
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
    LEVEL,
    Fields,
    by_seed,
    gains,
    moves,
    paired,
    selected,
)

ZETA = 0.2
LAMS = (-5.0, -3.0, -1.0, 0.5, 1.0, 3.0, 5.0)
LAYERS = (1, 3, 6)
ASKED = 1.5  # factor by which IsoScore* is to move at lam = -1 and 1
UNMOVED = 1.5  # a factor below it counts as no change


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
            _best_against(BASE),
        ),
        Claim(
            "002",
            "table 1",
            "CoLA: I-STAR with its best lam beats CosReg",
            "57.90 → 59.60 (BERT)",
            _best_against(cosreg(1.0)),
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
            "CoLA: no layer alone is better throughout than all layers",
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
            f"(within a factor of {UNMOVED:g})",
            "0.004–0.007 with CosReg (SST-2)",
            _stays(base, up, "last_isoscore_star"),
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
    """A figure of each lam on CoLA that has been run; the base is lam=0."""
    conditions = {0.0: BASE} | {lam: istar(lam) for lam in LAMS}
    found = {
        lam: list(by_seed(records, _of(condition, "cola"), figure).values())
        for lam, condition in conditions.items()
    }
    return {lam: values for lam, values in sorted(found.items()) if values}


def _ranked(first: str, second: str, sign: int) -> Judge:
    """Judge by the rank correlation of the means over the seeds, one-sided at 0.05."""

    def judge(records: Sequence[Record]) -> Judged:
        by_lam = _by_lam(records, second)
        if len(by_lam) < 2:
            return NOT_RUN
        n = min(map(len, by_lam.values()))
        means = [float(np.mean(values)) for values in by_lam.values()]
        others = list(by_lam)
        if first != "lam":
            others = [float(np.mean(values)) for values in _by_lam(records, first).values()]
        if np.ptp(means) == 0 or np.ptp(others) == 0:
            return Judged("–", None, n, f"the same {second} at every lam")
        found = kendalltau(others, means, alternative="greater" if sign > 0 else "less")
        shown = f"Kendall's tau {found.statistic:.2f}"
        reason = f"over lam = {', '.join(f'{lam:g}' for lam in by_lam)}; p = {found.pvalue:.2g}"
        enough = len(by_lam) > 4
        return Judged(shown, bool(found.pvalue < LEVEL) if enough else None, n, reason)

    return judge


def _best_against(other: Condition) -> Judge:
    """Judge I-STAR's best lam, chosen on the dev set as in the paper, by a paired t-test."""

    def judge(records: Sequence[Record]) -> Judged:
        means = {lam: np.mean(values) for lam, values in _by_lam(records, "metric").items() if lam}
        if not means:
            return NOT_RUN
        best = max(means, key=lambda lam: means[lam])
        judged = gains(_of(other, "cola"), _of(istar(best), "cola"), "metric")(records)
        holds = judged.holds if judged.holds is None or best < 0 else False
        reason = f"best lam={best:g}, chosen on the same dev set; {judged.reason}"
        return judged if judged == NOT_RUN else judged._replace(holds=holds, reason=reason)

    return judge


def _zeta_matters(records: Sequence[Record]) -> Judged:
    means = [
        (float(np.mean(list(found.values()))), place)
        for place, condition in enumerate(BY_ZETA)
        if place and (found := by_seed(records, _of(condition, "cola"), "metric"))
    ]
    if not means:
        return NOT_RUN
    best = BY_ZETA[max(means)[1]]
    judged = gains(_of(BY_ZETA[0], "cola"), _of(best, "cola"), "metric")(records)
    reason = f"best zeta={best.options['zeta']}, chosen on the same dev set; {judged.reason}"
    return judged if judged == NOT_RUN else judged._replace(reason=reason)


def _stays(before: Fields, after: Fields, figure: str) -> Judge:
    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, before, after, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        low, high = sorted([np.mean(pairs.before), np.mean(pairs.after)])
        return Judged(pairs.shown, bool(high < UNMOVED * low), n, f"a factor of {high / low:.3g}")

    return judge


def _early_layers(records: Sequence[Record]) -> Judged:
    before, after = (_layers(records, condition) for condition in (BASE, UP))
    seeds = [seed for seed in before if seed in after]
    if not seeds:
        return NOT_RUN
    changes = np.array([np.abs(np.log(after[seed] / before[seed])) for seed in seeds])
    half = changes.shape[1] // 2
    early, late = changes[:, :half].mean(1), changes[:, half:].mean(1)
    shown = f"factor {np.exp(early.mean()):.3g} early, {np.exp(late.mean()):.3g} late"
    more = int((early > late).sum())
    return Judged(shown, more == len(seeds), len(seeds), f"in {more} of {len(seeds)} seeds")


def _layers(records: Sequence[Record], condition: Condition) -> dict[int, np.ndarray]:
    found = selected(records, _of(condition, "cola"))
    return {item["seed"]: np.array(item["figures"]["layers_isoscore_star"]) for item in found}


def _single_layers(records: Sequence[Record]) -> Judged:
    steps = [
        paired(records, _of(DOWN, "cola"), _of(condition, "cola"), "metric").steps
        for condition in BY_LAYER
    ]
    if not all(steps):
        return NOT_RUN
    means = [float(np.mean(step)) for step in steps]
    shown = ", ".join(f"{mean:+.3g}" for mean in means)
    layers = ", ".join(map(str, LAYERS))
    reason = f"metric of layers {layers} alone less that of all, lam=-1"
    return Judged(shown, not all(mean > 0 for mean in means), min(map(len, steps)), reason)


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

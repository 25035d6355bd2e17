"""Paper 002, table 1 and figures 3 to 8: I-STAR and CosReg during fine-tuning."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    arrays_by_seed,
    by_seed,
    defined,
    mean_of,
    mean_sd,
    n_planned,
    of,
)
from benchmarks.reproduction._tables import (
    TASKS,
    condition_table,
    layer_table,
    metric_name,
    tasks_of,
)
from benchmarks.reproduction._training import BASE, Condition
from benchmarks.reproduction._verdicts import (
    WAITING,
    Claim,
    ClaimJudge,
    Headline,
    Judged,
    judge_steps,
    moves,
    none_better,
    not_testable,
    stays,
)

ZETA = 0.2
LAMS = (-5.0, -3.0, -1.0, 0.5, 1.0, 3.0, 5.0)
LAYERS = (1, 3, 6)
ASKED = 1.5  # factor by which IsoScore* should change at lam = -1 and 1
UNMOVED = 1.5  # factor up to which a figure counts as unchanged
NOTABLE = 0.01  # difference of a metric up to which a result is not better
DRAWN = "curves only drawn"
BEATS_BASE = "I-STAR with its best negative lam beats the base"
GAINS = Headline("I-STAR with λ = -1 gains over the base")
BEST_GAINS = Headline("I-STAR with the best of three λ < 0 gains over the base")
LOWERS = Headline(f"λ = -1 lowers IsoScore* by a factor of {ASKED:g} or more", rank=1)


def istar(lam: float, zeta: float = ZETA, layer: int | None = None) -> Condition:
    """Return the condition of I-STAR on the tokens of all layers, or of one layer."""
    name = f"I-STAR lam={lam:g}"
    if zeta != ZETA:
        name += f" zeta={zeta:g}"
    if layer is not None:
        name += f" layer {layer}"
    return Condition(name, "istar", {"zeta": zeta}, lam, "all" if layer is None else [layer])


def cosreg(lam: float) -> Condition:
    """Return the condition of CosReg on the tokens of the last layer."""
    return Condition(f"CosReg lam={lam:g}", "cosreg", lam=lam, where="last")


DOWN, UP, COSREG, COSREG_DOWN = istar(-1.0), istar(1.0), cosreg(1.0), cosreg(-1.0)
OTHER_LAMS = tuple(istar(lam) for lam in LAMS if abs(lam) != 1)
NO_ZETA, OTHER_ZETA = istar(-1.0, 0.0), istar(-1.0, 0.8)
BY_LAYER = tuple(istar(-1.0, layer=layer) for layer in LAYERS)
SHOWN = (BASE, *map(istar, LAMS), COSREG, COSREG_DOWN, NO_ZETA, OTHER_ZETA, *BY_LAYER)
NAMES = tuple(condition.name for condition in SHOWN)
BERT = {  # table 1: I-STAR, base, CosReg
    "cola": (0.5960, 0.5922, 0.5790),
    "mrpc": (0.8676, 0.8651, 0.8529),
    "rte": (0.6253, 0.6224, 0.6152),
    "sst2_sentence": (0.9265, 0.9240, 0.9201),
}


def claims() -> list[Claim]:
    """Return the claims of table 1 and figures 3 to 8."""
    return [
        *(claim for task in BERT for claim in (*_directions(task), *_cosreg_claims(task))),
        *_lambda_claims(),
        *_dimension_claims(),
        Claim(
            "table 1",
            "The same on QNLI, QQP, SST-5 and SQuAD, and with BERT, ALBERT and DistilBERT",
            "the other columns and rows of table 1",
            not_testable("neither these models nor these data are available here"),
        ),
    ]


def _directions(task: str) -> list[Claim]:
    base, down, up = (of(condition.name, task) for condition in (BASE, DOWN, UP))
    name, metric = TASKS[task], metric_name(task)
    istar_, base_, _ = BERT[task]
    theirs = f"{base_:.4f} → {istar_:.4f} (BERT, best λ < 0)"
    return [
        *(
            Claim(
                "figure 3",
                f"{name}: lam={lam:g} {word} IsoScore* by a factor of {ASKED:g} or more (tokens of "
                "all layers)",
                DRAWN,
                moves(base, after, "isoscore_star", sign, ASKED),
                task,
                headline,
            )
            for lam, after, word, sign, headline in (
                (-1, down, "lowers", -1, LOWERS),
                (1, up, "raises", 1, None),
            )
        ),
        Claim(
            "table 1",
            f"{name}: I-STAR with lam=-1 has a higher {metric} than the base",
            theirs,
            moves(base, down, "metric", 1, size=istar_ - base_),
            task,
            GAINS,
        ),
        Claim(
            "figure 3",
            f"{name}: {metric} is higher with lam=-1 than with lam=1",
            DRAWN,
            moves(up, down, "metric", 1),
            task,
        ),
        Claim(
            "table 1",
            f"{name}: I-STAR with lam=-1 has a higher {metric} than CosReg",
            f"{BERT[task][2]:.4f} → {istar_:.4f} (BERT, best λ < 0)",
            moves(of(COSREG.name, task), down, "metric", 1, size=istar_ - BERT[task][2]),
            task,
        ),
    ]


def _cosreg_claims(task: str) -> list[Claim]:
    base, up, down = (of(condition.name, task) for condition in (BASE, COSREG, COSREG_DOWN))
    name, drawn = TASKS[task], "QNLI: only drawn"
    found = [
        Claim(
            "figure 4",
            f"{name}: CosReg (lam=1) moves the last layer's mean towards 0 (its norm)",
            drawn,
            moves(base, up, "last_mean_norm", -1),
            task,
        ),
        Claim(
            "figure 4",
            f"{name}: CosReg leaves the last layer's IsoScore* where it was (within a factor of "
            f"{UNMOVED:g})",
            "0.004–0.007 with CosReg (SST-2)",
            stays(base, up, "last_isoscore_star", UNMOVED, as_factor=True),
            task,
        ),
    ]
    if task == "cola":
        found.append(
            Claim(
                "figure 4",
                f"{name}: CosReg with lam=-1 moves the mean away from 0",
                drawn,
                moves(base, down, "last_mean_norm", 1),
                task,
            )
        )
    return found


def _lambda_claims() -> list[Claim]:
    istar_, base_, cosreg_ = BERT["cola"]
    lines = [
        ("figure 3", "IsoScore* rises with lam", "only drawn", _ranked("lam", "isoscore_star", 1)),
        (
            "figure 3",
            "the metric falls as IsoScore* rises (the paper finds no strong trend for ALBERT on "
            "CoLA)",
            "only drawn",
            _ranked("isoscore_star", "metric", -1),
        ),
        (
            "table 1",
            BEATS_BASE,
            f"{base_:.4f} → {istar_:.4f} (BERT)",
            _best_against(BASE, istar_ - base_),
        ),
        (
            "table 1",
            "I-STAR with its best negative lam beats CosReg",
            f"{cosreg_:.4f} → {istar_:.4f} (BERT)",
            _best_against(COSREG, istar_ - cosreg_),
        ),
        (
            "figure 7",
            "without shrinkage (zeta=0) the metric is lower than with the best zeta",
            "RTE: 3.85, 6.19, 0.76 % lower",
            _zeta_matters,
        ),
        (
            "figure 8",
            f"no layer alone is better than all layers by more than {NOTABLE:g} (lam=-1)",
            "only drawn",
            _single_layers(),
        ),
    ]
    headlines = {BEATS_BASE: BEST_GAINS}
    return [
        Claim(where, f"CoLA: {text}", theirs, judge, "cola", headlines.get(text))
        for where, text, theirs, judge in lines
    ]


def _dimension_claims() -> list[Claim]:
    base = of(BASE.name, "cola")
    found = [
        Claim(
            "figure 5",
            f"CoLA: lam={lam:g} {word} the TwoNN dimension of the last layer's [CLS]",
            "SST-2: curves only drawn",
            moves(base, of(istar(lam).name, "cola"), "last_two_nn", sign),
            "cola",
        )
        for lam, word, sign in ((-5.0, "lowers", -1), (5.0, "raises", 1))
    ]
    early = Claim(
        "figure 6",
        "CoLA: lam=1 changes IsoScore* more in the first half of the layers than in the second",
        "QNLI: curves only drawn",
        _early_layers,
        "cola",
    )
    return [*found, early]


def _by_lam(records: Sequence[Record], figure: str) -> dict[float, dict[int, float]]:
    """Return a figure on CoLA by lam and seed; lam 0 is the base."""
    names = {0.0: BASE.name} | {lam: istar(lam).name for lam in LAMS}
    return {lam: by_seed(records, of(names[lam], "cola"), figure) for lam in sorted(names)}


def _ranked(first: str, second: str, sign: int) -> ClaimJudge:
    """Judge by the rank correlation over lam, for each seed."""

    def judge(records: Sequence[Record]) -> Judged:
        seconds = _by_lam(records, second)
        firsts = _by_lam(records, first)
        if first == "lam":
            firsts = {lam: dict.fromkeys(found, lam) for lam, found in seconds.items()}
        seeds = set.intersection(*(set(found) for found in seconds.values()))
        taus = {
            seed: float(
                kendalltau(
                    [firsts[lam][seed] for lam in seconds], [seconds[lam][seed] for lam in seconds]
                ).statistic
            )
            for seed in sorted(seeds)
        }
        planned = n_planned(records, *(of(istar(lam).name, "cola") for lam in LAMS))
        shown = f"Kendall's tau {mean_sd([*taus.values()])}"
        reason = f"over {len(seconds)} values of lam"
        return judge_steps(taus, planned, shown, sign=sign, reason=reason)

    return judge


def _best_against(other: Condition, size: float) -> ClaimJudge:
    """Judge I-STAR with its best negative lam, chosen on the dev set as in the paper."""

    def judge(records: Sequence[Record]) -> Judged:
        return _best_of([istar(lam) for lam in LAMS if lam < 0], other, records, size)

    return judge


def _zeta_matters(records: Sequence[Record]) -> Judged:
    return _best_of([DOWN, OTHER_ZETA], NO_ZETA, records)


def _best_of(
    conditions: Sequence[Condition],
    other: Condition,
    records: Sequence[Record],
    size: float | None = None,
) -> Judged:
    """Judge the best of some conditions against another, on the seeds that have run them all."""
    found = [by_seed(records, of(item.name, "cola"), "metric") for item in conditions]
    seeds = set.intersection(*map(set, found))
    if not seeds:
        missing = sum(not values for values in found)
        return Judged(
            "–", WAITING, reason=f"{missing} of {len(conditions)} conditions have no seed"
        )
    means = [mean_of([values[seed] for seed in seeds]) for values in found]
    best = conditions[int(np.argmax(np.nan_to_num(means, nan=-np.inf)))]
    common = [record for record in records if record["seed"] in seeds]
    rises = moves(
        of(other.name, "cola"),
        of(best.name, "cola"),
        "metric",
        1,
        size=size,
        choices=len(conditions),
    )
    judged = rises(common)
    return judged._replace(reason=f"best: {best.name}, on the same dev set; {judged.reason}")


def _single_layers() -> ClaimJudge:
    every = of(DOWN.name, "cola")
    compared = {
        f"layer {layer}": (every, of(condition.name, "cola"))
        for layer, condition in zip(LAYERS, BY_LAYER, strict=True)
    }
    return none_better(compared, "metric", NOTABLE)


def _early_layers(records: Sequence[Record]) -> Judged:
    fields = [of(condition.name, "cola") for condition in (BASE, UP)]
    before, after = (arrays_by_seed(records, item, "layers_isoscore_star") for item in fields)
    halves = {seed: _halves(before[seed], after[seed]) for seed in before if seed in after}
    steps = {seed: early - late for seed, (early, late) in halves.items()}
    shown = ", ".join(
        f"{mean_sd(defined(list(values)))} {word}"
        for values, word in zip(
            zip(*halves.values(), strict=True), ("early", "late"), strict=bool(halves)
        )
    )
    return judge_steps(steps, n_planned(records, *fields), f"log ratio {shown}" if shown else "–")


def _halves(before: NDArray[np.float64], after: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean absolute log ratio in the first and in the second half of the layers."""
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = np.abs(np.log(after / before))
    half = len(changes) // 2
    return float(changes[:half].mean()), float(changes[half:].mean())


def tables(records: Sequence[Record]) -> str:
    """Return table 1 and figures 3 to 8 as tables, for each task with records."""
    return "\n\n".join(_tables(records, task) for task in tasks_of(records, NAMES[1:]))


def _tables(records: Sequence[Record], task: str) -> str:
    columns: Mapping[str, str] = {
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
        f"{condition_table(records, task, NAMES, columns)}\n\n"
        "Figure 6: IsoScore* layer by layer.\n\n"
        f"{layer_table(records, task, NAMES, 'layers_isoscore_star')}\n\n"
        "Figure 5: TwoNN dimension of [CLS] layer by layer.\n\n"
        f"{layer_table(records, task, NAMES, 'layers_two_nn')}"
    )

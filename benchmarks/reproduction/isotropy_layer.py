"""Paper 003, tables 2 and 3 and figure 2: Isotropy Layer and IsoBN on a fine-tuned encoder."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks._markdown import markdown_table
from benchmarks.quality._adapter_rows import BASE, ISOBN, MINIBATCH, NO_PENALTY, NO_PENALTY_RAW, Row
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    Fields,
    arrays_by_seed,
    by_seed,
    defined,
    mean_sd,
    n_planned,
    of,
)
from benchmarks.reproduction._posthoc import TOP, row_named
from benchmarks.reproduction._tables import TASKS, metric_name, task_score, tasks_of
from benchmarks.reproduction._training import Condition
from benchmarks.reproduction._verdicts import (
    Claim,
    ClaimJudge,
    Headline,
    Judged,
    judge_steps,
    moves,
    not_testable,
    stays,
)
from isoadapt import IsotropyLayer

ClaimParts = tuple[str, str, str, ClaimJudge]  # where, claim, theirs, judge
OVER_BASE = "higher than the base's"
OWN_SHARE = "higher than with the same layer and no penalty: isotropy's own share"
OVER_REFIT = "higher than after a mere refit of the head"
RAISES_ISOSCORE = "the layer raises IsoScore"
HEADLINES = {
    OVER_BASE: Headline("The Isotropy Layer gains over the base"),
    OWN_SHARE: Headline("It gains over the same layer without a penalty (our control)"),
    OVER_REFIT: Headline("It gains over a mere refit of the head (our control)"),
    RAISES_ISOSCORE: Headline("It raises IsoScore", rank=1),
}

ISOBN_TRAINED = Condition("IsoBN in training", isobn=True)
REFIT = "head refit only"
RAW = "IsotropyLayer, minibatch, raw coordinates"
TRAINED_HEADS = ("joint", "alternating")
ON_PAR = 0.02  # difference of a metric up to which results are on par


def with_head(training: str) -> str:
    """Return the name of the layer that is trained together with the head."""
    return f"{MINIBATCH}, {training} head"


def control_with_head(training: str) -> str:
    """Return the name of the control of this layer."""
    return f"{NO_PENALTY}, {training} head"


NAMES = (
    BASE,
    REFIT,
    NO_PENALTY,
    MINIBATCH,
    *(make(training) for training in TRAINED_HEADS for make in (control_with_head, with_head)),
    NO_PENALTY_RAW,
    RAW,
    ISOBN,
)
SHOWN = (*NAMES, ISOBN_TRAINED.name)


class Theirs(NamedTuple):
    """Figures of the paper for BERT-base on the dev set of a task."""

    isoscore: str
    ev1: str
    metric: str
    ev1_isobn: str
    ev1_against: str
    metric_against: str
    gain: float


THEIRS = {
    "cola": Theirs(
        "0.004 → 0.0255",
        "0.60 → 0.18",
        "0.6161 → 0.6357",
        "0.49 → 0.25",
        "0.18 against 0.25",
        "0.6282 against 0.6159",
        0.0196,
    ),
    "mrpc": Theirs(
        "0.0033 → 0.0103",
        "0.63 → 0.43",
        "0.8529 → 0.8799",
        "0.76 → 0.37",
        "0.43 against 0.37, though said to be better on all",
        "0.875 against 0.875",
        0.0270,
    ),
    "rte": Theirs(
        "0.0051 → 0.025",
        "0.61 → 0.27",
        "0.6787 → 0.7184",
        "0.88 → 0.49",
        "0.27 against 0.49",
        "0.7040 against 0.7075",
        0.0397,
    ),
}


def rows() -> list[Row]:
    """Return the rows of the tables: base, controls, the layer, and IsoBN applied afterwards."""
    plain = {"coordinates": "raw", "ridge": 0.0, "lr_schedule": "constant"}  # as in the paper
    own = {RAW: Row(RAW, partial(IsotropyLayer, **plain))}
    for training in TRAINED_HEADS:
        for name, alpha in ((control_with_head(training), 1.0), (with_head(training), 0.5)):
            own[name] = Row(name, partial(IsotropyLayer, alpha=alpha, head_training=training))
    return [own.get(name) or row_named(name) for name in NAMES]


def claims() -> list[Claim]:
    """Return the claims of both tables and the figure, for each task."""
    found = [
        Claim(*line, task, _headline(task, line[1]))
        for task in THEIRS
        for line in (*_of_geometry(task), *_of_metric(task))
    ]
    larger = not_testable("needs RoBERTa-large, which is not available here")
    lines = [
        ("table 2", "The layer also helps RoBERTa-large", "CoLA 0.6723 → 0.6877", larger),
        (
            "table 3",
            "On RoBERTa-large IsoBN lowers EV1 more than the layer does",
            "CoLA 0.21 against 0.41",
            larger,
        ),
    ]
    return [*found, *(Claim(*line) for line in lines)]


def _headline(task: str, claim: str) -> Headline | None:
    """Return the words of the first page for a claim; None if it is not shown there."""
    relation = claim.removeprefix(f"{_metric_of_layer(task)} is ")
    return HEADLINES.get(relation.removeprefix(f"{TASKS[task]}: "))


def _metric_of_layer(task: str) -> str:
    """Return the start of the claims on the layer's metric."""
    return f"{TASKS[task]}: the layer's {metric_name(task)}"


def _of_geometry(task: str) -> list[ClaimParts]:
    theirs, name = THEIRS[task], TASKS[task]
    base, layer, isobn = (of(row, task) for row in (BASE, MINIBATCH, ISOBN_TRAINED.name))
    curve = f"{name}: explained variance is lower with the layer at every k up to {TOP}"
    beats_isobn = f"{name}: the layer lowers EV1 more than IsoBN in training does"
    return [
        (
            "table 2, BERT-base",
            f"{name}: {RAISES_ISOSCORE}",
            theirs.isoscore,
            moves(base, layer, "isoscore", 1),
        ),
        (
            "table 3, BERT-base",
            f"{name}: the layer lowers EV1",
            theirs.ev1,
            moves(base, layer, "ev1", -1),
        ),
        ("figure 2, BERT-base", curve, "curves only drawn", _lower_curve(base, layer)),
        (
            "table 3, BERT-base",
            f"{name}: IsoBN in training lowers EV1",
            theirs.ev1_isobn,
            moves(base, isobn, "ev1", -1),
        ),
        ("table 3, BERT-base", beats_isobn, theirs.ev1_against, moves(isobn, layer, "ev1", -1)),
    ]


def _of_metric(task: str) -> list[ClaimParts]:
    theirs, layer = THEIRS[task], of(MINIBATCH, task)
    what = _metric_of_layer(task)

    def gain(over: str, after: str = MINIBATCH, size: float | None = None) -> ClaimJudge:
        return moves(of(over, task), of(after, task), "metric", 1, size=size)

    lines = [
        (
            "table 2, BERT-base",
            f"{what} is {OVER_BASE}",
            theirs.metric,
            gain(BASE, size=theirs.gain),
        ),
        (
            "ours",
            f"{what} is {OWN_SHARE}",
            "no such control",
            gain(NO_PENALTY),
        ),
        (
            "ours",
            f"{what} is {OVER_REFIT}",
            "no such control",
            gain(REFIT),
        ),
        (
            "table 3, BERT-base",
            f"{what} is on par with that of IsoBN in training (within {ON_PAR:g})",
            theirs.metric_against,
            stays(of(ISOBN_TRAINED.name, task), layer, "metric", ON_PAR),
        ),
    ]
    for training in TRAINED_HEADS:
        named = f"{what} with {training} training of the head is higher than"
        after = with_head(training)
        lines += [
            ("future work", f"{named} the base's", "not tried", gain(BASE, after)),
            (
                "ours",
                f"{named} without the penalty",
                "no such control",
                gain(control_with_head(training), after),
            ),
        ]
    return lines


def _lower_curve(before: Fields, after: Fields) -> ClaimJudge:
    """Judge by the smallest difference over k, for each seed."""

    def judge(records: Sequence[Record]) -> Judged:
        first, second = _curves(records, before), _curves(records, after)
        seeds = [seed for seed in first if seed in second]
        steps = {seed: float(np.min(first[seed] - second[seed])) for seed in seeds}
        last = [mean_sd([curves[seed][-1] for seed in seeds]) for curves in (first, second)]
        shown = f"at k={TOP}: {last[0]} → {last[1]}"
        planned = n_planned(records, before, after)
        return judge_steps(steps, planned, shown, reason="smallest difference over k")

    return judge


def _curves(records: Sequence[Record], fields: Fields) -> dict[int, np.ndarray]:
    return arrays_by_seed(records, fields, "explained_variance")


def tables(records: Sequence[Record]) -> str:
    """Return tables 2 and 3 as one, and the curves of figure 2, for each task with records."""
    return "\n\n".join(
        part
        for task in tasks_of(records, SHOWN)
        for part in (_table(records, task), _figure(records, task))
    )


def _table(records: Sequence[Record], task: str) -> str:
    header = [
        TASKS[task],
        "seeds",
        f"{metric_name(task)}, median (sd)",
        "cross-entropy",
        "IsoScore",
        "IsoScore corrected",
        "EV1/EV2/EV3 of the seed with median EV1",
        "fit, s",
    ]
    lines = []
    for name in SHOWN:
        fields = of(name, task)
        values = list(by_seed(records, fields, task_score(task)).values())
        if values:
            others = [
                mean_sd(list(by_seed(records, fields, column).values()))
                for column in ("cross_entropy", "isoscore")
            ]
            lines.append(
                [
                    name,
                    str(len(values)),
                    _median_sd(values),
                    *others,
                    mean_sd(_corrected(records, fields)),
                    _median_ev(records, fields),
                    mean_sd(list(by_seed(records, fields, "seconds").values())),
                ]
            )
    return (
        f"Tables 2 and 3, {TASKS[task]} dev. The base is fine-tuned once for each seed. “{ISOBN}” "
        f"is applied to the finished embeddings and its head refit; “{ISOBN_TRAINED.name}” is the "
        "paper's, which trains the whole encoder. A gain in the metric is isotropy's only where it "
        f"goes beyond “{NO_PENALTY}” and “{REFIT}”.\n\n{markdown_table(header, lines)}"
    )


def _corrected(records: Sequence[Record], fields: Fields) -> list[float]:
    """Return the corrected IsoScore, whose name differs for adapters and fine-tuning runs."""
    found = [by_seed(records, fields, name) for name in ("isoscore_corrected", "corrected")]
    return [
        found[1][seed] if math.isnan(value) else value  # the other name
        for seed, value in found[0].items()
    ]


def _median_sd(values: Sequence[float]) -> str:
    found = defined(values)
    if not found:
        return "–"
    median = f"{float(np.median(found)):.4f}"
    return median if len(found) < 2 else f"{median} ({float(np.std(found, ddof=1)):.4f})"


def _median_ev(records: Sequence[Record], fields: Fields) -> str:
    """Return EV1/EV2/EV3 of the seed with the median EV1 (the lower one for an even number)."""
    curves = [
        np.stack(values)
        for values in zip(
            *(by_seed(records, fields, f"ev{k}").values() for k in (1, 2, 3)), strict=True
        )
    ]
    if not any(np.isfinite(curve).all() for curve in curves):
        curves = [curve[:3] for curve in _curves(records, fields).values()]
    found = sorted((curve for curve in curves if np.isfinite(curve).all()), key=lambda ev: ev[0])
    return "/".join(f"{value:.3f}" for value in found[(len(found) - 1) // 2]) if found else "–"


def _figure(records: Sequence[Record], task: str) -> str:
    places = (1, 2, 3, 5, 10, TOP)
    lines = []
    for name in NAMES:
        curves = list(_curves(records, of(name, task)).values())
        if curves:
            lines.append([name, *(mean_sd([curve[k - 1] for curve in curves]) for k in places)])
    header = [f"Figure 2, {TASKS[task]}: explained variance", *(f"k={k}" for k in places)]
    return markdown_table(header, lines)

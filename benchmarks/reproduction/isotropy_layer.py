"""Paper 003, tables 2 and 3 and figure 2: the Isotropy Layer on a fine-tuned encoder."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.quality._adapter_rows import (
    BASE,
    ISOBN,
    MINIBATCH,
    NO_PENALTY,
    NO_PENALTY_RAW,
    REFIT,
    Row,
)
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import (
    TASKS,
    Fields,
    arrays_by_seed,
    mean_sd,
    metric_name,
    n_planned,
    of,
)
from benchmarks.reproduction._posthoc import TOP, row_named
from benchmarks.reproduction._verdicts import Claim, ClaimJudge, Judged, judge_steps, moves
from isoadapt import IsotropyLayer

RAW = "IsotropyLayer, minibatch, raw coordinates"
TRAINED_HEADS = ("joint", "alternating")


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


class Theirs(NamedTuple):
    """Figures of the paper for BERT-base on the dev set of a task; the gain is that over seeds."""

    isoscore: str
    ev1: str
    metric: str  # table 2
    over_seeds: str  # table 3, 5 seeds
    gain: float


THEIRS = {
    "cola": Theirs("0.004 → 0.0255", "0.60 → 0.18", "0.6161 → 0.6357", "0.6089 → 0.6282", 0.0193),
    "mrpc": Theirs("0.0033 → 0.0103", "0.63 → 0.43", "0.8529 → 0.8799", "0.8664 → 0.8750", 0.0086),
    "rte": Theirs("0.0051 → 0.025", "0.61 → 0.27", "0.6787 → 0.7184", "0.6772 → 0.7040", 0.0268),
}
PAPER = {"alpha": (0.5,), "coordinates": ("raw",), "bias_corrected": (False,)}


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
    return [line for task in THEIRS for line in (*_of_geometry(task), *_of_metric(task))]


def _of_geometry(task: str) -> list[Claim]:
    theirs, name = THEIRS[task], TASKS[task]
    base, layer = of(BASE, task), of(MINIBATCH, task)
    curve = f"{name}: explained variance is lower with the layer at every k up to {TOP}"
    raises, lowers = moves(base, layer, "isoscore", 1), moves(base, layer, "ev1", -1)
    rise = Claim("table 2", f"{name}: the layer raises IsoScore", theirs.isoscore, raises, task)
    return [
        rise._replace(paper=PAPER, method=layer) if task == "cola" else rise,
        Claim("table 3", f"{name}: the layer lowers EV1", theirs.ev1, lowers, task),
        Claim("figure 2", curve, "curves only drawn", _lower_curve(base, layer), task),
    ]


def _of_metric(task: str) -> list[Claim]:
    theirs, control = THEIRS[task], "no such control"
    metric = f"{theirs.metric} (5 seeds: {theirs.over_seeds})"
    lines: list[tuple[str, str | None, str, str, str, float | None]] = [
        ("table 2", None, "the base's", metric, BASE, theirs.gain),
        (
            "ours",
            None,
            "with the same layer and no penalty: isotropy's own share",
            control,
            NO_PENALTY,
            None,
        ),
        ("ours", None, "after a mere refit of the head", control, REFIT, None),
    ]
    for training in TRAINED_HEADS:
        lines += [
            ("future work", training, "the base's", "not tried", BASE, None),
            ("ours", training, "without the penalty", control, control_with_head(training), None),
        ]
    found = []
    for where, training, relation, said, over, size in lines:
        layer = of(with_head(training) if training else MINIBATCH, task)
        named = f" with {training} training of the head" if training else ""
        claim = Claim(
            where,
            f"{TASKS[task]}: the layer's {metric_name(task)}{named} is higher than {relation}",
            said,
            moves(of(over, task), layer, "metric", 1, size=size),
            task,
            about_metric=True,
        )
        found.append(claim._replace(paper=PAPER, method=layer) if size else claim)
    return found


def _lower_curve(before: Fields, after: Fields) -> ClaimJudge:
    """Judge by the smallest difference over k, for each seed."""

    def judge(records: Sequence[Record]) -> Judged:
        first, second = (
            arrays_by_seed(records, fields, "explained_variance") for fields in (before, after)
        )
        seeds = [seed for seed in first if seed in second]
        steps = {seed: float(np.min(first[seed] - second[seed])) for seed in seeds}
        last = [mean_sd([curves[seed][-1] for seed in seeds]) for curves in (first, second)]
        shown = f"at k={TOP}: {last[0]} → {last[1]}"
        planned = n_planned(records, before, after)
        return judge_steps(steps, planned, shown, reason="smallest difference over k")

    return judge

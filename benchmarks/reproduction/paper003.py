"""Paper 003, tables 2 and 3 and figure 2: the Isotropy Layer and IsoBN on a fine-tuned encoder."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks._adapter_rows import BASE, ISOBN, MINIBATCH, NO_PENALTY, NO_PENALTY_RAW, ROWS, Row
from benchmarks._cells import measure_cell
from benchmarks._report import markdown_table
from benchmarks.reproduction._cells import (
    JSON,
    NOT_RUN,
    Cell,
    Claim,
    Judge,
    Judged,
    Record,
    Suite,
    not_testable,
)
from benchmarks.reproduction._tables import TASKS
from benchmarks.reproduction._training import (
    adapter_settings,
    base_embeddings,
    base_settings,
    is_kept,
    job_for,
)
from benchmarks.reproduction._verdicts import (
    Fields,
    arrays_by_seed,
    by_seed,
    defined,
    gains,
    mean_sd,
    moves,
    paired,
    selected,
    tally,
)
from isoadapt import IsotropyLayer
from isoadapt.geometry import Moments
from isoadapt.metrics import cumulative_explained_variance

Line = tuple[str, str, str, Judge]  # where, claim, theirs, judge

METRICS = {"cola": "matthews", "mrpc": "accuracy", "rte": "accuracy"}
WORDS = {"matthews": "Matthews", "accuracy": "accuracy"}
REFIT = "head refit only"
RAW = "IsotropyLayer, minibatch, raw coordinates"
TOP = 20  # principal components in figure 2
NAMES = (BASE, REFIT, NO_PENALTY, MINIBATCH, NO_PENALTY_RAW, RAW, ISOBN)
DECIDES = {"cola": 2, "mrpc": 8, "rte": 11}


class Theirs(NamedTuple):
    """The paper's figures of BERT-base on a task's dev set."""

    isoscore: str
    ev1: str
    metric: str
    ev1_isobn: str
    ev1_against: str
    metric_against: str


THEIRS = {
    "cola": Theirs(
        "0.004 → 0.0255",
        "0.60 → 0.18",
        "0.6161 → 0.6357",
        "0.49 → 0.25",
        "0.18 against 0.25",
        "0.6282 against 0.6159",
    ),
    "mrpc": Theirs(
        "0.0033 → 0.0103",
        "0.63 → 0.43",
        "0.8529 → 0.8799",
        "0.76 → 0.37",
        "0.43 against 0.37, though said to be better on all",
        "0.875 against 0.875",
    ),
    "rte": Theirs(
        "0.0051 → 0.025",
        "0.61 → 0.27",
        "0.6787 → 0.7184",
        "0.88 → 0.49",
        "0.27 against 0.49",
        "0.7040 against 0.7075",
    ),
}


def rows() -> list[Row]:
    """Return the rows of the tables: base, controls, the layer in both coordinates, IsoBN."""
    raw = Row(RAW, lambda head: IsotropyLayer(head, coordinates="raw"))
    known = {row.name: row for row in (*ROWS, raw)}
    return [known[name] for name in NAMES]


def cells(suite: Suite) -> list[Cell]:
    """Return a cell for each row, task and seed; the seed is the encoder's and the adapter's."""
    return [
        Cell(
            paper="003",
            name=row.name,
            task=task,
            seed=seed,
            settings={"base": base_settings(task, suite), **adapter_settings(row.make(None))},
            run=partial(figures, row, task, seed, suite),
            decides=DECIDES[task],
            cached=partial(is_kept, job_for("003", task, seed, suite)),
        )
        for task in suite.tasks
        if task in METRICS
        for row in rows()
        for seed in range(suite.seeds)
    ]


def figures(row: Row, task: str, seed: int, suite: Suite) -> dict[str, JSON]:
    """Fit on the base model's training embeddings, judge on its dev embeddings."""
    data = base_embeddings(task, seed, suite)
    estimator = row.make_seeded(data.head, seed if row.takes_seed() else None)
    found = asdict(measure_cell(estimator, data).figures)
    moments = Moments().update(estimator.transform(data.X_test))
    curve = [cumulative_explained_variance(moments, k) for k in range(1, TOP + 1)]
    return {**found, "explained_variance": curve}


def claims() -> list[Claim]:
    """Return the claims of both tables and the figure, task by task."""
    lines = [line for task in METRICS for line in (*_of_geometry(task), *_of_metric(task))]
    larger = not_testable("needs RoBERTa-large")
    lines += [
        ("table 2", "The layer also helps RoBERTa-large", "CoLA 0.6723 → 0.6877", larger),
        (
            "table 3",
            "On RoBERTa-large IsoBN lowers EV1 more than the layer does",
            "CoLA 0.21 against 0.41",
            larger,
        ),
    ]
    return [Claim("003", *line) for line in lines]


def _of_geometry(task: str) -> list[Line]:
    theirs, name = THEIRS[task], TASKS[task]
    base, layer, isobn = (_of(row, task) for row in (BASE, MINIBATCH, ISOBN))
    curve = f"{name}: explained variance is lower with the layer at every k up to {TOP}"
    beats_isobn = f"{name}: the layer lowers EV1 more than IsoBN does"
    return [
        (
            "table 2, BERT-base",
            f"{name}: the layer raises IsoScore",
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
            f"{name}: IsoBN lowers EV1",
            theirs.ev1_isobn,
            moves(base, isobn, "ev1", -1),
        ),
        ("table 3, BERT-base", beats_isobn, theirs.ev1_against, moves(isobn, layer, "ev1", -1)),
    ]


def _of_metric(task: str) -> list[Line]:
    theirs, figure = THEIRS[task], METRICS[task]
    what = f"{TASKS[task]}: the layer's {WORDS[figure]}"
    layer = _of(MINIBATCH, task)

    def gain(over: str) -> Judge:
        return gains(_of(over, task), layer, figure)

    return [
        ("table 2, BERT-base", f"{what} is higher than the base's", theirs.metric, gain(BASE)),
        (
            "ours",
            f"{what} is higher than with the same layer and no penalty: isotropy's own share",
            "no such control",
            gain(NO_PENALTY),
        ),
        (
            "ours",
            f"{what} is higher than after a mere refit of the head",
            "no such control",
            gain(REFIT),
        ),
        (
            "table 3, BERT-base",
            f"{what} is on par with IsoBN's (here: medians within the larger standard deviation)",
            theirs.metric_against,
            _on_par(_of(ISOBN, task), layer, figure),
        ),
    ]


def _of(name: str, task: str) -> Fields:
    return {"paper": "003", "name": name, "task": task}


def _lower_curve(before: Fields, after: Fields) -> Judge:
    def judge(records: Sequence[Record]) -> Judged:
        first, second = _curves(records, before), _curves(records, after)
        seeds = [seed for seed in first if seed in second]
        if not seeds:
            return NOT_RUN
        lower = sum(bool(np.all(second[seed] < first[seed])) for seed in seeds)
        last = [mean_sd([curves[seed][-1] for seed in seeds]) for curves in (first, second)]
        undefined = sum(bool(np.isnan(first[seed] + second[seed]).any()) for seed in seeds)
        shown, n = f"at k={TOP}: {last[0]} → {last[1]}", len(seeds)
        return Judged(shown, lower == n, n, tally(lower, n, undefined))

    return judge


def _curves(records: Sequence[Record], fields: Fields) -> dict[int, np.ndarray]:
    return arrays_by_seed(records, fields, "explained_variance")


def _on_par(isobn: Fields, layer: Fields, figure: str) -> Judge:
    def judge(records: Sequence[Record]) -> Judged:
        pairs = paired(records, isobn, layer, figure)
        n = len(pairs.steps)
        if n == 0:
            return NOT_RUN
        if pairs.undefined:
            return Judged(pairs.shown, False, n, f"{pairs.undefined} of {n} seeds undefined")
        medians = [float(np.median(values)) for values in (pairs.after, pairs.before)]
        shown = f"{medians[0]:.4g} against {medians[1]:.4g}"
        if n == 1:
            return Judged(shown, None, n, "one seed has no spread")
        spread = max(np.std(values, ddof=1) for values in pairs)
        apart = abs(medians[0] - medians[1])
        return Judged(
            shown, bool(apart <= spread), n, f"{apart:.3g} apart, standard deviation {spread:.3g}"
        )

    return judge


def tables(records: Sequence[Record]) -> str:
    """Return tables 2 and 3 in one and figure 2's curves, for each task that has records."""
    found = [task for task in METRICS if selected(records, {"paper": "003", "task": task})]
    return "\n\n".join(
        part for task in found for part in (_table(records, task), _figure(records, task))
    )


def _table(records: Sequence[Record], task: str) -> str:
    figure = METRICS[task]
    header = [
        TASKS[task],
        "seeds",
        f"{WORDS[figure]}, median (sd)",
        "cross-entropy",
        "IsoScore",
        "IsoScore corrected",
        "EV1/EV2/EV3 of the seed with median EV1",
        "fit, s",
    ]
    lines = []
    for name in NAMES:
        fields = _of(name, task)
        values = list(by_seed(records, fields, figure).values())
        if values:
            others = [
                mean_sd(list(by_seed(records, fields, column).values()))
                for column in ("cross_entropy", "isoscore", "corrected")
            ]
            seconds = np.mean(list(by_seed(records, fields, "seconds").values()))
            lines.append(
                [
                    name,
                    str(len(values)),
                    _median_sd(values),
                    *others,
                    _median_ev(records, fields),
                    f"{seconds:.2f}",
                ]
            )
    return (
        f"Tables 2 and 3, {TASKS[task]} dev. The base is fine-tuned anew for each seed. IsoBN is "
        "applied to the finished embeddings and its head refit; the paper's figures for it come "
        "from training the whole encoder with it. A gain in the metric is isotropy's only where it "
        f"goes beyond “{NO_PENALTY}” and “{REFIT}”.\n\n{markdown_table(header, lines)}"
    )


def _median_sd(values: Sequence[float]) -> str:
    found = defined(values)
    if not found:
        return "–"
    median = f"{float(np.median(found)):.4f}"
    return median if len(found) < 2 else f"{median} ({float(np.std(found, ddof=1)):.4f})"


def _median_ev(records: Sequence[Record], fields: Fields) -> str:
    """EV1/EV2/EV3 of the seed whose EV1 is the median (of an even number, the lower one)."""
    found = [curve for curve in _curves(records, fields).values() if np.isfinite(curve).all()]
    if not found:
        return "–"
    curves = sorted(found, key=lambda curve: curve[0])
    return "/".join(f"{value:.3f}" for value in curves[(len(curves) - 1) // 2][:3])


def _figure(records: Sequence[Record], task: str) -> str:
    places = (1, 2, 3, 5, 10, TOP)
    lines = []
    for name in NAMES:
        curves = list(_curves(records, _of(name, task)).values())
        if curves:
            lines.append([name, *(mean_sd([curve[k - 1] for curve in curves]) for k in places)])
    header = [f"Figure 2, {TASKS[task]}: explained variance", *(f"k={k}" for k in places)]
    return markdown_table(header, lines)

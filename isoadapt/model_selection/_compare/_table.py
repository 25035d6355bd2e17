"""The table of a comparison, by use and method, and sentences that say what its tests show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt._utils.messages import warn
from isoadapt.geometry._chunks import row_hashes
from isoadapt.model_selection._compare._data import Plan
from isoadapt.model_selection._compare._measure import Data, Outcome, Outcomes, n_changed
from isoadapt.model_selection._compare._methods import (
    ADAPTER,
    BASELINE,
    HEAD_REFIT,
    NO_ADAPTER,
    SECOND_PASS,
    Method,
)
from isoadapt.model_selection._compare._paired_tests import (
    LEVEL,
    BootstrapUse,
    Determination,
    Effect,
    Evidence,
    Floats,
    LinkedUse,
    Mean,
    RankCorrelation,
    SplitUse,
    TwoMeans,
    Units,
    holm,
    joined,
)

Row = Mapping[str, Any]


class Use(NamedTuple):
    """How a use and its metric are called in sentences and tables."""

    phrase: str
    metric: str
    of_vectors: bool = True


USES = {
    "classify": Use("On classification", "accuracy", of_vectors=False),
    "regress": Use("On regression", "R²", of_vectors=False),
    "similarity": Use("For similarity", "Spearman correlation"),
    "search": Use("For search", "MRR@10"),
    "index": Use("For search in the teacher's index", "MRR@10"),
    "neighbours": Use("For neighbours of the same class", "precision@10"),
    "outliers": Use("For outliers", "AUROC"),
}
_FEW = 10  # clusters with which intervals of level 0.95 cover the truth in 90 % of the cases
_UNTESTED = Effect(math.nan, math.nan, math.nan)


def make_rows(
    methods: Sequence[Method], outcomes: Outcomes, data: Data, plan: Plan, seed: int
) -> list[dict[str, Any]]:
    """One row for each use and method."""
    figures = _figures(methods, outcomes)
    rows = []
    for use, tests in _tests(outcomes, data, plan, seed).items():
        own = [_row(use, method, tests) for method in methods if _is_in(method, use, outcomes)]
        for column in ("p", "control_p"):
            adapters = [row for row in own if row["kind"] == ADAPTER]
            adjusted = holm([row[f"{column}_value"] for row in adapters])
            for row, value in zip(adapters, adjusted, strict=True):
                row[f"{column}_holm"] = value
        rows += [row | figures[row["adapter"]] for row in own]
    return rows


def _is_in(method: Method, use: str, outcomes: Outcomes) -> bool:
    return use != "index" or outcomes[method.name][-1].indexed is not None


def _row(use: str, method: Method, tests: BootstrapUse | SplitUse) -> dict[str, Any]:
    """Score, differences and p-values of a method in a use, before Holm's adjustment."""
    score = tests.interval(method.name)
    difference = _UNTESTED
    reference = SECOND_PASS if use == "index" else NO_ADAPTER
    if method.name != reference:
        difference = tests.difference(method.name, reference)
    control, beyond = _hardest(method, tests, use)
    return {
        "use": use,
        "adapter": method.name,
        "score": score.estimate,
        "ci_low": score.low,
        "ci_high": score.high,
        "difference": difference.estimate,
        "p_value": difference.p_value,
        "p_holm": math.nan,
        "kind": method.kind,
        "metric": USES[use].metric,
        "n_units": tests.n_units,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "control": control,
        "control_difference": beyond.estimate,
        "control_p_value": beyond.p_value,
        "control_p_holm": math.nan,
    }


def _hardest(method: Method, tests: BootstrapUse | SplitUse, use: str) -> tuple[str | None, Effect]:
    """Control that is hardest to beat, and the difference from it."""
    # A refit of the head leaves the vectors as they are: it is no control for uses of vectors.
    controls = [
        name for name in method.controls if not (USES[use].of_vectors and name == HEAD_REFIT)
    ]
    found = {name: tests.difference(method.name, name) for name in controls}
    if not found:
        return None, _UNTESTED

    def hardness(name: str) -> tuple[bool, float, float]:
        effect = found[name]
        return effect.estimate <= 0, effect.p_value, -effect.estimate

    name = max(found, key=hardness)
    return name, found[name]


def _figures(methods: Sequence[Method], outcomes: Outcomes) -> dict[str, dict[str, Any]]:
    """Figures of each method that do not depend on the use, as means over the splits."""
    judged = {name: [o for o in own if o.predictions is not None] for name, own in outcomes.items()}
    keys = list(dict.fromkeys(key for own in judged.values() for o in own for key in o.figures))
    found: dict[str, dict[str, Any]] = {}
    for method in methods:
        own = judged[method.name]
        figures: dict[str, Any] = {
            key: float(np.mean([outcome.figures.get(key, math.nan) for outcome in own]))
            for key in keys
        }
        figures["fit_seconds"] = outcomes[method.name][-1].figures["fit_seconds"]
        pairs = zip(judged[NO_ADAPTER], own, strict=True)
        figures["changed_predictions"] = sum(
            n_changed(before.predictions, after.predictions) for before, after in pairs
        )
        figures["n_predictions"] = sum(len(outcome.predictions) for outcome in own)
        found[method.name] = figures
    return found


# --- the tests of each use -----------------------------------------------------------------------


def _tests(
    outcomes: Outcomes, data: Data, plan: Plan, seed: int
) -> dict[str, BootstrapUse | SplitUse]:
    """Tests of each use for which there are data."""
    judged = _JudgedRows([split.test for split in plan.splits if len(split.test)])
    clusters = data.clusters[judged.rows]
    of_rows = Units.clusters(clusters)

    def by_bootstrap(units: Units, make: Callable[[list[Outcome]], Evidence]) -> BootstrapUse:
        if (n := sum(units.strata)) < min(_FEW, len(units.of_item)):
            warn(f"{len(units.of_item)} items in {n} clusters: the intervals are too narrow")
        return BootstrapUse({name: make(own) for name, own in outcomes.items()}, units, seed)

    found: dict[str, BootstrapUse | SplitUse] = {}
    if plan.resampled:
        found[data.task] = _by_splits(outcomes, plan, sum(of_rows.strata))
    else:
        y = data.y[judged.rows]
        found[data.task] = by_bootstrap(of_rows, lambda own: _of_task(data.task, y, own[0]))
    if data.pairs is not None:
        found["similarity"] = _of_pairs(outcomes, *data.pairs[1:], seed)
    if data.search is not None:
        units = Units.clusters(_of_queries(*data.search))
        found["search"] = by_bootstrap(units, lambda own: Mean(own[-1].reciprocal))
        indexed = {
            name: Mean(own[-1].indexed)
            for name, own in outcomes.items()
            if own[-1].indexed is not None
        }
        if indexed:
            found["index"] = BootstrapUse(indexed, units, seed)
    if data.task == "classify":
        found["neighbours"] = by_bootstrap(of_rows, lambda own: Mean(judged.mean(own, "precision")))
    if data.foreign is not None:
        foreign = joined(np.arange(len(data.foreign)), row_hashes(data.foreign))
        units = Units.clusters(clusters, foreign)
        found["outliers"] = by_bootstrap(units, judged.ranked)
    return found


def _of_pairs(
    outcomes: Outcomes, ends: NDArray[np.int64], scores: Floats, seed: int
) -> BootstrapUse | SplitUse:
    """Tests of pairs, which depend on each other if they share one of their ends (2, n)."""
    evidence = {name: RankCorrelation(own[-1].similarity, scores) for name, own in outcomes.items()}
    if ends.max() + 1 < len(scores) + np.count_nonzero(ends[0] != ends[1]):
        return LinkedUse(evidence, ends)
    return BootstrapUse(evidence, Units.rows(len(scores)), seed)


def _of_queries(
    queries: Floats, documents: Floats, relevant: Sequence[set[int]]
) -> NDArray[np.int64]:
    """Clusters (n,): equal queries, and those of the same relevant documents, are in one."""
    documents_of = row_hashes(documents)
    sets = [hash(frozenset(documents_of[list(own)].tolist())) for own in relevant]
    return joined(np.arange(len(queries)), row_hashes(queries), np.array(sets).view(np.uint64))


def _by_splits(outcomes: Outcomes, plan: Plan, n_units: int) -> SplitUse:
    """Tests of the task by the scores of the splits of a cross-validation."""
    splits = [split for split in plan.splits if len(split.test)]
    ratio = float(np.mean([len(split.test) / len(split.train) for split in splits]))
    scores = {
        name: np.array([outcome.score for outcome in own[: len(splits)]])
        for name, own in outcomes.items()
    }
    return SplitUse(scores, ratio, n_units)


def _of_task(task: str, y: NDArray[Any], outcome: Outcome) -> Evidence:
    """Accuracy or R² of the predictions of rows with labels or values y."""
    if task == "classify":
        right = (outcome.predictions == y).reshape(len(y), -1).all(axis=1)
        return Mean(right.astype(np.float64))
    targets, predictions = (
        np.asarray(each, dtype=np.float64).reshape(len(y), -1) for each in (y, outcome.predictions)
    )
    return Determination(targets, predictions)


class _JudgedRows:
    """The rows that are judged on one or several splits."""

    def __init__(self, tests: Sequence[NDArray[np.int64]]) -> None:
        self.tests = tests
        self.rows, self.places = np.unique(np.concatenate(tests), return_inverse=True)

    def mean(self, outcomes: Sequence[Outcome], name: str) -> Floats:
        """Mean over the splits of a figure of each judged row, shape (n_judged,)."""
        values = np.concatenate([getattr(each, name) for each in outcomes[: len(self.tests)]])
        return np.bincount(self.places, weights=values) / np.bincount(self.places)

    def ranked(self, outcomes: Sequence[Outcome]) -> TwoMeans:
        """Placements of judged and of foreign rows."""
        placed = [each.outside for each in outcomes[: len(self.tests)]]
        outside = np.average(placed, axis=0, weights=[len(test) for test in self.tests])
        return TwoMeans(self.mean(outcomes, "inside"), outside)


# --- what the tests show --------------------------------------------------------------------------


def is_credited(row: Row) -> bool:
    """Whether an adapter is shown to be better than no adapter and than its controls."""
    if row["kind"] != ADAPTER or not _is_shown(row, "difference", "p_holm", 1):
        return False
    return row["control"] is None or _is_shown(row, "control_difference", "control_p_holm", 1)


def is_explained(row: Row) -> bool:
    """Whether an adapter is shown to be better than no adapter, but not than a control."""
    shown = row["kind"] == ADAPTER and _is_shown(row, "difference", "p_holm", 1)
    return shown and not is_credited(row)


def is_worse(row: Row) -> bool:
    """Whether an adapter is shown to be worse than no adapter."""
    return row["kind"] == ADAPTER and _is_shown(row, "difference", "p_holm", -1)


def _is_shown(row: Row, difference: str, p_value: str, sign: int) -> bool:
    p = row[p_value]
    return not math.isnan(p) and p <= LEVEL and sign * row[difference] > 0


def sentence(rows: Sequence[Row]) -> str:
    """Return the verdict on one use from its rows of the table."""
    use = USES[rows[0]["use"]]
    if rows[0]["use"] == "index":
        return _of_index(use, *rows)
    (base,) = (row for row in rows if row["kind"] == BASELINE)
    by_score = sorted(rows, key=lambda row: -row["score"])
    better, explained, worse = (
        [row for row in by_score if test(row)] for test in (is_credited, is_explained, is_worse)
    )
    clauses = []
    if better:
        clauses.append(_gain(base, better, use))
    if explained:
        clauses.append(_no_credit(base, explained, use, bool(better)))
    if not (better or explained):
        change = "raise" if worse else "change"
        clauses.append(
            f"no adapter is shown to {change} the {use.metric}, which is "
            f"{base['score']:.3f} without one"
        )
    if worse:
        lowest = f"{_name(worse[-1])} the most, " if len(worse) > 1 else ""
        verb = "lower it," if lowest else "lowers it"
        clauses.append(f"{_names(worse)} {verb} {lowest}to {_after(base, worse[-1])}")
    caution = ""
    if better and (n_adapters := sum(row["kind"] == ADAPTER for row in rows)) > 1:
        caution = (
            f" {_name(better[0])} is the best of {n_adapters} adapters on these rows: expect a "
            "smaller gain on fresh rows, and confirm it there."
        )
    return f"{use.phrase}, {'; '.join(clauses)}.{caution}"


def _of_index(use: Use, teacher: Row, *others: Row) -> str:
    """Say how well queries by the classifier do in the index of the teacher, without tests."""
    found = [f"{row['score']:.3f} by {_name(row)}" for row in others]
    listed = ", ".join([*found, f"{teacher['score']:.3f} by the teacher itself"])
    return f"{use.phrase}, the {use.metric} of queries is {listed}."


def _gain(base: Row, better: Sequence[Row], use: Use) -> str:
    best = better[0]
    text = f"{_name(best)} raises the {use.metric} {_steps(base, best)}"
    if best["control"] is not None:
        score = best["score"] - best["control_difference"]
        text += f", beyond its control {best['control']!r} ({score:.3f}),"
    if use.of_vectors:
        text += f" and changes {_changes(best)}"
    text = text.removesuffix(",")
    others = list(better[1:])
    harmless = [row for row in others if use.of_vectors and not row["changed_predictions"]]
    if harmless and best["changed_predictions"]:
        others.remove(harmless[0])
        text += (
            f"; {_name(harmless[0])} raises it to {_after(base, harmless[0])} and changes no "
            "prediction"
        )
    if others:
        text += f"; {_names(others)} {'raises' if len(others) == 1 else 'raise'} it too"
    return text


def _no_credit(base: Row, explained: Sequence[Row], use: Use, after_gain: bool) -> str:
    best = explained[0]
    control, score = best["control"], best["score"] - best["control_difference"]
    if after_gain and len(explained) == 1:
        return f"the gain of {_name(best)} is not shown to exceed that of {control!r}"
    if after_gain:
        return f"the gains of {_names(explained)} are not shown to exceed those of their controls"
    return (
        f"no adapter is shown to beat its control: {_name(best)} raises the {use.metric} "
        f"{_steps(base, best)}, but the control {control!r} reaches {score:.3f}, so the gain is "
        "not credited to the adapter"
    )


def _changes(row: Row) -> str:
    changed, total = row["changed_predictions"], row["n_predictions"]
    return "no prediction" if not changed else f"{changed} of {total} predictions"


def _steps(base: Row, row: Row) -> str:
    return f"from {_digits(base, row).format(base['score'])} to {_after(base, row)}"


def _after(base: Row, row: Row) -> str:
    return _digits(base, row).format(row["score"])


def _digits(base: Row, row: Row) -> str:
    """Format in which the two scores differ."""
    formats = ("{:.3f}", "{:.5f}", "{:.9f}")
    scores = base["score"], row["score"]
    differing = (each for each in formats if len({each.format(score) for score in scores}) > 1)
    return next(differing, formats[0])


def _names(rows: Sequence[Row]) -> str:
    """Up to three names, or the number of more."""
    names = [_name(row) for row in rows]
    if len(names) > 3:
        return f"{len(names)} {'others' if is_credited(rows[0]) else 'adapters'}"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _name(row: Row) -> str:
    """Name of an adapter, in quotes if it has several parts."""
    return repr(row["adapter"]) if "," in row["adapter"] else row["adapter"]

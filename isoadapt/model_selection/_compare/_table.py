"""The table of a comparison: scores, tests and figures of each method in each use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoadapt.model_selection._compare._data import Plan
from isoadapt.model_selection._compare._evidence import (
    BootstrapUse,
    Determination,
    Evidence,
    Mean,
    RankCorrelation,
    Sample,
    SplitUse,
    TwoMeans,
)
from isoadapt.model_selection._compare._measure import Data, Outcome, n_changed
from isoadapt.model_selection._compare._methods import (
    ADAPTER,
    BASELINE,
    HEAD_REFIT,
    NO_ADAPTER,
    Method,
)
from isoadapt.model_selection._compare._paired_tests import Effect, Floats, Units, holm
from isoadapt.model_selection._compare._run import Outcomes
from isoadapt.model_selection._compare._verdict import USES

_UNTESTED = Effect(math.nan, math.nan, math.nan)


def make_rows(
    methods: Sequence[Method], outcomes: Outcomes, data: Data, plan: Plan, seed: int
) -> list[dict[str, Any]]:
    """One row for each use and method."""
    figures = _figures(methods, outcomes)
    rows = []
    for use, tests in _tests(outcomes, data, plan, seed).items():
        own = [_row(use, method, tests) for method in methods]
        for column in ("p", "control_p"):
            adapters = [row for row in own if row["kind"] == ADAPTER]
            adjusted = holm([row[f"{column}_value"] for row in adapters])
            for row, value in zip(adapters, adjusted, strict=True):
                row[f"{column}_holm"] = value
        rows += [row | figures[row["adapter"]] for row in own]
    return rows


def _row(use: str, method: Method, tests: BootstrapUse | SplitUse) -> dict[str, Any]:
    """Score, differences and p-values of a method in a use, before Holm's adjustment."""
    score = tests.interval(method.name)
    difference = _UNTESTED
    if method.kind != BASELINE:
        difference = tests.difference(method.name, NO_ADAPTER)
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
        "difference_low": difference.low,
        "difference_high": difference.high,
        "control": control,
        "control_difference": beyond.estimate,
        "control_p_value": beyond.p_value,
        "control_p_holm": math.nan,
    }


def _hardest(method: Method, tests: BootstrapUse | SplitUse, use: str) -> tuple[str | None, Effect]:
    """Control that is hardest to beat, and the difference from it.

    A refit of the head leaves the vectors as they are, so it is no control for uses of vectors.
    """
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
            n_changed(_predictions(before), _predictions(after)) for before, after in pairs
        )
        figures["n_predictions"] = sum(len(_predictions(outcome)) for outcome in own)
        found[method.name] = figures
    return found


def _predictions(outcome: Outcome) -> NDArray[Any]:
    return np.asarray(outcome.predictions)


# --- the tests of each use -----------------------------------------------------------------------


def _tests(
    outcomes: Outcomes, data: Data, plan: Plan, seed: int
) -> dict[str, BootstrapUse | SplitUse]:
    """Tests of each use for which there are data."""
    judged = _JudgedRows([split.test for split in plan.splits if len(split.test)])
    found: dict[str, BootstrapUse | SplitUse] = {
        data.task: _task(outcomes, data, plan, judged, seed)
    }
    if data.pairs is not None:
        scores = data.pairs[2]
        correlations = {
            name: RankCorrelation(_array(own[-1].cosines), scores) for name, own in outcomes.items()
        }
        found["similarity"] = _bootstrap(correlations, Units.rows(len(scores)), seed)
    if data.search is not None:
        ranks = {name: Mean(_array(own[-1].reciprocal)) for name, own in outcomes.items()}
        found["search"] = _bootstrap(ranks, Units.rows(len(data.search[0])), seed)
    if data.task == "classify":
        precision = {name: Mean(judged.mean(own, "precision")) for name, own in outcomes.items()}
        found["neighbours"] = _bootstrap(precision, judged.units(data.groups), seed)
    if data.foreign is not None:
        ranked = {name: judged.ranked(own) for name, own in outcomes.items()}
        units = judged.units(data.groups, n_foreign=len(data.foreign))
        found["outliers"] = _bootstrap(ranked, units, seed)
    return found


def _task(
    outcomes: Outcomes, data: Data, plan: Plan, judged: _JudgedRows, seed: int
) -> BootstrapUse | SplitUse:
    """Tests of the task: by splits in a cross-validation, else by rows or their groups."""
    splits = [split for split in plan.splits if len(split.test)]
    if plan.resampled:
        ratio = float(np.mean([len(split.test) / len(split.train) for split in splits]))
        scores = {
            name: np.array([outcome.score for outcome in own[: len(splits)]])
            for name, own in outcomes.items()
        }
        return SplitUse(scores, ratio)
    y = data.y[splits[0].test]
    evidence: dict[str, Evidence] = {}
    for name, own in outcomes.items():
        predictions = _array(own[0].predictions)
        if data.task == "classify":
            evidence[name] = Mean((predictions == y).astype(np.float64))
        else:
            evidence[name] = Determination(_columns(y), _columns(predictions))
    return _bootstrap(evidence, judged.units(data.groups), seed)


def _bootstrap(evidence: Mapping[str, Evidence], units: Units, seed: int) -> BootstrapUse:
    return BootstrapUse(dict(evidence), Sample(units, seed))


def _array(values: NDArray[Any] | None) -> NDArray[Any]:
    return np.asarray(values)


def _columns(values: NDArray[Any]) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    return values[:, None] if values.ndim == 1 else values


class _JudgedRows:
    """The rows that are judged on one or several splits."""

    def __init__(self, tests: Sequence[NDArray[np.int64]]) -> None:
        self.tests = tests
        self.rows, self.places = np.unique(np.concatenate(tests), return_inverse=True)

    def mean(self, outcomes: Sequence[Outcome], name: str) -> Floats:
        """Mean over the splits of a figure of each judged row, shape (n_judged,)."""
        values = np.concatenate(
            [_array(getattr(each, name)) for each in outcomes[: len(self.tests)]]
        )
        return np.bincount(self.places, weights=values) / np.bincount(self.places)

    def ranked(self, outcomes: Sequence[Outcome]) -> TwoMeans:
        """Placements of judged and of foreign rows."""
        own = outcomes[: len(self.tests)]
        outside = np.average(
            [_array(each.outside) for each in own],
            axis=0,
            weights=[len(test) for test in self.tests],
        )
        return TwoMeans(self.mean(outcomes, "inside"), outside)

    def units(self, groups: NDArray[Any] | None, n_foreign: int = 0) -> Units:
        """Units of a bootstrap: judged rows or, if they are rows of X, groups; and foreign rows.

        With `X_test`, the groups are those of other rows, and the judged rows are the units.
        """
        of_row, n_units = np.arange(len(self.rows)), len(self.rows)
        if groups is not None and self.rows.max() < len(groups):
            _, of_row = np.unique(groups[self.rows], return_inverse=True)
            n_units = int(of_row.max()) + 1
        strata = (n_units, n_foreign) if n_foreign else (n_units,)
        return Units(np.concatenate([of_row, n_units + np.arange(n_foreign)]), strata)

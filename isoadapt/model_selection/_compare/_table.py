"""The table of a comparison: the tests of all methods in each use, and their figures."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, issparse

from isoadapt._utils.messages import warn
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._measure import Measurements, n_changed
from isoadapt.model_selection._compare._methods import (
    ADAPTER,
    HEAD_REFIT,
    NO_ADAPTER,
    ComparedMethod,
)
from isoadapt.model_selection._compare._paired_tests import (
    FEWEST_UNITS,
    Effect,
    Evidence,
    Floats,
    Tests,
    cluster_t,
    clusters,
    corrected_t,
    determination,
    holm,
    mcnemar,
    mean,
    rests_on_few,
)
from isoadapt.model_selection._compare._plan import Rows, Split
from isoadapt.model_selection._compare._uses import TASKS

_UNTESTED = Effect(math.nan, math.nan, math.nan)


def make_rows(
    methods: Sequence[ComparedMethod], measured: Measurements, data: Data, splits: Sequence[Split]
) -> list[dict[str, Any]]:
    """One row for each use and method."""
    figures = _figures(measured)
    rows = []
    for use, tests in _tests(methods, measured, data, splits).items():
        own = [_row(use, method, tests) for method in methods if method.name in tests.evidence]
        adapters = [row for row in own if row["kind"] == ADAPTER]
        for column in ("p", "control_p"):
            adjusted = holm([row[f"{column}_value"] for row in adapters])
            for row, value in zip(adapters, adjusted, strict=True):
                row[f"{column}_holm"] = value
        rows += [row | figures[row["adapter"]] for row in own]
        if untested := [row["adapter"] for row in adapters if math.isnan(row["p_value"])]:
            warn(
                f"{use}: fewer than {FEWEST_UNITS} independent rows, pairs or queries change, "
                f"which is too few to test: {', '.join(map(repr, untested))}"
            )
    return rows


def _row(use: str, method: ComparedMethod, tests: Tests) -> dict[str, Any]:
    """Score, differences and p-values of a method in a use, before Holm's adjustment."""
    score = tests.interval(method.name)
    reference = next(iter(tests.evidence))  # no adapter or, of an index, the teacher
    difference = _UNTESTED if method.name == reference else tests.difference(method.name, reference)
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
        "metric": tests.metric,
        "n_units": tests.n_units,
        "keeps_predictions": getattr(method.estimator, "_keeps_predictions", False),
        "difference_low": difference.low,
        "difference_high": difference.high,
        "control": control,
        "control_difference": beyond.estimate,
        "control_p_value": beyond.p_value,
        "control_p_holm": math.nan,
    }


def _hardest(method: ComparedMethod, tests: Tests, use: str) -> tuple[str | None, Effect]:
    """Control that is hardest to beat, and the difference from it."""
    # A refit of the head leaves the vectors as they are: it is not a control for uses of vectors.
    controls = [name for name in method.controls if name in tests.evidence]
    controls = [name for name in controls if use in TASKS or name != HEAD_REFIT]
    return max(
        ((name, tests.difference(method.name, name)) for name in controls),
        key=lambda found: (
            found[1].estimate <= 0,
            np.nan_to_num(found[1].p_value, nan=np.inf),
            -found[1].estimate,
        ),
        default=(None, _UNTESTED),
    )


def _figures(measured: Measurements) -> dict[str, dict[str, Any]]:
    """Figures of each method that do not depend on the use, as means over the splits."""
    judged = {name: [m for m in own if m.predictions is not None] for name, own in measured.items()}
    keys = list(dict.fromkeys(key for own in judged.values() for m in own for key in m.figures))
    found: dict[str, dict[str, Any]] = {}
    for name, own in judged.items():
        found[name] = {
            key: float(np.mean([each.figures.get(key, math.nan) for each in own])) for key in keys
        }
        pairs = zip(judged[NO_ADAPTER], own, strict=True)
        found[name] |= {
            "fit_seconds": measured[name][-1].figures["fit_seconds"],
            "changed_predictions": sum(n_changed(a.predictions, b.predictions) for a, b in pairs),
            "n_predictions": sum(len(each.predictions) for each in own),
        }
    return found


def _tests(
    methods: Sequence[ComparedMethod], every: Measurements, data: Data, splits: Sequence[Split]
) -> dict[str, Tests]:
    """Tests of each use for which there are data."""
    judging = [split for split in splits if len(split.test)]
    tests = [split.test for split in judging]
    judged = np.unique(np.concatenate(tests))
    y, labels = data.y[judged], data.clusters[judged]
    rows = clusters(labels)
    measured = {each.name: every[each.name] for each in methods if not each.by_head}
    if len(splits) > 1:
        of_task = _by_splits(measured, judging, rows.shape[0])
    else:
        classifies = data.task == "classify"
        judge, test = (_accuracy, mcnemar) if classifies else (determination, cluster_t)
        made = {name: judge(y, own[0].predictions) for name, own in measured.items()}
        few = partial(rests_on_few, units=rows, of_predictions=classifies)
        of_task = Tests(made, partial(test, units=rows), rows.shape[0], few)
    found = {data.task: of_task._replace(metric=TASKS[data.task])}
    for use in data.uses:
        units = use.units()
        units = csr_array(units) if issparse(units) else clusters(*[labels] * use.of_rows, units)
        made = {}
        for name, own in every.items():
            if values := [each.values[use.name] for each in own if use.name in each.values]:
                value = _over_splits(values, tests) if use.of_rows else values[-1]
                made[name] = Evidence(*use.evidence(value))
        if wrong := {each.influence.shape for each in made.values()} - {units.shape[1:]}:
            raise ValueError(
                f"the use {use.name!r} has influences of shape {wrong.pop()}, but units of "
                f"{units.shape[1]} items: measure, evidence and units must be of the same items"
            )
        test, few = partial(cluster_t, units=units), partial(use._is_untested, units=units)
        found[use.name] = Tests(made, test, units.shape[0], few, use.metric, use.highest)
    return found


def _by_splits(measured: Measurements, splits: Sequence[Split], n_units: int) -> Tests:
    """Tests of the task by the scores of the splits of a cross-validation."""
    ratio = float(np.mean([len(split.test) / len(split.train) for split in splits]))
    scores = {
        name: mean(np.array([each.score for each in own[: len(splits)]]))
        for name, own in measured.items()
    }
    return Tests(scores, partial(corrected_t, ratio=ratio), n_units)


def _accuracy(y: NDArray[Any], predictions: NDArray[Any]) -> Evidence:
    right = (predictions == y).reshape(len(y), -1).all(axis=1)
    return mean(right.astype(np.float64))


def _over_splits(values: Sequence[Floats], tests: Sequence[Rows]) -> Floats:
    """Means over the splits: of each judged row, and of the items after the rows."""
    sizes = [len(test) for test in tests]
    parts = [np.split(each, [n]) for each, n in zip(values, sizes, strict=True)]
    rows, others = zip(*parts, strict=True)
    places = np.unique(np.concatenate(tests), return_inverse=True)[1]
    of_rows = np.bincount(places, np.concatenate(rows)) / np.bincount(places)
    return np.concatenate([of_rows, np.average(others, axis=0, weights=sizes)])

"""The table of a comparison: the tests of all methods in each use, and their figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from isoadapt._utils.copies import copy_hashes
from isoadapt._utils.messages import warn
from isoadapt.model_selection._compare._data import Data
from isoadapt.model_selection._compare._measure import Measurement, Measurements, n_changed
from isoadapt.model_selection._compare._methods import (
    ADAPTER,
    HEAD_REFIT,
    NO_ADAPTER,
    SECOND_PASS,
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
    joined,
    linked,
    mcnemar,
    mean,
    rank_correlation,
    rests_on_few,
    two_means,
)
from isoadapt.model_selection._compare._plan import Plan, Split
from isoadapt.model_selection._compare._uses import USES

_UNTESTED = Effect(math.nan, math.nan, math.nan)


def make_rows(
    methods: Sequence[ComparedMethod], measured: Measurements, data: Data, plan: Plan
) -> list[dict[str, Any]]:
    """One row for each use and method."""
    figures = _figures(measured)
    rows = []
    for use, tests in _tests(measured, data, plan).items():
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
    reference = SECOND_PASS if use == "index" else NO_ADAPTER
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
        "metric": USES[use].metric,
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
    # A refit of the head leaves the vectors as they are: it is no control for uses of vectors.
    controls = [
        name for name in method.controls if not (USES[use].of_vectors and name == HEAD_REFIT)
    ]
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


def _tests(measured: Measurements, data: Data, plan: Plan) -> dict[str, Tests]:
    """Tests of each use for which there are data."""
    splits = [split for split in plan.splits if len(split.test)]
    judged = _JudgedRows(splits)
    y, labels = data.y[judged.rows], data.clusters[judged.rows]
    rows = clusters(labels)
    by_items = partial(_by_items, measured)
    found: dict[str, Tests] = {}
    if len(plan.splits) > 1:
        found[data.task] = _by_splits(measured, splits, rows.shape[0])
    elif data.task == "classify":
        found["classify"] = by_items(lambda own: _accuracy(y, own[0]), rows, mcnemar)
    else:
        found["regress"] = by_items(lambda own: determination(y, own[0].predictions), rows)
    if data.texts is not None and data.scores is not None:
        pairs, numbers = linked(data.texts)
        similar = partial(_similarity, scores=data.scores, numbers=numbers)
        found["similarity"] = by_items(similar, pairs)
    if data.relevant is not None:
        queries = clusters(_of_queries(data.sets, data.relevant))
        found["search"] = by_items(lambda own: mean(own[-1].reciprocal), queries)
        of_teacher = {name: own for name, own in measured.items() if own[-1].indexed is not None}
        if of_teacher:
            found["index"] = _by_items(of_teacher, lambda own: mean(own[-1].indexed), queries)
    if data.task == "classify":
        found["neighbours"] = by_items(lambda own: mean(judged.mean(own, "precision")), rows)
    if "foreign" in data.sets:
        units = clusters(labels, copy_hashes(data.sets["foreign"]))
        few = min(rows.shape[0], units.shape[0] - rows.shape[0]) < FEWEST_UNITS
        tests = by_items(judged.ranked, units)
        found["outliers"] = tests._replace(is_untested=lambda _: few)
    return found


def _by_splits(measured: Measurements, splits: Sequence[Split], n_units: int) -> Tests:
    """Tests of the task by the scores of the splits of a cross-validation."""
    ratio = float(np.mean([len(split.test) / len(split.train) for split in splits]))
    scores = {
        name: mean(np.array([each.score for each in own[: len(splits)]]))
        for name, own in measured.items()
    }
    return Tests(scores, partial(corrected_t, ratio=ratio), n_units)


def _by_items(
    measured: Measurements,
    evidence: Callable[[list[Measurement]], Evidence],
    units: csr_array,
    test: Callable[..., Effect] = cluster_t,
) -> Tests:
    """Tests by independent units of items."""
    made = {name: evidence(own) for name, own in measured.items()}
    is_untested = partial(rests_on_few, units=units, of_predictions=test is mcnemar)
    return Tests(made, partial(test, units=units), units.shape[0], is_untested)


def _accuracy(y: NDArray[Any], found: Measurement) -> Evidence:
    right = (found.predictions == y).reshape(len(y), -1).all(axis=1)
    return mean(right.astype(np.float64))


def _similarity(own: Sequence[Measurement], scores: Floats, numbers: NDArray[np.int64]) -> Evidence:
    """Correlation with the scores, and the influences of the different pairs."""
    found = rank_correlation(own[-1].similarity, scores)
    return found._replace(influence=np.bincount(numbers, found.influence).astype(float))


def _of_queries(
    sets: Mapping[str, NDArray[Any]], relevant: Sequence[set[int]]
) -> NDArray[np.int64]:
    """Clusters (n,): equal queries, and those of the same relevant documents, are in one."""
    documents_of = copy_hashes(sets["documents"])
    found = [hash(frozenset(documents_of[list(own)].tolist())) for own in relevant]
    queries = copy_hashes(sets["queries"])
    return joined(np.arange(len(queries)), queries, np.array(found).view(np.uint64))


class _JudgedRows:
    """The rows that are judged on one or several splits."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self.tests = [split.test for split in splits]
        self.rows, self.places = np.unique(np.concatenate(self.tests), return_inverse=True)

    def mean(self, own: Sequence[Measurement], name: str) -> Floats:
        """Mean over the splits of a figure of each judged row, shape (n_judged,)."""
        values = np.concatenate([getattr(each, name) for each in own[: len(self.tests)]])
        return np.bincount(self.places, weights=values) / np.bincount(self.places)

    def ranked(self, own: Sequence[Measurement]) -> Evidence:
        """AUROC by the placements of judged and of foreign rows."""
        placed = [each.outside for each in own[: len(self.tests)]]
        outside = np.average(placed, axis=0, weights=[len(test) for test in self.tests])
        return two_means(self.mean(own, "inside"), outside)

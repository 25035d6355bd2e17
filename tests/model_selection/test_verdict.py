"""Sentences of verdict agree with the table that they are made from."""

import math
import re

import pytest
from hypothesis import given, settings, strategies as st

from isoadapt.model_selection import Comparison

NAMES = ["Alpha", "Beta, refit", "Gamma", "Delta", "Epsilon"]
share = st.one_of(st.integers(100, 900).map(lambda n: n / 1000), st.floats(0.1, 0.9)).map(
    lambda value: round(value, 7)
)
p_value = st.sampled_from([0.0, 0.0, 0.0, 0.05, 0.051, 0.3, 1.0])


@st.composite
def tables(draw):
    """Rows of one use: a baseline, a control and some adapters, with intervals of one width."""
    use = draw(st.sampled_from(["classify", "regress", "similarity", "neighbours"]))
    base, control = draw(share), draw(share)
    none = {"control": None, "p_holm": math.nan, "control_p_holm": math.nan, "metric": ""}
    none |= {"use": use, "control_difference": math.nan, "n_predictions": 50}
    none |= {"changed_predictions": 0}
    rows = [
        none | {"adapter": "no adapter", "kind": "baseline", "score": base},
        none | {"adapter": "the control", "kind": "control", "score": control},
    ]
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        row = none | {"adapter": name, "kind": "adapter", "score": draw(share)}
        row |= {"p_holm": draw(p_value), "changed_predictions": draw(st.sampled_from([0, 1, 50]))}
        row |= {"fit_seconds": draw(st.sampled_from([0.0, 0.1, 0.15, 9.0]))}
        row["keeps_predictions"] = not row["changed_predictions"] and draw(st.booleans())
        if draw(st.booleans()):
            row |= {"control": "the control", "control_difference": row["score"] - control}
            row |= {"control_p_holm": draw(p_value)}
        rows.append(row)
    margin = draw(st.sampled_from([0.0, 0.05, 0.5]))
    return [r | {"difference": r["score"] - base, "ci_low": r["score"] - margin} for r in rows]


def is_better(row):
    beyond = row["control"] is None or (
        row["control_p_holm"] <= 0.05 and row["control_difference"] > 0
    )
    return row["p_holm"] <= 0.05 and row["difference"] > 0 and beyond


@settings(max_examples=200, derandomize=True)
@given(tables())
def test_sentence_agrees_with_the_table(rows):
    comparison = Comparison(rows, "", {name: name for name in NAMES}, [])
    said, base = comparison.verdict(), rows[0]["score"]
    adapters = [row for row in rows if row["kind"] == "adapter"]
    better = sorted((row for row in adapters if is_better(row)), key=lambda row: -row["score"])
    worse = [row for row in adapters if row["p_holm"] <= 0.05 and row["difference"] < 0]
    shown = [row for row in adapters if row["p_holm"] <= 0.05 and row["difference"] > 0]
    assert sorted(comparison.credited()) == sorted(row["adapter"] for row in better)
    first = said.split("; ")[0].partition(", ")[2]
    if better:
        equal = [row for row in better if row["score"] >= better[0]["ci_low"]]
        equal = [row for row in equal if row["keeps_predictions"]] or equal
        cheapest = min(row["fit_seconds"] for row in equal)
        best = next(row for row in equal if row["fit_seconds"] <= 2 * cheapest)
        others = [row["adapter"] for row in better if row is not best]
        assert comparison.credited() == [best["adapter"], *others]
        assert comparison.best_adapter() == best["adapter"]
        assert (" reaches " in said) == (best is not better[0])
        assert first.startswith((best["adapter"], repr(best["adapter"])))
        before, after = map(float, re.search(r"from (\d\.\d+) to (\d\.\d+)", first).groups())
        assert [before, after] == pytest.approx([base, best["score"]], abs=6e-4)
        assert before < after
        assert ("beyond its control" in first) == (best["control"] is not None)
        if best["use"] in ("similarity", "neighbours"):
            changed = best["changed_predictions"]
            kept = best["keeps_predictions"]
            assert ("changes no prediction" if kept else f"{changed} of 50 predictions") in first
    else:
        assert comparison.best_adapter() is None
        alone = "the control 'the control' alone raises " if shown else "none of the adapters "
        assert first.startswith(alone)
    assert "untested" not in said
    untested = Comparison([row | {"p_holm": math.nan} for row in rows], "", {}, []).verdict()
    assert f"beyond noise ({len(adapters)} untested, because" in untested
    assert ("not shown to gain" in said) == (bool(better) and len(shown) > len(better))
    assert (" was chosen among " in said) == (bool(better) and len(adapters) > 1)
    assert ("lower it" in said or "lowers it" in said) == bool(worse)
    if worse:
        lowest = float(re.search(r"lowers? it.* to (\d\.\d+)\.($| )", said)[1])
        assert lowest == pytest.approx(min(row["score"] for row in worse), abs=6e-4)

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
p_value = st.one_of(st.sampled_from([0.0, 0.05, 0.051, 1.0]), st.floats(0, 1))


@st.composite
def tables(draw):
    """Rows of one use: a baseline, a control and some adapters."""
    use = draw(st.sampled_from(["classify", "regress", "similarity", "neighbours"]))
    base, control = draw(share), draw(share)
    common = {"use": use, "metric": "", "n_predictions": 50, "changed_predictions": 0}
    none = {"p_holm": math.nan, "control": None, "control_p_holm": math.nan}
    none |= {"control_difference": math.nan, "p_value": math.nan, "control_p_value": math.nan}
    rows = [
        common | none | {"adapter": "no adapter", "kind": "baseline", "score": base},
        common | none | {"adapter": "the control", "kind": "control", "score": control},
    ]
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1)):
        score = draw(share)
        row = common | none | {"adapter": name, "kind": "adapter", "score": score}
        row |= {"p_holm": draw(p_value), "changed_predictions": draw(st.sampled_from([0, 1, 50]))}
        if draw(st.booleans()):
            row |= {"control": "the control", "control_difference": score - control}
            row |= {"control_p_holm": draw(p_value)}
        rows.append(row)
    return [row | {"difference": row["score"] - base} for row in rows]


def is_better(row):
    beyond = row["control"] is None or (
        row["control_p_holm"] <= 0.05 and row["control_difference"] > 0
    )
    return row["p_holm"] <= 0.05 and row["difference"] > 0 and beyond


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(tables())
def test_sentence_agrees_with_the_table(rows):
    comparison = Comparison(rows, "", {name: name for name in NAMES}, [])
    said = comparison.verdict()
    assert said.endswith(".")
    assert said.count("\n") == 0
    adapters = [row for row in rows if row["kind"] == "adapter"]
    better = sorted((row for row in adapters if is_better(row)), key=lambda row: -row["score"])
    worse = [row for row in adapters if row["p_holm"] <= 0.05 and row["difference"] < 0]
    explained = [
        row
        for row in adapters
        if row["p_holm"] <= 0.05 and row["difference"] > 0 and not is_better(row)
    ]
    assert comparison.best_adapter() == (better[0]["adapter"] if better else None)
    check_gain(said, better, rows[0], explained)
    caution = f" is the best of {len(adapters)} adapters on these rows: expect a smaller gain"
    assert (caution in said) == (bool(better) and len(adapters) > 1)
    assert ("lower it" in said or "lowers it" in said) == bool(worse)
    if worse:
        lowest = min(row["score"] for row in worse)
        found = re.search(r"lowers? it.* to (\d\.\d+)\.($| )", said)
        assert float(found[1]) == pytest.approx(lowest, abs=6e-4)
        assert float(found[1]) < rows[0]["score"] + 1e-9


def check_gain(said, better, base, explained):
    first = said.split("; ")[0].partition(", ")[2]
    if not better:
        assert first.startswith("no adapter is shown to")
        assert ("is not credited" in said) == bool(explained)
        return
    best = better[0]
    assert first.startswith((best["adapter"], repr(best["adapter"])))
    assert "raises the" in first
    before, after = re.search(r"from (\d\.\d+) to (\d\.\d+)", first).groups()
    assert float(before) == pytest.approx(base["score"], abs=6e-4)
    assert float(after) == pytest.approx(best["score"], abs=6e-4)
    assert float(before) < float(after)
    assert ("beyond its control" in first) == (best["control"] is not None)
    if best["use"] in ("similarity", "neighbours"):
        changed = best["changed_predictions"]
        expected = f"{changed} of 50 predictions" if changed else "changes no prediction"
        assert expected in first
    harmless = [row for row in better if best["use"] in ("similarity", "neighbours")]
    harmless = [row for row in harmless if not row["changed_predictions"]]
    assert said.count("changes no prediction") == bool(harmless)
    second = bool(harmless) and harmless[0] is not best
    if second:
        found = re.search(r"raises it to (\d\.\d+) and changes no prediction", said)
        assert float(found[1]) == pytest.approx(harmless[0]["score"], abs=6e-4)
    assert ("raise it too" in said or "raises it too" in said) == (len(better) > 1 + second)
    assert ("not shown to exceed" in said) == bool(explained)


def test_a_name_of_several_parts_is_quoted():
    row = {
        "use": "classify",
        "adapter": "Beta, refit",
        "kind": "adapter",
        "score": 0.8,
        "difference": 0.1,
        "p_holm": 0.01,
        "control": None,
    }
    base = row | {"adapter": "no adapter", "kind": "baseline", "score": 0.7}
    said = Comparison([base, row], "", {}, []).verdict()
    assert said == "On classification, 'Beta, refit' raises the accuracy from 0.700 to 0.800."

"""Checks and directions on made-up figures."""

import math
from dataclasses import replace

import pytest

from benchmarks.quality._adapter_rows import BASE, NO_PENALTY, NO_PENALTY_RAW, ROWS, SELECTED
from benchmarks.quality._claims import (
    CLAIMS,
    RowFigures,
    check_lines,
    falls,
    format_figure,
    rises,
    stays_below,
)
from benchmarks.quality._table_cells import Figures

FIGURES = Figures(0.75, 0.5, 0.6, 0.001, 0.001, 0.9, 0.95, 0.3, 12.0, 1.0, 0)


def judged(name, figures, **changed):
    """One row: a fit for each value of the changed column, one without seed if there is one."""
    column, values = next(iter(changed.items()), ("accuracy", [figures.accuracy]))
    cells = [replace(figures, **{column: value}) for value in values]
    return RowFigures(name, dict(enumerate(cells)) if len(cells) > 1 else {None: cells[0]})


def test_directions_compare_means_and_count_seeds():
    table = {
        "adapter": judged("adapter", FIGURES, ev1=[0.5, 0.25, 0.75]),
        "control": judged("control", FIGURES, ev1=[0.75, 0.5, 0.5]),
        "fixed": judged("fixed", FIGURES, ev1=[0.625]),
    }
    assert falls("adapter", "control", "ev1")(table) == "yes, 0.583 → 0.500, 2/3"
    assert rises("adapter", "control", "ev1")(table) == "**no**, 0.583 → 0.500, 1/3"
    assert falls("adapter", "fixed", "ev1")(table) == "yes, 0.625 → 0.500, 2/3"
    assert falls("fixed", "fixed", "ev1")(table) == "**no**, 0.625 → 0.625"
    assert stays_below("adapter", "ev1", 0.75)(table) == "**no**, highest 0.750"
    assert stays_below("adapter", "ev1", 0.76)(table) == "yes, highest 0.750"
    assert falls("absent", "control", "ev1")(table) == "not measured"
    assert stays_below("absent", "ev1", 1.0)(table) == "not measured"


def test_undefined_figures_bear_out_nothing():
    table = {
        "adapter": judged("adapter", FIGURES, two_nn=[math.nan]),
        "control": judged("control", FIGURES, two_nn=[3.0]),
    }
    assert rises("adapter", "control", "two_nn")(table) == "**no**, 3.0 → –"


def test_claims_rest_on_rows_that_exist():
    table = {row.name: judged(row.name, FIGURES) for row in ROWS}
    assert "not measured" not in [verdict(table) for _, verdict in CLAIMS]
    for missing in (NO_PENALTY, NO_PENALTY_RAW, SELECTED):
        rest = {name: row for name, row in table.items() if name != missing}
        assert "not measured" in [verdict(rest) for _, verdict in CLAIMS]


def test_checks_say_which_rows_hold_them():
    white = replace(FIGURES, corrected=0.7)
    table = {row.name: judged(row.name, FIGURES if "Layer" in row.name else white) for row in ROWS}
    table["IsoBN, head refit"] = judged("IsoBN, head refit", white, accuracy=[0.5])
    low, high, accuracy, changed = check_lines(table, error=0.01)
    assert "IsotropyLayer, minibatch **no** (lowest 0.001). Of the others: all but Isotropy" in low
    assert "IsotropyLayer, exact **no** (0.001 in 1.00 s); LogitPreservingWhitening yes" in high
    assert "(at least 0.7400): IsotropyLayer, minibatch yes (0.7500; 1 of 1 fits)" in accuracy
    assert accuracy.endswith("Of the others: all but IsoBN, head refit")
    assert changed.endswith("LogitPreservingWhitening yes (0 changed). Of the others: all")
    few = {name: table[name] for name in (BASE, "IsotropyLayer, exact")}
    assert "LogitPreservingWhitening not measured" in check_lines(few, error=0.01)[-1]


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (0.5, "ev1", "0.500"),
        (0.00034, "isoscore", "0.0003"),
        (-0.00001, "mean_cosine", "0.0000"),
        (28.345, "two_nn", "28.3"),
        (0.123, "seconds", "0.12"),
        (math.nan, "two_nn", "–"),
    ],
)
def test_figures_are_shown_with_fitting_decimals(value, column, text):
    assert format_figure(value, column) == text

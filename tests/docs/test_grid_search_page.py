"""The tables of the guide on grid searches are those of benchmarks/RESULTS.md."""

import re
from pathlib import Path

import pytest

from docs._ext import results

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "grid_search.rst"


def page_rows():
    """Cells of the page's rows by their first cell."""
    rows = re.findall(r"\* - (.+)\n((?:     - .+\n)+)", PAGE.read_text("utf-8"))
    return {name: re.findall(r"- (.+)", cells) for name, cells in rows}


def both_tasks(kind, name):
    """Accuracy and IsoScore, with three digits, on CoLA and then on MRPC."""
    row = results.table(f"{kind} |")[name]
    columns = [
        f"{task}, {figure}" for task in ("cola", "mrpc") for figure in ("accuracy", "IsoScore")
    ]
    return [f"{results.number(row[column]):.3f}" for column in columns]


@pytest.mark.parametrize(
    ("row", "candidate"),
    [
        ("``lam=0``, the control", "lam=0, zeta=0.2"),
        *[(f"``{name}``", name) for name in ("lam=0.1, zeta=0.2", "lam=10, zeta=0.2")],
        ("``lam=10, zeta=0.8``", "lam=10, zeta=0.8"),
    ],
)
def test_candidates(row, candidate):
    assert page_rows()[row] == both_tasks("candidates", candidate)


@pytest.mark.parametrize("alpha", ["0.1", "0.5", "0.9"])
def test_exact_solver(alpha):
    assert page_rows()[alpha] == both_tasks("exact", f"alpha={alpha}")


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ('``refit="accuracy"``', 'refit="accuracy"'),
        ("one standard error", "one standard error"),
        ("``BestAboveFloor``, 0.3", "BestAboveFloor, 0.3"),
    ],
)
def test_rules(row, rule):
    assert page_rows()[row] == list(results.table("rules, cola |")[rule].values())[1:]


def test_what_the_page_says_of_the_chosen_candidates():
    chosen = {
        task: {
            rule: re.findall(r"([\d.]+)/([\d.]+) × (\d)", cells["chosen lam/zeta"])
            for rule, cells in results.table(f"rules, {task} |").items()
        }
        for task in ("cola", "mrpc")
    }
    by_accuracy = [item for task in chosen.values() for item in task['refit="accuracy"']]
    assert sum(int(times) for lam, _, times in by_accuracy if lam == "0") == 5
    assert sum(int(times) for _, _, times in by_accuracy) == 8
    penalised = {
        task: [item for rule, items in rules.items() if "refit" not in rule for item in items]
        for task, rules in chosen.items()
    }
    assert {zeta for _, zeta, _ in penalised["cola"]} == {"0.2", "0.8"}
    assert {zeta for _, zeta, _ in penalised["mrpc"]} == {"0.8"}
    assert {lam for items in penalised.values() for lam, _, _ in items} == {"0.1", "1", "10"}
    text = " ".join(PAGE.read_text("utf-8").split())
    assert "in 5 of 8 searches" in text
    assert "on CoLA with either ζ, on MRPC always with ``zeta=0.8``" in text
    assert "The λ that they chose was 0.1, 1 or 10" in text

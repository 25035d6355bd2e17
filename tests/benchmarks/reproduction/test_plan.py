"""The plan: which cells, in which order, by which recipe, λ and ζ; PLAN.md says the same."""

import json

import pytest

from benchmarks.reproduction.__main__ import RECORDS
from benchmarks.reproduction._claims import read_claims
from benchmarks.reproduction._plan import (
    CANDIDATES,
    CHOSEN,
    RECIPES,
    TRIES,
    candidate_cell,
    plan,
    plan_table,
    try_name,
)
from benchmarks.reproduction._records import record_store
from benchmarks.reproduction._training import Recipe

CELLS = {cell.key: cell for cell in plan()}
RECORDED = record_store(RECORDS).cells


def test_plan_md_has_the_cells_and_the_claims():
    text = (RECORDS.parents[1] / "PLAN.md").read_text("utf-8")
    assert plan_table() in text
    claims = [claim for claim in read_claims() if claim.family != "gains"]
    assert all(f"\n- {claim.claim} ({claim.where})\n" in text for claim in claims)


def test_cells_are_all_different_and_records_have_their_recipes():
    assert len(CELLS) == len(plan())
    json.dumps([dict(cell.settings) for cell in CELLS.values()], allow_nan=False)
    left = {key[2] for key in RECORDED if key not in CELLS}
    assert left == {"sst2_sentence", "tiny T5"}
    for key in CELLS.keys() & RECORDED.keys():
        mine, stored = CELLS[key].settings, RECORDED[key]["settings"]
        mine, stored = mine.get("base", mine), stored.get("base", stored)
        assert stored.get("lam", 1.0) == mine.get("lam", 1.0)
        if "recipe" in mine:
            assert mine["recipe"].items() <= stored["recipe"].items()


def test_every_claim_names_conditions_of_the_plan():
    known = {(cell.task, cell.name) for cell in CELLS.values()}
    for claim in read_claims():
        assert {(claim.task, name) for name in (claim.before, *claim.methods)} <= known


@pytest.mark.parametrize("task", RECIPES)
def test_recipes_are_the_best_candidates_unless_their_bases_have_not_learned(task):
    options = [Recipe(*each, RECIPES[task].batch_size) for each in CANDIDATES]
    metrics = [metric(candidate_cell(task, option).key) for option in options]
    best = options[metrics.index(max(metrics))]
    replaced = {"cola": Recipe(5, 1e-4), "rte": Recipe(5, 5e-5, 16)}  # see PLAN.md, "Amendment"
    assert best == replaced.get(task, RECIPES[task])


@pytest.mark.parametrize(("task", "sign"), CHOSEN)
def test_lambda_and_zeta_are_the_best_of_the_tries(task, sign):
    metrics = [metric(("try", try_name(*option), task, 0)) for option in TRIES[sign]]
    assert CHOSEN[task, sign] == TRIES[sign][metrics.index(max(metrics))]


def metric(key):
    return RECORDED[key]["figures"]["metric"]

"""The plan: which cells, in which order, by which recipe, λ and ζ; PLAN.md says the same."""

import pytest

from benchmarks.reproduction import __main__ as reproduce, _choice, istar_sign
from benchmarks.reproduction._cells import (
    BASE_RUN,
    CHOICE,
    FRESH,
    POINTS,
    POST_HOC,
    WHOLE,
    read_records,
)
from benchmarks.reproduction._choice import PUBLISHED, candidate_cell, candidates, chosen, recipe_of
from benchmarks.reproduction._plan import (
    known_cells,
    next_cell,
    order_table,
    plan,
    replaced_records,
)
from benchmarks.reproduction._report import suite_file
from benchmarks.reproduction._training import Job

SLOTS = plan(WHOLE)
RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # lr=1e-4 with 5 epochs is chosen


def tried(task, metrics, suite=WHOLE):
    """Records of the runs that a recipe is chosen by; None stands for one that failed."""
    return [
        {
            **candidate_cell(task, recipe, suite).fields(),
            **({"error": "ValueError"} if metric is None else {"figures": {"metric": metric}}),
        }
        for recipe, metric in zip(candidates(task), metrics, strict=True)
    ]


def tried_signs(task, best=0):
    """Records of the tries of both signs; of each the one with this number is the best."""
    return [
        {
            **istar_sign.try_cell(task, *option, WHOLE).fields(),
            "figures": {"metric": float(number == best)},
        }
        for sign in istar_sign.SIGNS
        for number, option in enumerate(istar_sign.tries(sign))
    ]


ALL_TRIED = [
    *(record for task in ("cola", "mrpc", "rte") for record in tried(task, [0.5] * 6)),
    *(record for task in istar_sign.ASKED for record in tried_signs(task)),
]


def test_plan_md_has_the_cells_their_order_and_the_claims():
    text = reproduce.PLAN.read_text("utf-8")
    assert order_table(SLOTS) in text
    claims = [
        line for each in reproduce.PAPERS.values() for paper in each for line in paper.claims()
    ]
    assert all(f"\n- {line.claim} ({line.where})\n" in text for line in claims)


def test_cells_are_all_different_and_every_stored_record_belongs_to_one():
    keys = [cell.key for cell in known_cells(SLOTS, ALL_TRIED)]
    assert len(keys) == len(set(keys)) == len(SLOTS)
    records = read_records(suite_file(reproduce.RESULTS, WHOLE))
    known = {cell.key for cell in known_cells(SLOTS, records)}
    known |= {record["key"] for record in replaced_records(SLOTS, records)}
    left = [record for record in records if record["key"] not in known]
    heads = {record["key"] for record in left if "head refit" in record["name"]}
    assert len(heads) == 3 * (8 + 5 + 3)  # bases of CoLA (3 of its first recipe), MRPC and RTE
    others = [record for record in left if record["key"] not in heads]
    assert {(record["kind"], record["task"]) for record in others} == {(CHOICE, "sst2_sentence")}


# --- the recipe ------------------------------------------------------------------------------


def test_the_best_candidate_is_chosen_once_all_have_run(monkeypatch):
    found = tried("cola", [0.1, 0.6, 0.3, 0.4, 0.6, 0.6])  # ties go to the cheaper
    recipe = chosen(found, "cola", WHOLE)
    assert (recipe.epochs, recipe.lr) == (3, 5e-5)
    assert chosen(tried("cola", [0.1, 0.2, 0.3, 0.4, 0.6, None]), "cola", WHOLE) is None
    assert chosen(found[:-1], "cola", WHOLE) is None
    monkeypatch.setattr(_choice, "HELD_OUT", 0.3)  # made under other settings
    assert chosen(found, "cola", WHOLE) is None


@pytest.mark.parametrize(
    ("values", "is_replaced"),
    [
        ([0.2, 0.2], False),  # two bases decide nothing
        ([0.0, 0.0, 0.2967 * 3 + 1e-9], False),  # the mean decides
        ([0.2, 0.2, 0.2, 0.9, 0.9], True),  # the first three decide, whatever comes later
    ],
)
def test_the_recipe_is_replaced_if_its_first_bases_have_not_learned(values, is_replaced):
    records = tried("cola", RISING)
    first = chosen(records, "cola", WHOLE)
    assert first.lr == 1e-4
    failed = [
        {**Job("cola", seed, first, WHOLE).cell().fields(), "figures": {"matthews": value}}
        for seed, value in enumerate(values)
    ]
    recipe = recipe_of(records + failed, "cola", WHOLE)
    assert recipe == (PUBLISHED["cola"].recipe if is_replaced else first)
    assert replaced_records(SLOTS, records + failed) == (failed if is_replaced else [])


def test_the_next_cell_is_the_first_that_is_missing_and_can_run():
    done = [
        {**cell.fields(), "figures": {}} for cell in known_cells(SLOTS, []) if cell.kind == POINTS
    ]
    first = next_cell(SLOTS, done, set())
    assert (first.kind, first.task) == (CHOICE, "cola")
    failed = next_cell(SLOTS, done + tried("cola", [0.5] * 5 + [None]), set())
    assert (failed.kind, failed.name) == (CHOICE, "lr=0.0001, 5 epochs")
    done += tried("cola", [0.5] * 6)
    base = next_cell(SLOTS, done, set())
    assert (base.kind, base.task, base.seed) == (BASE_RUN, "cola", 0)
    tries = {cell.key for cell in known_cells(SLOTS, done) if cell.kind == BASE_RUN}
    after = next_cell(SLOTS, done, tries)
    assert after.kind != POST_HOC  # its base failed
    again = next_cell(SLOTS, [*done, {**base.fields(), "figures": {}}], tries)
    assert (again.kind, again.needs) == (POST_HOC, base.key)


# --- the sign of lambda ----------------------------------------------------------------------


def test_lambda_and_zeta_are_the_best_of_each_sign_on_the_held_out_rows():
    records = tried_signs("cola", best=3)
    assert istar_sign.best_try(records, "cola", -1, WHOLE) == (-0.1, 0.8)
    assert istar_sign.best_try(records, "cola", 1, WHOLE) == (0.1, 0.8)
    assert istar_sign.best_try(records[1:], "cola", -1, WHOLE) is None  # waits for all six
    assert istar_sign.best_try(records, "mrpc", -1, WHOLE) is None
    equal = [{**record, "figures": {"metric": 0.5}} for record in records]
    assert istar_sign.best_try(equal, "cola", 1, WHOLE) == (0.01, 0.2)
    assert "| **1.0000** |" in istar_sign.tries_table(records, WHOLE)
    assert len(istar_sign.ZERO_SEEDS) == len(istar_sign.tries(1)) == len(istar_sign.tries(-1))


def test_fresh_runs_take_the_chosen_values_and_differ_from_their_base_by_nothing_else():
    runs = {}
    for cell in known_cells(SLOTS, ALL_TRIED):
        if cell.kind == FRESH:
            series, role = cell.name.split(": ")
            runs.setdefault((series, cell.task, cell.seed), {})[role] = cell.settings
    for (series, task, _), roles in runs.items():
        rest = [
            {name: settings[name] for name in settings.keys() - {"penalty", "options", "lam"}}
            for settings in roles.values()
        ]
        assert all(settings == rest[0] for settings in rest)
        if series == "released":
            assert roles["I-STAR"]["options"]["zeta"] == {"cola": 0.8, "mrpc": 0.6}[task]
            assert rest[0]["released"]["padding"]
        else:
            assert (roles["best lam<0"]["lam"], roles["best lam>0"]["lam"]) == (-0.01, 0.01)

"""The plan: which cells, in which order, by which recipe; PLAN.md says the same."""

from collections import Counter

import pytest

from benchmarks.reproduction import (
    __main__ as reproduce,
    _choice,
    _output_embeddings,
    _signs,
    _training,
    istar_scores,
)
from benchmarks.reproduction._bases import PUBLISHED, learned
from benchmarks.reproduction._cells import (
    BASE_RUN,
    CHOICE,
    FRESH,
    PENALTY,
    POINTS,
    POST_HOC,
    QUICK,
    TRY,
    WHOLE,
)
from benchmarks.reproduction._choice import candidate_cell, candidates, chosen, recipe_of
from benchmarks.reproduction._plan import (
    known_cells,
    next_cell,
    order_table,
    plan,
    planned_records,
    replaced_records,
)
from benchmarks.reproduction._records import read_records
from benchmarks.reproduction._report import suite_file
from benchmarks.reproduction._training import Job

SLOTS = plan(WHOLE)
TASKS = ("cola", "mrpc", "rte")


def tried(task, metrics, suite=WHOLE):
    """Records of the runs that a recipe is chosen by; None stands for one that failed."""
    return [
        {
            **candidate_cell(task, recipe, suite).fields(),
            **({"error": "ValueError"} if metric is None else {"figures": {"metric": metric}}),
        }
        for recipe, metric in zip(candidates(task), metrics, strict=True)
    ]


def chosen_signs(task, best=0):
    """Records of the tries of both signs; of each the one with this number is the best."""
    return [
        {
            **_signs.try_cell(task, *option, WHOLE).fields(),
            "figures": {"metric": float(number == best)},
        }
        for sign in _signs.SIGNS
        for number, option in enumerate(_signs.tries(sign))
    ]


ALL_TRIED = [record for task in TASKS for record in tried(task, [0.5] * 6)] + [
    record for task in _signs.TASKS for record in chosen_signs(task)
]


def counts(slots):
    return Counter((slot.block, slot.task, slot.kind) for slot in slots)


def test_the_plan_has_the_cells_that_were_agreed_on():
    five, rows = 5, 12
    expected = {(0, "gaussian", POINTS): 5, (0, "tiny T5", POINTS): 3 * 5}
    for block, task, seeds in ((1, "cola", 5), (1, "mrpc", 5), (2, "rte", 3)):
        expected |= {
            (block, task, CHOICE): 6,
            (block, task, BASE_RUN): seeds,
            (block, task, POST_HOC): rows * seeds,
        }
    for task in ("cola", "mrpc"):
        expected |= {
            (1, task, PENALTY): five * 5,
            (3, task, TRY): 12,
            (3, task, CHOICE): 5,
            (3, task, FRESH): 3 * 5 + 2 * 3 + 3 * 3,
        }
    assert counts(SLOTS) == expected


def test_plan_md_has_the_cells_and_their_order():
    assert order_table(SLOTS) in reproduce.PLAN.read_text("utf-8")


def test_seed_by_seed_base_then_adapters_then_penalties_tasks_alternating():
    first = [slot for slot in SLOTS if slot.block == 1]
    runs = [(task, seed) for seed in range(5) for task in ("cola", "mrpc")]
    for task, seed in runs:
        own = [s.kind for s in first if (s.task, s.seed) == (task, seed) and s.kind != CHOICE]
        assert own == [BASE_RUN] + [POST_HOC] * 12 + [PENALTY] * 5
    groups = [(s.task, s.seed) for s in first if s.kind == PENALTY]
    assert list(dict.fromkeys(groups)) == runs
    assert groups == sorted(groups, key=runs.index)  # nothing of another base in between


def test_blocks_come_one_after_the_other():
    blocks = [slot.block for slot in SLOTS]
    assert blocks == sorted(blocks)


def test_the_choice_and_three_bases_with_their_adapters_come_first_and_together():
    for task in TASKS:
        places = [place for place, slot in enumerate(SLOTS) if slot.task == task][:45]
        first = [SLOTS[place] for place in places]
        kinds = [slot.kind for slot in first]
        assert kinds == [CHOICE] * 6 + [BASE_RUN] * 3 + [POST_HOC] * 36
        assert [slot.seed for slot in first[6:9]] == [0, 1, 2]
        assert [slot.seed for slot in first[9:]] == [0] * 12 + [1] * 12 + [2] * 12
        assert places == list(range(places[0], places[0] + 45))


def test_cells_are_all_different():
    keys = [cell.key for cell in known_cells(SLOTS, ALL_TRIED, WHOLE)]
    assert len(keys) == len(set(keys)) == len(SLOTS)


def test_quick_is_one_seed_of_the_same():
    slots = plan(QUICK)
    assert {slot.seed for slot in slots} == {0}
    assert {slot.task for slot in slots} == {"cola", "gaussian", "tiny T5"}
    assert counts(slots)[1, "cola", PENALTY] == 5
    assert len(known_cells(slots, [], QUICK)) == len(slots)


# --- the recipe ------------------------------------------------------------------------------


def test_candidates_are_the_grid_the_cheaper_first():
    found = [(recipe.epochs, recipe.lr) for recipe in candidates("cola")]
    assert found == [(epochs, lr) for epochs in (3, 5) for lr in (3e-5, 5e-5, 1e-4)]
    assert {recipe.batch_size for recipe in candidates("cola")} == {32}
    assert {recipe.batch_size for recipe in candidates("rte")} == {16}


@pytest.mark.parametrize(
    ("metrics", "epochs", "lr"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.6, 0.5], 5, 5e-5),
        ([0.1, 0.6, 0.3, 0.4, 0.6, 0.6], 3, 5e-5),  # ties go to the cheaper
    ],
)
def test_the_best_candidate_is_chosen_from_the_records(metrics, epochs, lr):
    recipe = chosen(tried("cola", metrics), "cola", WHOLE)
    assert (recipe.epochs, recipe.lr) == (epochs, lr)


def test_a_choice_waits_for_all_candidates():
    for metrics in ([0.1, 0.2, 0.3, 0.4, 0.6, None],):
        assert chosen(tried("cola", metrics), "cola", WHOLE) is None
    assert chosen(tried("cola", [0.5] * 6)[:-1], "cola", WHOLE) is None
    assert chosen(tried("mrpc", [0.5] * 6), "cola", WHOLE) is None


def test_a_choice_made_under_other_settings_does_not_count(monkeypatch):
    found = tried("cola", [0.5] * 6)
    monkeypatch.setattr(_choice, "HELD_OUT", 0.3)
    assert chosen(found, "cola", WHOLE) is None


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]  # lr=1e-4 with 5 epochs is chosen


def bases(task, recipe, values, suite=WHOLE):
    """Records of the bases of the first seeds."""
    cells = [Job(task, seed, recipe, suite).cell() for seed in range(len(values))]
    return [
        {**cell.fields(), "figures": {PUBLISHED[task].score: value}}
        for cell, value in zip(cells, values, strict=True)
    ]


@pytest.mark.parametrize(
    ("values", "is_replaced"),
    [
        ([0.2, 0.2], False),  # two bases decide nothing
        ([0.2, 0.2, 0.2], True),
        ([0.0, 0.0, 0.2967 * 3 + 1e-9], False),  # the mean decides
        ([0.2, 0.2, 0.2, 0.9, 0.9], True),  # the first three decide, whatever comes later
    ],
)
def test_the_recipe_is_replaced_if_its_first_bases_have_not_learned(values, is_replaced):
    records = tried("cola", RISING)
    first = chosen(records, "cola", WHOLE)
    assert first.lr == 1e-4
    recipe = recipe_of(records + bases("cola", first, values), "cola", WHOLE)
    assert recipe == (PUBLISHED["cola"].recipe if is_replaced else first)


def test_a_replaced_recipe_begins_again_with_its_bases():
    records = tried("cola", RISING)
    failed = bases("cola", chosen(records, "cola", WHOLE), [0.2, 0.2, 0.2, 0.2])
    failed[-1] = {**failed[-1], "error": "ValueError: out of luck"}
    del failed[-1]["figures"]
    points = [cell for cell in known_cells(SLOTS, [], WHOLE) if cell.kind == POINTS]
    records += failed + [{**cell.fields(), "figures": {}} for cell in points]
    following = next_cell(SLOTS, records, WHOLE, set())
    assert (following.kind, following.task, following.seed) == (BASE_RUN, "cola", 0)
    assert following.settings["recipe"]["lr"] == 5e-5
    planned = {record["key"] for record in planned_records(SLOTS, records, WHOLE)}
    assert not {record["key"] for record in failed} & planned
    assert replaced_records(SLOTS, records, WHOLE) == failed


def test_bases_that_fail_under_the_second_recipe_too_stay_unjudged():
    records = tried("cola", RISING)
    first, second = chosen(records, "cola", WHOLE), PUBLISHED["cola"].recipe
    records += bases("cola", first, [0.2, 0.2, 0.2]) + bases("cola", second, [0.1, 0.1, 0.1])
    assert recipe_of(records, "cola", WHOLE) == second
    assert learned(planned_records(SLOTS, records, WHOLE), "cola").passed is False


def test_an_encoder_without_a_published_figure_keeps_its_recipe():
    suite = WHOLE._replace(model="bert-base-cased")
    records = tried("cola", RISING, suite)
    first = chosen(records, "cola", suite)
    assert recipe_of(records + bases("cola", first, [0.1] * 3, suite), "cola", suite) == first


def test_cells_of_a_task_wait_for_its_choice():
    first = tried("cola", [0.1, 0.2, 0.3, 0.4, 0.6, 0.5])
    known = known_cells(SLOTS, first, WHOLE)
    waiting = {cell.task for cell in known if cell.kind == PENALTY}
    assert waiting == {"cola"}
    recipes = {str(cell.settings["recipe"]) for cell in known if cell.kind in (BASE_RUN, PENALTY)}
    assert len(recipes) == 1
    assert "'epochs': 5, 'lr': 5e-05" in recipes.pop()
    records = planned_records(SLOTS, first, WHOLE)
    assert len(records) == len(SLOTS)
    assert sum("figures" in record for record in records) == 6
    unknown = {(record["task"], record["kind"]) for record in records if record["key"] is None}
    assert unknown == {
        *((task, kind) for task in ("mrpc", "rte") for kind in (BASE_RUN, POST_HOC)),
        ("mrpc", PENALTY),
        ("cola", FRESH),
        ("mrpc", FRESH),
    }


def test_the_next_cell_is_the_first_of_the_plan_that_is_missing():
    done = [
        {**cell.fields(), "figures": {}}
        for cell in known_cells(SLOTS, [], WHOLE)
        if cell.kind == POINTS
    ]
    first = next_cell(SLOTS, done, WHOLE, set())
    assert (first.kind, first.task) == (CHOICE, "cola")
    after = next_cell(SLOTS, done + tried("cola", [0.5] * 6), WHOLE, set())
    assert (after.kind, after.task, after.seed) == (BASE_RUN, "cola", 0)
    failed = next_cell(SLOTS, done + tried("cola", [0.5] * 5 + [None]), WHOLE, set())
    assert (failed.kind, failed.name) == (CHOICE, "lr=0.0001, 5 epochs")
    skipped = next_cell(SLOTS, done + tried("cola", [0.5] * 5 + [None]), WHOLE, {failed.key})
    assert (skipped.kind, skipped.task) == (CHOICE, "mrpc")


def test_adapters_wait_for_their_base():
    first = tried("cola", [0.5] * 6)
    cells = known_cells(SLOTS, first, WHOLE)
    done = first + [{**cell.fields(), "figures": {}} for cell in cells if cell.kind == POINTS]
    base = next_cell(SLOTS, done, WHOLE, set())
    assert base.kind == BASE_RUN
    attempted = {
        cell.key
        for cell in known_cells(SLOTS, [*first, *tried("mrpc", [None] * 6)], WHOLE)
        if cell.kind == CHOICE or (cell.kind == BASE_RUN and cell.seed < 3)
    }
    after = next_cell(SLOTS, done, WHOLE, attempted)
    assert after.kind == PENALTY  # it failed: what it would have left is not made by each adapter
    again = next_cell(SLOTS, [*done, {**base.fields(), "figures": {}}], WHOLE, attempted)
    assert (again.kind, again.needs) == (POST_HOC, base.key)


# --- the sign of lambda ----------------------------------------------------------------------


def test_lambda_and_zeta_are_the_best_of_each_sign_on_the_held_out_rows():
    records = chosen_signs("cola", best=3)
    assert _signs.best_try(records, "cola", -1, WHOLE) == (-0.1, 0.8)
    assert _signs.best_try(records, "cola", 1, WHOLE) == (0.1, 0.8)
    assert _signs.best_try(records[1:], "cola", -1, WHOLE) is None  # waits for all six
    assert _signs.best_try(records, "mrpc", -1, WHOLE) is None
    equal = [{**record, "figures": {"metric": 0.5}} for record in records]
    assert _signs.best_try(equal, "cola", 1, WHOLE) == (0.01, 0.2)


def test_zero_has_as_many_tries_as_a_sign_and_the_first_has_run():
    assert len(_signs.ZERO_SEEDS) == len(_signs.tries(1)) == len(_signs.tries(-1))
    first = _signs.zero_cell("cola", _signs.ZERO_SEEDS[0], WHOLE)
    assert first.key in {candidate_cell("cola", recipe, WHOLE).key for recipe in candidates("cola")}


def test_fresh_runs_take_the_chosen_values_and_differ_from_their_base_by_nothing_else():
    cells = [cell for cell in known_cells(SLOTS, ALL_TRIED, WHOLE) if cell.kind == FRESH]
    of_penalty = {"penalty", "options", "lam", "where"}
    by_run = {}
    for cell in cells:
        series, role = cell.name.split(": ")
        by_run.setdefault((series, cell.task, cell.seed), {})[role] = cell.settings
    assert {seed for _, _, seed in by_run} == set(_signs.FRESH_SEEDS)
    for (series, task, _), roles in by_run.items():
        rest = [
            {name: value for name, value in settings.items() if name not in of_penalty}
            for settings in roles.values()
        ]
        assert all(settings == rest[0] for settings in rest)
        if series == "released":
            assert roles["I-STAR"]["lam"] == -1.0
            assert roles["I-STAR"]["options"]["zeta"] == {"cola": 0.8, "mrpc": 0.6}[task]
            assert rest[0]["released"]["padding"]
        else:
            assert (roles["best lam<0"]["lam"], roles["best lam>0"]["lam"]) == (-0.01, 0.01)


# --- keys ------------------------------------------------------------------------------------


def keys():
    """All keys, whatever they depend on: the choice is made under the present settings."""
    records = [record for task in TASKS for record in tried(task, [0.5] * 6)]
    records += [record for task in _signs.TASKS for record in chosen_signs(task)]
    return {cell.key for cell in known_cells(plan(WHOLE), records, WHOLE)}


def test_keys_change_with_what_is_measured(monkeypatch):
    before = keys()
    for module in (_training, _choice, _signs, istar_scores, _output_embeddings):
        monkeypatch.setattr(module, "FIGURES", -1)
    assert not before & keys()


@pytest.mark.parametrize(
    ("module", "name", "value", "changed"),
    [
        (_output_embeddings, "STEPS", 1, "points/CosReg/tiny T5/0"),
        (istar_scores, "LARGE", (2.0,), "points/IsoScore* by sample size/gaussian/0"),
        (_training, "MAX_LENGTH", 64, "post-hoc/FlowAdapter, head refit/cola/0"),
    ],
)
def test_keys_change_with_constants(monkeypatch, module, name, value, changed):
    def key():
        return [key for key in keys() if key.startswith(changed)]

    before = key()
    monkeypatch.setattr(module, name, value)
    assert len(before) == 1
    assert key() != before


def test_every_record_that_is_stored_belongs_to_a_cell():
    records = read_records(suite_file(reproduce.RESULTS, WHOLE))
    kept = {
        record["key"]
        for record in records
        if record["settings"].get("base", record["settings"])["figures"] == _training.FIGURES
        and record["task"] != "sst2_sentence"  # four candidates of a task that left the plan
    }
    replaced = {record["key"] for record in replaced_records(SLOTS, records, WHOLE)}
    assert kept <= {cell.key for cell in known_cells(SLOTS, records, WHOLE)} | replaced

"""The plan: which cells, in which order, by which recipe, λ and ζ; PLAN.md says the same."""

from benchmarks.reproduction import __main__ as reproduce, _choice, istar_sign
from benchmarks.reproduction._cells import (
    CHOICE,
    read_records,
)
from benchmarks.reproduction._choice import candidate_cell, candidates, chosen
from benchmarks.reproduction._plan import (
    known_cells,
    order_table,
    plan,
    replaced_records,
)

SLOTS = plan()


def tried(task, metrics):
    """Records of the runs that a recipe is chosen by; None stands for one that failed."""
    return [
        {
            **candidate_cell(task, recipe).fields(),
            **({"error": "ValueError"} if metric is None else {"figures": {"metric": metric}}),
        }
        for recipe, metric in zip(candidates(task), metrics, strict=True)
    ]


def tried_signs(task):
    """Records of the tries of both signs."""
    return [
        {
            **istar_sign.try_cell(task, *option).fields(),
            "figures": {"metric": 0.5},
        }
        for sign in istar_sign.SIGNS
        for option in istar_sign.tries(sign)
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
    records = read_records(reproduce.RECORDS)
    known = {cell.key for cell in known_cells(SLOTS, records)}
    known |= {record["key"] for record in replaced_records(SLOTS, records)}
    left = [record for record in records if record["key"] not in known]
    heads = {record["key"] for record in left if "head refit" in record["name"]}
    assert len(heads) == 3 * (8 + 5 + 3)  # bases of CoLA (3 of its first recipe), MRPC and RTE
    others = [record for record in left if record["key"] not in heads]
    assert {(record["kind"], record["task"]) for record in others} == {(CHOICE, "sst2_sentence")}


def test_the_best_candidate_is_chosen_once_all_have_run(monkeypatch):
    found = tried("cola", [0.1, 0.6, 0.3, 0.4, 0.6, 0.6])  # ties go to the cheaper
    recipe = chosen(found, "cola")
    assert (recipe.epochs, recipe.lr) == (3, 5e-5)
    assert chosen(tried("cola", [0.1, 0.2, 0.3, 0.4, 0.6, None]), "cola") is None
    assert chosen(found[:-1], "cola") is None
    monkeypatch.setattr(_choice, "HELD_OUT", 0.3)  # made under other settings
    assert chosen(found, "cola") is None

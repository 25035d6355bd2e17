"""Paper 002 asked again: the sign of λ, with λ and ζ chosen on a split of the training rows.

The cells of each task: tries that choose λ and ζ, for each sign; the choices against the base, with
fresh seeds; a control that follows the code released by the authors; and a second learning rate.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._cells import FRESH, TRY, Cell, Record, Slot, known_slot
from benchmarks.reproduction._choice import HELD_OUT, best_of, candidate_cell, held_out_figures
from benchmarks.reproduction._figures import TASKS, has_collapsed, mean_sd, metric_name, of
from benchmarks.reproduction._recipe import Recipe
from benchmarks.reproduction._training import ARGUMENTS_AS_RELEASED, Condition, Job
from benchmarks.reproduction._verdicts import Claim, moves
from benchmarks.reproduction.istar import BERT, PAPER, REPORTED, istar

ASKED = ("cola", "mrpc")
RECIPE = Recipe(epochs=5, lr=5e-5)  # the one that both tasks are judged with
SECOND_RATE = RECIPE._replace(lr=3e-5)
AS_RELEASED = RECIPE._replace(warmup=0.0, schedule="constant", weight_decay=0.0)
SIZES, ZETAS = (0.01, 0.1, 1.0), (0.2, 0.8)
TRY_SEED, ZERO_SEEDS = 0, (0, 10, 11, 12, 13, 14)
FRESH_SEEDS = (5, 6, 7, 8, 9)
FEWER_SEEDS = FRESH_SEEDS[:3]
SIGNS = {-1: "lam<0", 1: "lam>0"}
ON_THE_EDGE = """\
All choices have the smallest |λ| that was tried, so that the claims below are on penalties that
change the training little."""


def tries(sign: int) -> list[tuple[float, float]]:
    """Return λ and ζ of the tries of a sign, in the order in which the first of equals wins."""
    return [(sign * size, zeta) for size, zeta in product(SIZES, ZETAS)]


def try_cell(task: str, lam: float, zeta: float) -> Cell:
    """Return the cell that evaluates λ and ζ on the rows held out of the training rows."""
    condition = istar(f"try lam={lam:g} zeta={zeta:g}", lam, zeta)
    job = Job(task, TRY_SEED, RECIPE, condition)
    settings = {**job.settings(), "held_out": HELD_OUT}
    run = partial(held_out_figures, job)
    return Cell(TRY, condition.name, task, TRY_SEED, settings, run)


def zero_cell(task: str, seed: int) -> Cell:
    """Return the cell of a try without a penalty."""
    return candidate_cell(task, RECIPE, seed)


def best_try(records: Sequence[Record], task: str, sign: int) -> tuple[float, float] | None:
    """Return λ and ζ with the best metric on the held-out rows; None until all tries have run."""
    options = tries(sign)
    best = best_of(records, [try_cell(task, *option) for option in options])
    return None if best is None else options[best]


def slots(block: int) -> Iterator[Slot]:
    """Yield the slots in the order in which they run."""
    for task in ASKED:
        for sign in SIGNS:
            for option in tries(sign):
                yield known_slot(block, try_cell(task, *option))
        for seed in ZERO_SEEDS[1:]:
            yield known_slot(block, zero_cell(task, seed))
    for seed, task in product(FRESH_SEEDS, ASKED):
        yield from _compared(block, "fresh", Job(task, seed, RECIPE))
    for seed, task in product(FEWER_SEEDS, ASKED):
        for condition in (_as_released(_base("released")), released(task)):
            yield known_slot(block, _fresh_cell(Job(task, seed, AS_RELEASED), condition))
    for seed, task in product(FEWER_SEEDS, ASKED):
        yield from _compared(block, "second rate", Job(task, seed, SECOND_RATE))
    for cell in _differences():
        yield known_slot(block, cell)


def released(task: str) -> Condition:
    """Return the condition of the control, with the λ and ζ that the paper reports for BERT."""
    lam, zeta = REPORTED[task]
    return _as_released(istar("released: I-STAR", lam, zeta))


def _as_released(condition: Condition) -> Condition:
    return replace(condition, arguments=ARGUMENTS_AS_RELEASED, padding=True)


def _differences() -> Iterator[Cell]:
    """Yield I-STAR on CoLA with one difference at a time of the released code from the recipe."""
    condition = istar("difference: none", *REPORTED["cola"])
    random_batches = {"train_sampling_strategy": "random"}
    for name, recipe, change in (
        ("padding", RECIPE, {"padding": True}),
        ("constant rate", RECIPE._replace(warmup=0.0, schedule="constant"), {}),
        ("no clipping", RECIPE, {"arguments": {"max_grad_norm": 0.0}}),
        ("no decay", RECIPE._replace(weight_decay=0.0), {}),
        ("random batches", RECIPE, {"arguments": random_batches}),
        ("none", RECIPE, {}),
    ):
        changed = replace(condition, name=f"difference: {name}", **change)
        yield _fresh_cell(Job("cola", FRESH_SEEDS[0], recipe), changed)


def _base(series: str) -> Condition:
    return Condition(f"{series}: base", where="all")


def _fresh_cell(job: Job, condition: Condition) -> Cell:
    return replace(replace(job, condition=condition).cell(), kind=FRESH)


def _compared(block: int, series: str, job: Job) -> Iterator[Slot]:
    """Yield a base and the chosen penalty of each sign."""
    yield known_slot(block, _fresh_cell(job, _base(series)))
    for sign, word in SIGNS.items():
        name = f"{series}: best {word}"
        yield Slot(block, FRESH, name, job.task, job.seed, partial(_chosen, name, sign, job))


def _chosen(name: str, sign: int, job: Job, records: Sequence[Record]) -> Cell | None:
    best = best_try(records, job.task, sign)
    return best and _fresh_cell(job, istar(name, *best))


def claims() -> list[Claim]:
    """Return the claims on the chosen penalties, the control and the second rate."""
    return [claim for task in ASKED for claim in _task_claims(task)]


def _task_claims(task: str) -> list[Claim]:
    name, metric = TASKS[task], metric_name(task)
    with_istar, without, _ = BERT[task]
    theirs, size = f"{without:.4f} → {with_istar:.4f} (BERT)", with_istar - without
    base, down, up = (f"fresh: {part}" for part in ("base", "best lam<0", "best lam>0"))
    second = "with the second rate, "
    lines = [
        ("table 1", f"{metric} is higher with the chosen λ < 0 than without", theirs, base, down),
        ("figure 3", f"{metric} is higher with the chosen λ > 0 than without", "–", base, up),
        (
            "figure 3",
            f"{metric} is higher with the chosen λ < 0 than with the chosen λ > 0",
            "only drawn",
            up,
            down,
        ),
        (
            "table 1",
            f"as released, {metric} is higher with the paper's λ and ζ than without",
            theirs,
            "released: base",
            "released: I-STAR",
        ),
        (
            "table 1",
            f"{second}{metric} is higher with the chosen λ < 0 than without",
            theirs,
            "second rate: base",
            "second rate: best lam<0",
        ),
        (
            "figure 3",
            f"{second}{metric} is higher with the chosen λ < 0 than with the chosen λ > 0",
            "only drawn",
            "second rate: best lam>0",
            "second rate: best lam<0",
        ),
    ]
    found = []
    for where, text, said, before, after in lines:
        sized = size if said == theirs else None
        rises = moves(of(before, task), of(after, task), "metric", 1, size=sized)
        claim = Claim(where, f"{name}: {text}", said, rises, task, about_metric=True)
        if after in (down, "released: I-STAR"):  # on the first page
            claim = claim._replace(paper=PAPER[task], method=of(after, task))
        found.append(claim)
    geometry = [
        Claim(
            "figure 3",
            f"{name}: the chosen λ {relation} 0 {verb} IsoScore* (tokens of all layers)",
            "only drawn",
            moves(of(base, task), of(after, task), "isoscore_star", sign),
            task,
        )
        for relation, verb, after, sign in (("<", "lowers", down, -1), (">", "raises", up, 1))
    ]
    return [*found, *geometry]


def tries_table(records: Sequence[Record]) -> str:
    """Return the metric of all tries on the held-out rows, and of the six seeds without a penalty.

    The choices of each task are set in bold.
    """
    best = {(task, sign): best_try(records, task, sign) for task in ASKED for sign in SIGNS}
    kept = {record["key"]: record for record in records if "figures" in record}
    rows = [
        [
            f"λ = {lam:g}, ζ = {zeta:g}",
            *(
                _tried(
                    kept.get(try_cell(task, lam, zeta).key),
                    (lam, zeta) == best[task, sign],
                )
                for task in ASKED
            ),
        ]
        for sign in SIGNS
        for lam, zeta in tries(sign)
    ]
    zeros = {
        task: [
            kept[key]["figures"]["metric"]
            for seed in ZERO_SEEDS
            if (key := zero_cell(task, seed).key) in kept
        ]
        for task in ASKED
    }
    rows.append([f"λ = 0, best of {len(ZERO_SEEDS)} seeds", *map(_best, zeros.values())])
    rows.append(["λ = 0, mean ± sd", *(mean_sd(values) for values in zeros.values())])
    header = ["tried", *(f"{TASKS[task]}, {metric_name(task)}" for task in ASKED)]
    table = markdown_table(header, rows)
    smallest = all(choice and abs(choice[0]) == SIZES[0] for choice in best.values())
    return f"{table}\n\n{ON_THE_EDGE}" if smallest else table


def differences_table(records: Sequence[Record]) -> str:
    """Return what each difference of the released code alone does to training with λ = -1."""
    kept = {record["key"]: record for record in records if "figures" in record}
    found = {cell.name: kept[cell.key] for cell in _differences() if cell.key in kept}
    rows = [
        [
            name.partition(": ")[2],
            _tried(record, False),
            f"{record['figures']['isoscore_star']:.4f}",
        ]
        for name, record in found.items()
    ]
    return markdown_table(["difference", "Matthews", "IsoScore* of the tokens"], rows)


def _tried(record: Record | None, is_chosen: bool) -> str:
    if record is None:
        return ""
    value = f"{record['figures']['metric']:.4f}"
    shown = f"**{value}**" if is_chosen else value
    return f"{shown} (collapsed)" if has_collapsed(record) else shown


def _best(values: Sequence[float]) -> str:
    few = "" if len(values) == len(ZERO_SEEDS) else f" (of {len(values)} so far)"
    return f"{max(values):.4f}{few}" if values else ""

"""The tables of REPRODUCTION.md, whose text is written by hand around them."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks._markdown import markdown_table, replace_section
from benchmarks._places import FOLDER
from benchmarks._versions import written
from benchmarks.reproduction import _plan
from benchmarks.reproduction._claims import LIMITS, Judged, judge_claims, read_claims
from benchmarks.reproduction._measuring import METRICS
from benchmarks.reproduction._records import KEY, by_seed, record_store, table_of
from benchmarks.reproduction._statistics import SEEDS_NEEDED, mean_sd

PAGE = FOLDER / "REPRODUCTION.md"
TASKS = {"cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sst2_sentence": "SST-2"}
PAPERS = {
    "sign": "I-STAR (002)",
    "002": "I-STAR (002)",
    "003": "Isotropy Layer (003)",
    "000": "persistent entropy (000/001)",
    "004": "isotropy calibration (004)",
}
LATER = "added after 341 records"  # of claims: their figures were known
CLAIM_COLUMNS = ("claim", "the paper's", "ours", "seeds", "difference [95 %]", "p", "verdict")
FIRST_PAGE = ("paper", "claim", "theirs", "ours [95 %]", "verdict", "setting (the paper's)")


def write_report(path: Path, page: Path = PAGE) -> None:
    """Replace the tables of a page by those of a file of records; a new page is a copy of ours."""
    if not page.exists():
        shutil.copy(PAGE, page)
    for name, text in sections(record_store(path).entries()).items():
        replace_section(page, name, text)


def sections(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the tables by the name of their section."""
    table, claims = table_of(records), read_claims()
    judged = {
        family: judge_claims([each for each in claims if each.family == family], table)
        for family in dict.fromkeys(claim.family for claim in claims)
    }
    gains = judged.pop("gains")
    done = table[table["metric"].notna()]
    return {
        "first-page": _first_page(judged),
        "counts": _counts(judged, table),
        "gains": _gains(gains),
        **{f"claims-{family}": _claims(found) for family, found in judged.items()},
        "tries": _tries(done),
        "differences": _differences(done),
        "candidates": _candidates(done),
        "bases": _bases(done),
        "measured": _measured(table),
    }


def pivot(rows: Sequence[Sequence[str]], *index: str) -> str:
    """Return a Markdown table of rows (*index, column, text) with a column for each `column`."""
    long = pd.DataFrame(rows, columns=[*index, "column", "text"])
    wide = long.set_index([*index, "column"])["text"].unstack(sort=False).fillna("").reset_index()
    return markdown_table(list(wide.columns), wide.to_numpy().tolist(), words=True)


def _first_page(judged: Mapping[str, Sequence[Judged]]) -> str:
    """Return the claims that the papers are known for."""
    rows = [
        (
            PAPERS[family],
            each.claim.claim + f" ({LATER})" * (LATER in each.claim.where),
            each.claim.theirs,
            ", ".join(filter(None, (each.ours, each.interval, f"{each.n_seeds} seeds"))),
            each.verdict,
            each.claim.setting,
        )
        for family, found in judged.items()
        for each in found
        if each.claim.setting
    ]
    return markdown_table(FIRST_PAGE, rows, words=True)


def _counts(judged: Mapping[str, Sequence[Judged]], table: pd.DataFrame) -> str:
    verdicts = pd.Series([each.verdict.strip("*") for found in judged.values() for each in found])
    counts = [(word, str(n)) for word, n in verdicts.value_counts().sort_index().items()]
    counted = markdown_table((f"verdict on {len(verdicts)} claims", "claims"), counts)
    recorded = f"{_planned(table).sum()} of {len(_plan.plan())} planned runs are recorded."
    return f"{counted}\n\n{recorded}"


def _planned(table: pd.DataFrame) -> pd.Series:
    """Return which rows have figures of cells of the plan."""
    planned = {cell.key for cell in _plan.plan()}
    keys = zip(*(table[name] for name in KEY), strict=True)
    return pd.Series([key in planned for key in keys], table.index, bool) & ~table["failed"]


def _claims(judged: Sequence[Judged]) -> str:
    rows = [
        [
            f"{each.claim.claim} ({each.claim.where})",
            each.claim.theirs,
            each.ours,
            str(each.n_seeds),
            each.interval,
            "" if each.p is None else f"{each.p:.2g}",
            ", ".join(filter(None, (each.verdict, each.reason))),
        ]
        for each in judged
    ]
    return markdown_table(CLAIM_COLUMNS, rows, words=True)


def _gains(judged: Sequence[Judged]) -> str:
    """Return the difference between each method and its control."""
    words = {"holds": "gains", "fails": "is worse", "not shown": ""}
    rows = []
    for each in judged:
        claim, outcome = each.claim, each.outcome
        verdict = each.verdict.replace(outcome, words.get(outcome, outcome))
        text = ", ".join(filter(None, (each.interval, verdict, each.reason)))
        rows.append((claim.after, claim.before, title_of(claim.task), text))
    return pivot(rows, "method", "compared with")


def _tries(done: pd.DataFrame) -> str:
    """Return the metric of all tries on the held-out rows, and of the seeds without a penalty."""
    chosen = {(task, _plan.try_name(*best)) for (task, _), best in _plan.CHOSEN.items()}
    rows = [
        (
            row["name"].replace("try lam=", "λ = ").replace(" zeta=", ", ζ = "),
            title_of(row["task"]),
            _metric(row, (row["task"], row["name"]) in chosen),
        )
        for _, row in done[done["kind"] == "try"].iterrows()
    ]
    for task in _plan.ASKED:
        zero = _plan.candidate_cell(task, _plan.RECIPES[task]).name
        metrics, title = by_seed(done, task, zero, "metric"), title_of(task)
        rows.append((f"λ = 0, best of {len(metrics)} seeds", title, f"{metrics.max():.4f}"))
        rows.append(("λ = 0, mean ± sd", title, mean_sd(metrics)))
    return pivot(rows, "tried")


def _differences(done: pd.DataFrame) -> str:
    """Return what each difference of the released code alone does to training with λ = -1."""
    names = [f"difference: {name}" for name in _plan.DIFFERENCES]
    own = done[done["name"].isin(names)].sort_values("name", key=lambda each: each.map(names.index))
    rows = [
        (row["name"].partition(": ")[2], _metric(row), f"{row['isoscore_star']:.4f}")
        for _, row in own.iterrows()
    ]
    return markdown_table(("difference", "Matthews", "IsoScore* of the tokens"), rows)


def _candidates(done: pd.DataFrame) -> str:
    """Return the metric of each candidate for the recipe of a task on the held-out rows."""
    own = done[(done["kind"] == "recipe") & (done["seed"] == 0)]
    best = own["metric"].eq(own.groupby("task")["metric"].transform("max"))
    rows = [(TASKS[row["task"]], row["name"], _metric(row, best[i])) for i, row in own.iterrows()]
    return pivot(rows, "task")


def _bases(done: pd.DataFrame) -> str:
    """Return the bases of each task beside the limit that they must reach."""
    rows = []
    for task, limit in LIMITS.items():
        metrics = by_seed(done, task, "base", "metric")
        first, mean = (f"{each.mean():.4f}" for each in (metrics[:SEEDS_NEEDED], metrics))
        learned = "yes" if metrics.mean() >= limit else "no"
        recipe, shown = _plan.candidate_cell(task, _plan.RECIPES[task]).name, mean_sd(metrics)
        rows.append([title_of(task), recipe, shown, mean, first, f"{limit:.4f}", learned])
    header = ("task", "recipe", "bases", "mean", "mean of the first 3", "limit", "learned")
    return markdown_table(header, rows, words=True)


def _measured(table: pd.DataFrame) -> str:
    """Return the versions of the planned runs, and the number of cells by commit."""
    own, lines = table[_planned(table)], []
    for versions, group in own.groupby(own["versions"].map(written), sort=False):
        commits = group["commit"].str[:10].value_counts(sort=False).items()
        lines.append(f"- {versions}. Cells by commit: {', '.join(f'{c} {n}' for c, n in commits)}")
    return "\n".join(lines)


def title_of(task: str) -> str:
    """Return the name of a task and that of its metric."""
    return f"{TASKS[task]}, {'Matthews' if METRICS[task] == 'matthews' else 'accuracy'}"


def _metric(row: pd.Series, is_chosen: bool = False) -> str:
    value = f"**{row['metric']:.4f}**" if is_chosen else f"{row['metric']:.4f}"
    return f"{value} (collapsed)" if row["collapsed"] else value

"""The first page: the claims that the papers are known for, with their settings."""

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._cells import Record
from benchmarks.reproduction._figures import LATER, matching_records
from benchmarks.reproduction._verdicts import Claim, Line

HEADER = (
    "paper",
    "claim",
    "theirs",
    "ours [95 %]",
    "verdict",
    "setting (the paper's, where it differs)",
)
ALWAYS = ("lam", "zeta", "lr")
TITLES = {
    "lam": "λ",
    "zeta": "ζ",
    "where": "penalty on",
    "alpha": "α",
    "lr": "learning rate",
    "batch_size": "batch size",
    "bias_corrected": "bias-corrected penalty",
}
SHOWN = (*TITLES, "coordinates", "epochs", "schedule", "d")


def headlines_table(judged: Sequence[tuple[str, Sequence[Line]]], records: Sequence[Record]) -> str:
    """Return a row for each claim that has the paper's setting, those that wait last."""
    rows = []
    for paper, lines in judged:
        for line in lines:
            claim, found = line.claim, line.judged
            if claim.paper:
                seeds = f"{found.n_seeds} seed{'s' * (found.n_seeds > 1)}"
                ours = ", ".join(filter(None, (found.ours, found.interval, seeds)))
                rows.append(
                    (
                        paper,
                        claim.claim + f" ({LATER})" * (LATER in claim.where),
                        claim.theirs,
                        ours if found.n_seeds else "–",
                        line.verdict,
                        _setting(claim, records),
                    )
                )
    return markdown_table(HEADER, sorted(rows, key=lambda row: row[4] == "waiting"), words=True)


def _setting(claim: Claim, records: Sequence[Record]) -> str:
    """Return the setting of the runs, and what the paper has in place of it."""
    theirs = claim.paper or {}
    runs = [item for item in matching_records(records, claim.method or {}) if "settings" in item]
    if not runs:
        named = (f"{TITLES.get(name, name)} {_listed(values)}" for name, values in theirs.items())
        return f"not run yet (paper: {', '.join(named)})"
    settings = runs[0]["settings"]
    recipe = settings.get("base", settings).get("recipe", {})
    ours = {**settings, **recipe, **settings.get("options", {}), **settings.get("parameters", {})}
    parts = []
    for name in SHOWN:
        if name in ours and (name in theirs or name in ALWAYS):
            own, paper = ours[name], theirs.get(name, ("not given",))
            parts.append(f"{TITLES.get(name, name)} {_listed([own])}")
            parts[-1] += "" if own in paper else f" (paper: {_listed(paper)})"
    if "released" in settings:
        parts.append("constant rate, no warm-up, no clipping, no weight decay, padding counted")
    return ", ".join(parts)


def _listed(values: Iterable[Any]) -> str:
    text = " or ".join(f"{value:g}" if type(value) is float else str(value) for value in values)
    return text.replace("head_input", "the head's input")

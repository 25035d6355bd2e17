"""The report: a first page, then for each paper the verdicts on its claims and its tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Protocol

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._bases import PUBLISHED, learned
from benchmarks.reproduction._cells import CHOICE, WHOLE, Record, Suite
from benchmarks.reproduction._choice import (
    candidate_name,
    candidates,
    chosen,
    first_bases,
    recipe_of,
)
from benchmarks.reproduction._figures import matching_records, mean_sd, of
from benchmarks.reproduction._first_page import (
    JudgedPapers,
    counts_text,
    first_page_table,
    not_run_text,
)
from benchmarks.reproduction._gains import gains, gains_text
from benchmarks.reproduction._hours import HOUR, first_block_text, hours_text
from benchmarks.reproduction._judging import Line, judge_claims
from benchmarks.reproduction._pictures import picture_links
from benchmarks.reproduction._plan import Slot, plan, planned_records, replaced_records
from benchmarks.reproduction._records import n_lines, read_records
from benchmarks.reproduction._statistics import power
from benchmarks.reproduction._tables import TASKS, metric_name
from benchmarks.reproduction._verdicts import WAITING, Claim, verdict

TITLES = {
    "000": "000/001 Shrink the longest: persistent entropy",
    "002": "002 Stable Anisotropic Regularization: I-STAR",
    "003": "003 Isotropy Layer and joint loss",
    "004": "004 On Isotropy Calibration of Transformers: CosReg, spectrum control, flow",
}
OPENING = """\
What the papers claim, and what the same methods do here. A claim *holds* or *fails* if the 95 %
interval of the difference between runs with the same seed lies wholly on one side of zero, or of
the factor or margin that the claim names; otherwise it is *not shown*. With fewer than 3 seeds it
is *waiting*. *Power*, given where a claim is not shown, is the probability that these seeds show a
difference of the paper's size. [How to read this report](#how-to-read-this-report) has the details.
Papers 000/001, 002, 003 and 004 are [1], [3], [2] and [4] in the documentation."""
INTRODUCTION = """\
The encoder is {encoder}, fine-tuned on {rows}, once for every seed.
The papers fine-tune BERT, RoBERTa, DistilBERT, ALBERT and others of 768 dimensions or more. So
their scores cannot be met here; what can be tested is whether an effect is there, in which
direction and how large. [PLAN.md](reproduction/PLAN.md) says which cells there are, in which order
they run and how they are judged. It was written before the runs; it also has an amendment and the
departures from it, which were not.

- A claim is judged by differences paired by seed and their 95 % t-interval. It **holds** where the
  interval lies wholly on the claimed side (of the claimed factor, where there is one), **fails**
  only where the interval excludes the claim, and is *not shown* in between. It fails by the
  interval alone, which is not adjusted for the number of claims.
- *p* is twice the one-sided p-value, and small where the figures support the claim; *p Holm* is
  adjusted for all claims of the paper that have one. What holds by its interval alone is marked.
- Intervals are over seeds. *Over dev rows* is the 95 % bootstrap interval of the mean difference
  when dev rows are drawn, the seeds being given.
- *Power* is the probability, with the seeds at hand, that the interval shows a difference of the
  paper's size, given the spread found here. For a difference of one standard deviation of the
  paired differences it is {power_of_3:.2f} with 3 seeds and {power_of_5:.2f} with 5.
- *Waiting*: fewer than 3 seeds. *Not judged*: the task's bases have not learned enough to say
  anything. *Not testable here* says what is missing.

Figures are mean ± standard deviation over seeds, on whole dev sets in eval mode where nothing else
is said."""
EARLIER = """\
The tables of an earlier suite, whose bases were trained on at most 2,000 rows for 3 epochs and had
hardly learned their task. They carry no verdicts."""
REPLACED = """\
The bases of these {n} runs, which took {hours:.1f} processor hours, have not learned their task
(table "Bases"). They carry no verdicts, and are in no other table and no other sum. The metric is
Matthews' correlation on CoLA, accuracy on other tasks."""
DEPARTURES = '"Departures" in [PLAN.md](reproduction/PLAN.md)'
MINILM = "all-MiniLM-L6-v2 (6 layers, 384 dimensions; the one of the `demo` extra)"
EARLIER_FILE = "rows-2000.jsonl"
HEADER = (
    "claim",
    "where",
    "the paper's",
    "ours",
    "seeds",
    "difference [95 %]",
    "p",
    "p Holm",
    "over dev rows",
    "power",
    "verdict",
    "reason",
)


class Paper(Protocol):
    """Interface of the module of a paper."""

    def claims(self) -> list[Claim]:
        """Return the claims, which are the lines of the table of verdicts."""

    def tables(self, records: Sequence[Record]) -> str:
        """Return the tables of the paper as Markdown; empty without records."""


Papers = Mapping[str, Sequence[Paper]]


def suite_file(folder: Path, suite: Suite) -> Path:
    """Return the file with the finished cells of a suite."""
    return folder / f"{suite.name}.jsonl"


def planned(suite: Suite, folder: Path) -> tuple[list[Slot], list[Record], list[Record]]:
    """Return the slots of a suite, all records of its file, and for each slot that of its cell."""
    slots, every = plan(suite), read_records(suite_file(folder, suite))
    return slots, every, planned_records(slots, every, suite)


def reproduction_text(papers: Papers, suite: Suite, folder: Path) -> str:
    """Return the whole report on the cells of the suite that are finished."""
    slots, every, records = planned(suite, folder)
    replaced = replaced_records(slots, every, suite)
    judged = {
        number: judge_claims(
            [claim for paper in modules for claim in paper.claims()], records, suite
        )
        for number, modules in papers.items()
    }
    parts = _first_page(judged, slots, records, suite)
    parts += ["## How to read this report", _introduction(suite)]
    parts += ["## Cells and hours", _source(suite, folder)]
    parts += [fill(first_block_text(slots, records), 100), hours_text(slots, records)]
    parts += _base_parts(every, records, suite)
    links = picture_links(records)
    for number, modules in papers.items():
        parts += [f"## {TITLES[number]}", *filter(None, [links.get(number)])]
        parts += [_verdict_table(judged[number])]
        parts += filter(None, (paper.tables(records) for paper in modules))
    parts += [*_failures([*records, *replaced]), *_settings(records), *_replaced(replaced)]
    if suite.name == WHOLE.name:
        parts += _earlier(papers, folder)
    return "\n\n".join(parts) + "\n"


def _first_page(
    judged: JudgedPapers, slots: Sequence[Slot], records: Sequence[Record], suite: Suite
) -> list[str]:
    """Return the opening, the table of the papers, and what gains at all."""
    return [
        "# Reproduction",
        OPENING,
        *filter(None, [first_page_table(judged, TITLES)]),
        *_narrow_bases(records, suite),
        fill(f"{not_run_text(judged)} {counts_text(judged)}".strip(), 100),
        "## Does anything gain?",
        gains_text(gains(slots, records, suite)),
    ]


def _narrow_bases(records: Sequence[Record], suite: Suite) -> list[str]:
    """Return a paragraph for each task whose first bases alone would decide otherwise."""
    if not suite.is_published:
        return []
    found = {task: learned(records, task) for task in PUBLISHED}
    return [
        fill(f"{TASKS[task]} {base.narrowly}, see {DEPARTURES}.", 100)
        for task, base in found.items()
        if base.narrowly
    ]


def _source(suite: Suite, folder: Path) -> str:
    """Return which lines of the records the report was made from."""
    n = n_lines(suite_file(folder, suite))
    return f"Suite {suite.name}, from the first {n} lines of its records."


def _introduction(suite: Suite) -> str:
    rows = "whole training sets"
    if suite.max_rows is not None:
        rows = f"at most {suite.max_rows:,} training rows (a smoke run, which judges nothing)"
    return INTRODUCTION.format(
        encoder=suite.model or MINILM, rows=rows, power_of_3=power(1.0, 3), power_of_5=power(1.0, 5)
    )


def _base_parts(every: Sequence[Record], records: Sequence[Record], suite: Suite) -> list[str]:
    """Return the table of the recipes; `every` also has the records of recipes replaced."""
    if suite.recipe is not None:
        return []
    tasks = list(dict.fromkeys(item["task"] for item in records if item["kind"] == CHOICE))
    rows = [_base_row(every, records, task, suite) for task in tasks]
    names = [candidate_name(recipe) for recipe in candidates(tasks[0])]
    header = ("task", *names, "chosen", "has learned", "why")
    text = (
        "Learning rate and epochs are chosen once a task by the metric on a fifth of the training "
        "rows. A task is judged where the mean of its bases is no more than one standard error "
        "below the dev figure of a checkpoint of the same encoder that existed before (the figures "
        "are in [PLAN.md](reproduction/PLAN.md)). If the mean of its first three bases is lower, "
        "the task is run again with the recipe of that checkpoint."
    )
    return ["## Bases", text, markdown_table(header, rows, words=True)]


def _base_row(
    every: Sequence[Record], records: Sequence[Record], task: str, suite: Suite
) -> tuple[str, ...]:
    first, recipe = chosen(every, task, suite), recipe_of(every, task, suite)
    names = list(dict.fromkeys(candidate_name(item) for item in (first, recipe) if item))
    passed, why = None, "the published figures are another encoder's"
    if suite.is_published:
        passed, why, _ = learned(records, task)
    if first and first != recipe:
        earlier = first_bases(every, task, first, suite).text
        why = f"{names[0]}: {earlier}; {names[1]}: {why}"
    return (
        TASKS[task],
        *(_tried(records, task, candidate_name(item)) for item in candidates(task)),
        ", then ".join(names) or WAITING,
        {True: "yes", False: "**no**", None: WAITING}[passed] if suite.is_published else "no gate",
        why,
    )


def _tried(records: Sequence[Record], task: str, name: str) -> str:
    found = [
        item["figures"] for item in matching_records(records, of(name, task)) if "figures" in item
    ]
    return f"{found[0]['metric']:.4f} {metric_name(task)}" if found else WAITING


def _verdict_table(lines: Sequence[Line]) -> str:
    return markdown_table(HEADER, [_verdict_row(line) for line in lines], words=True)


def _verdict_row(line: Line) -> list[str]:
    claim, judged = line.claim, line.judged
    return [
        claim.claim,
        claim.where,
        claim.theirs,
        judged.ours,
        str(judged.n_seeds) if judged.n_seeds else "",
        judged.interval,
        "" if judged.p is None else f"{judged.p:.2g}",
        "" if line.adjusted is None else f"{line.adjusted:.2g}",
        judged.bootstrap,
        "" if judged.power is None else str(judged.power),
        verdict(judged, line.adjusted),
        judged.reason,
    ]


def _replaced(records: Sequence[Record]) -> list[str]:
    """Return the metric of the runs under a recipe that has been replaced."""
    groups: dict[tuple[str, str], list[float]] = {}
    finished = [record for record in records if "figures" in record]
    for record in finished:
        own = groups.setdefault((record["task"], record["name"]), [])
        own.append(record["figures"]["metric"])
    if not groups:
        return []
    rows = [
        [TASKS[task], name, str(len(values)), mean_sd(values)]
        for (task, name), values in groups.items()
    ]
    table = markdown_table(("task", "method", "seeds", "metric"), rows, words=True)
    hours = sum(record.get("processor_seconds", 0.0) for record in finished) / HOUR
    text = REPLACED.format(n=len(finished), hours=hours)
    return ["## Runs under a recipe that was replaced", text, table]


def _failures(records: Sequence[Record]) -> list[str]:
    lines = [f"- {record['key']}: {record['error']}" for record in records if "error" in record]
    return ["## Failed cells", "\n".join(lines)] if lines else []


def _settings(records: Sequence[Record]) -> list[str]:
    settings = Counter(
        (*record["versions"].items(), ("commit", record.get("commit")))
        for record in records
        if "figures" in record
    )
    lines = [
        "- "
        + ", ".join(f"{name} {value}" for name, value in setting if value is not None)
        + f": {n} cells"
        for setting, n in settings.items()
    ]
    return ["## Measured with", "\n".join(lines)] if lines else []


def _earlier(papers: Papers, folder: Path) -> list[str]:
    """Return the tables of the earlier suite, whose bases had hardly learned."""
    records = read_records(folder / EARLIER_FILE)
    if not records:
        return []
    parts = ["## Earlier: bases of 2,000 rows", EARLIER]
    for number, modules in papers.items():
        own = [record for record in records if record["paper"] == number]
        parts += filter(None, (paper.tables(own) for paper in modules))
    return parts

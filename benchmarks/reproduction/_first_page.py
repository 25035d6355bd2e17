"""The first page of the report: the main claims of each paper, with the verdicts of its tables."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._judging import Line
from benchmarks.reproduction._tables import TASKS
from benchmarks.reproduction._verdicts import (
    NOT_TESTABLE,
    WAITING,
    Judged,
    verdict,
)

OWN = ("ours", "future work")  # the `where` of claims that no paper makes
FIRST = ("002", "003")  # the papers whose claims come first
HEADER = ("paper", "claim", "task", "theirs", "ours", "difference [95 %]", "verdict", "power")
READING = """\
The metric is Matthews' correlation on CoLA and accuracy on MRPC, RTE and SST-2. The *base* is the
model fine-tuned without a penalty, λ = 0; *selected bars* and *all bars* are the topological
penalty with and without its selection of bars; the flow has a refitted head. If a claim asks for a
factor, the difference is that from the stated multiple of the base. Always predicting the most
frequent class gives 0 on CoLA, 0.6838 on MRPC, 0.5271 on RTE and 0.5092 on SST-2."""

JudgedPapers = Mapping[str, Sequence[Line]]


def first_page_table(papers: JudgedPapers, titles: Mapping[str, str]) -> str:
    """Return the table of the main claims, one row for each task; empty without headlines."""
    order = sorted(papers, key=lambda number: number not in FIRST)
    rows = [row for number in order for row in _paper_rows(titles[number], papers[number])]
    if not rows:
        return ""
    return f"{markdown_table(HEADER, rows, words=True)}\n\n{READING}"


def counts_text(papers: JudgedPapers) -> str:
    """Return how many claims have which verdict, as a sentence."""
    counts = Counter(
        verdict(line.judged, line.adjusted).strip("*")
        for lines in papers.values()
        for line in lines
    )
    testable = sum(counts.values()) - counts.pop(NOT_TESTABLE, 0)
    named = "; ".join(f"{word} {n}" for word, n in sorted(counts.items()))
    own = sum(line.claim.where in OWN for lines in papers.values() for line in lines)
    return (
        f"Verdicts on the {testable} testable claims, of which {own} are controls and extensions "
        f"of our own: {named or 'none'}."
    )


def shown_verdict(line: Line) -> str:
    """Return the verdict of a claim, with what it waits for."""
    judged = line.judged
    if judged.outcome != WAITING:
        return verdict(judged, line.adjusted)
    return f"{WAITING}: {judged.reason.removesuffix(' needed')}"


def _paper_rows(title: str, lines: Sequence[Line]) -> list[list[str]]:
    """Return the rows of a paper; its number and the words of a claim are not repeated."""
    groups: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        if line.claim.headline:
            of_claim = groups.setdefault(line.claim.headline, {})
            of_claim.setdefault(_group(line), []).append(line)
    rows = []
    for headline, of_claim in groups.items():
        for number, together in enumerate(of_claim.values()):
            rows.append(["", "" if number else headline, *_cells(together)])
    if rows:
        rows[0][0] = _link(title)
    return rows


def _group(line: Line) -> str:
    """Return what the lines of a claim that share a row have in common."""
    return _task(line) if _figures(line.judged) else shown_verdict(line)


def _cells(lines: Sequence[Line]) -> list[str]:
    """Return the cells of a task, or of several tasks that have no figures yet."""
    first = lines[0]
    figures, judged = _figures(first.judged), first.judged
    power = judged.power.of_size if judged.power else None
    return [
        ", ".join(map(_task, lines)),
        "" if first.claim.where in OWN or not figures else first.claim.theirs,
        figures,
        judged.interval,
        shown_verdict(first),
        "" if power is None else f"{power:.2f}",
    ]


def _task(line: Line) -> str:
    return TASKS[line.claim.task] if line.claim.task else ""


def _figures(judged: Judged) -> str:
    """Return our figures without their standard deviations; empty if there are none."""
    return re.sub(r" ± \S+", "", judged.ours) if judged.ours.strip("– →") else ""


def _link(title: str) -> str:
    """Return the number of a paper as a link to the section with this title."""
    anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    return f"[{title.split()[0]}](#{anchor})"

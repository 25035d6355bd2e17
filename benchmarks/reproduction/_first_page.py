"""The first page of the report: the main claims of each paper, with the verdicts of its tables."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._judging import Line
from benchmarks.reproduction._tables import TASKS
from benchmarks.reproduction._verdicts import (
    NOT_SHOWN,
    NOT_TESTABLE,
    WAITING,
    Headline,
    Judged,
    verdict,
)

OWN = ("ours", "future work")  # the `where` of claims that no paper makes
FIRST = ("002", "003")  # the papers whose claims come first
HEADER = ("paper", "claim", "task", "theirs", "ours", "difference [95 %]", "verdict", "power")
READING = """\
The metric is Matthews' correlation on CoLA and accuracy on MRPC, RTE and SST-2. The *base* is the
model fine-tuned without a penalty (λ = 0), *selected bars* and *all bars* are the topological
penalty with and without its selection of bars. The flow has a refitted head; the next table
compares it with the refit alone. Always predicting the most frequent class gives 0 on CoLA, 0.6838
on MRPC, 0.5271 on RTE and 0.5092 on SST-2."""

JudgedPapers = Mapping[str, Sequence[Line]]


def first_page_table(papers: JudgedPapers, titles: Mapping[str, str]) -> str:
    """Return the main claims with figures, a row for each task; empty if there are none."""
    rows = [
        row for number in _ordered(papers) for row in _paper_rows(titles[number], papers[number])
    ]
    return f"{markdown_table(HEADER, rows, words=True)}\n\n{READING}" if rows else ""


def not_run_text(papers: JudgedPapers) -> str:
    """Return the tasks, or whole claims, of each paper that have no figures; empty if none."""
    parts = []
    for number in _ordered(papers):
        tasks, claims = [], []
        for words, lines in _main_claims(papers[number]).items():
            missing = [_task(line) for line in lines if not _figures(line.judged)]
            if len(missing) == len(lines):
                claims.append(words)
            else:
                tasks += missing
        if tasks or claims:
            parts.append(f"{number}: {', '.join([*dict.fromkeys(tasks), *claims])}")
    return f"Not run yet: {'; '.join(parts)}." if parts else ""


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


def _ordered(papers: JudgedPapers) -> list[str]:
    """Return the numbers of the papers, those of the headline questions first."""
    return sorted(papers, key=lambda number: number not in FIRST)


def _main_claims(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the claims of the first page by their words, in the order of their ranks."""
    found: dict[Headline, list[Line]] = {}
    for line in lines:
        if line.claim.headline:
            found.setdefault(line.claim.headline, []).append(line)
    return {each.words: found[each] for each in sorted(found, key=lambda each: each.rank)}


def _paper_rows(title: str, lines: Sequence[Line]) -> list[list[str]]:
    """Return the rows of a paper; its number and the words of a claim are not repeated."""
    rows = []
    for words, same in _main_claims(lines).items():
        shown = [line for line in same if _figures(line.judged)]
        rows += [["", "" if n else words, *_cells(line)] for n, line in enumerate(shown)]
    if rows:
        rows[0][0] = _link(title)
    return rows


def _cells(line: Line) -> list[str]:
    claim, judged = line.claim, line.judged
    power = judged.power if judged.outcome == NOT_SHOWN else None
    return [
        _task(line),
        "" if claim.where in OWN else claim.theirs,
        _figures(judged),
        judged.interval,
        shown_verdict(line),
        f"{power.probability:.2f}" if power else "",
    ]


def _task(line: Line) -> str:
    return TASKS[line.claim.task] if line.claim.task else ""


def _figures(judged: Judged) -> str:
    """Return our figures in short; empty if there are none."""
    return judged.means or judged.ours.strip("– →")


def _link(title: str) -> str:
    """Return the number of a paper as a link to the section with this title."""
    anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
    return f"[{title.split()[0]}](#{anchor})"

"""The first page of the report: one row for each paper, with the verdicts of its tables."""

from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks._markdown import markdown_table
from benchmarks.reproduction._judging import Line
from benchmarks.reproduction._verdicts import (
    NOT_TESTABLE,
    SEEDS_NEEDED,
    WAITING,
    Judged,
    verdict,
)

OWN = ("ours", "future work")  # the `where` of claims that no paper makes
FIRST = ("002", "003")  # the papers whose questions come first
HEADER = ("paper", "claim", "the paper's", "ours, difference [95 %]", "verdict", "power")
READING = """\
Each row shows the main claim of a paper, task by task: Matthews' correlation on CoLA, accuracy on
MRPC, RTE and SST-2. The verdicts are those of the tables below. With fewer than {needed} seeds the
figures are shown and the verdict is waiting. A *base* is the model fine-tuned without a penalty;
*selected bars* and *all bars* are the topological penalty with and without the selection of bars;
*lam* is λ. If a claim names a factor, the difference is taken from that multiple of the base. If
the most frequent class is predicted for every row, Matthews' correlation is 0 on CoLA, and the
accuracy is 0.6838 on MRPC, 0.5271 on RTE and 0.5092 on SST-2."""
BREAK = "<br>"

JudgedPapers = Mapping[str, Sequence[Line]]


def first_page_table(papers: JudgedPapers, titles: Mapping[str, str]) -> str:
    """Return the table with one row for each paper; empty without headlines."""
    order = sorted(papers, key=lambda number: number not in FIRST)
    rows = [row for number in order for row in _paper_rows(titles[number], papers[number])]
    if not rows:
        return ""
    table = markdown_table(HEADER, rows, words=True)
    return f"{READING.format(needed=SEEDS_NEEDED)}\n\n{table}"


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
    """Return a row for each question of a paper, whose cells have the claims that answer it."""
    questions: dict[str, list[Line]] = {}
    for line in lines:
        if line.claim.headline:
            questions.setdefault(line.claim.headline.question, []).append(line)
    return [_row(title, question, own) for question, own in questions.items()]


def _row(title: str, question: str, lines: Sequence[Line]) -> list[str]:
    labels = [line.claim.headline.label for line in lines if line.claim.headline]
    columns = (
        [_theirs(line) for line in lines],
        [_ours(line.judged) for line in lines],
        [shown_verdict(line) for line in lines],
        [line.judged.power for line in lines],
    )
    return [title, question, *(_cell(labels, texts) for texts in columns)]


def _cell(labels: Sequence[str], texts: Sequence[str]) -> str:
    """Join the texts of the claims, each with its labels; equal texts are shown once."""
    by_text: dict[str, list[str]] = {}
    for label, text in zip(labels, texts, strict=True):
        by_text.setdefault(text, []).append(label)
    if len(by_text) == 1:
        return texts[0]
    return BREAK.join(f"*{'; '.join(own)}:* {text}" for text, own in by_text.items() if text)


def _theirs(line: Line) -> str:
    return "" if line.claim.where in OWN else line.claim.theirs


def _ours(judged: Judged) -> str:
    if not judged.ours.strip("– →"):
        return ""
    return f"{judged.ours}, {judged.interval}" if judged.interval else judged.ours

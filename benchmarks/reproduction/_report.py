"""The report: each paper's claims and their verdicts, then its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks._report import markdown_table
from benchmarks.reproduction._cells import NOT_RUN, Cell, Claim, Judged, Record, Suite
from benchmarks.reproduction._store import read_records
from benchmarks.reproduction._verdicts import verdict

TITLES = {
    "000": "000/001 Shrink the longest: persistent entropy",
    "002": "002 Stable Anisotropic Regularization: I-STAR",
    "003": "003 Isotropy Layer and joint loss",
    "004": "004 On Isotropy Calibration of Transformers: CosReg, spectrum control, flow",
}
INTRODUCTION = """\
What the papers claim, and what the same methods do here.

The encoder is {encoder}, fine-tuned anew for every seed.
The papers fine-tune BERT, RoBERTa, DistilBERT, ALBERT and others of 768 dimensions or more on whole
training sets. So their scores cannot be met here; what can be tested is whether an effect is there,
in which direction and how large.

**holds** and **fails** need three seeds and more than the quick suite; with less, or where a figure
cannot tell, it is *smoke only*. *Not testable here* names what is missing; *not run* has no
finished cell yet. Figures are mean ± standard deviation over seeds, on whole dev sets in eval mode
where nothing else is said. A claim is judged by the largest suite that decides it: a change of
geometry must go the claimed way in every seed; a gain in a metric must pass a one-sided paired
t-test at 0.05 over the seeds."""
MINILM = "all-MiniLM-L6-v2 (6 layers, 384 dimensions; the one of the `demo` extra)"
HEADER = ("claim", "where", "the paper's", "ours", "seeds", "suite", "verdict", "reason")


class Paper(Protocol):
    """What the module of a paper gives."""

    def cells(self, suite: Suite) -> list[Cell]:
        """Return all cells of a suite, without running anything."""

    def claims(self) -> list[Claim]:
        """Return the lines of the table of verdicts."""

    def tables(self, records: Sequence[Record]) -> str:
        """Return the paper's own tables as Markdown, empty without records."""


Papers = Mapping[str, Sequence[Paper]]


class SuiteResult(NamedTuple):
    """The cells of a suite, and what has come of them so far."""

    suite: Suite
    n_cells: int
    finished: list[Record]
    failed: list[Record]


def read_suite(papers: Papers, suite: Suite, folder: Path) -> SuiteResult:
    """Read the records of the cells that the suite has today; those of others do not count."""
    keys = {cell.key for cell in suite_cells(papers, suite)}
    records = [item for item in read_records(suite_file(folder, suite)) if item["key"] in keys]
    finished = [record for record in records if "figures" in record]
    failed = [record for record in records if "error" in record]
    return SuiteResult(suite, len(keys), finished, failed)


def suite_file(folder: Path, suite: Suite) -> Path:
    """Where the finished cells of a suite are."""
    return folder / f"{suite.name}.jsonl"


def suite_cells(papers: Papers, suite: Suite) -> list[Cell]:
    """Return the cells of all papers in the order to run them.

    By what they decide, then all seeds of a condition together.
    """
    cells = [
        cell for modules in papers.values() for paper in modules for cell in paper.cells(suite)
    ]
    conditions = {(cell.paper, cell.name, cell.task): None for cell in cells}
    place = {condition: number for number, condition in enumerate(conditions)}
    return sorted(
        cells,
        key=lambda cell: (cell.decides, place[cell.paper, cell.name, cell.task], cell.seed),
    )


def report(papers: Papers, suites: Sequence[Suite], folder: Path) -> str:
    """Return the whole report from whatever cells of the suites are finished."""
    results = [read_suite(papers, suite, folder) for suite in suites]
    introduction = INTRODUCTION.format(encoder=suites[0].model or MINILM)
    parts = ["# Reproduction", introduction, _suite_table(results)]
    for number, modules in papers.items():
        parts += [f"## {TITLES[number]}", _verdict_table(modules, results)]
        parts += _paper_tables(modules, results)
    return "\n\n".join([*parts, *_failures(results), *_settings(results)]) + "\n"


def _suite_table(suites: Sequence[SuiteResult]) -> str:
    header = ("suite", "seeds", "training rows", "epochs", "cells", "failed", "hours", "command")
    rows = [
        (
            suite.name,
            str(suite.seeds),
            "all" if suite.max_rows is None else f"at most {suite.max_rows:,}",
            "the papers'" if suite.epochs is None else str(suite.epochs),
            f"{len(finished)} of {n_cells}",
            str(len(failed)),
            f"{sum(record['seconds'] for record in finished) / 3600:.2f}",
            f"`python -m benchmarks.reproduce --suite {suite.name}{_elsewhere(suite)}`",
        )
        for suite, n_cells, finished, failed in suites
    ]
    return markdown_table(header, rows)


def _elsewhere(suite: Suite) -> str:
    model = f" --model {suite.model}" if suite.model else ""
    return model + (" --data hub" if suite.from_hub else "")


def _verdict_table(modules: Sequence[Paper], suites: Sequence[SuiteResult]) -> str:
    claims = [claim for paper in modules for claim in paper.claims()]
    return markdown_table(HEADER, [_verdict_row(claim, suites) for claim in claims], words=True)


def _verdict_row(claim: Claim, suites: Sequence[SuiteResult]) -> list[str]:
    judged, suite = _best(claim, suites)
    seeds, name = (str(judged.n_seeds), suite.name) if judged.n_seeds else ("", "")
    return [
        claim.claim,
        claim.where,
        claim.theirs,
        judged.ours,
        seeds,
        name,
        verdict(judged, suite),
        judged.reason,
    ]


def _best(claim: Claim, suites: Sequence[SuiteResult]) -> tuple[Judged, Suite]:
    """Judge by the largest suite that decides, or else by the largest one with any figure."""
    found = [(claim.judge(item.finished), item.suite) for item in reversed(suites)]
    decided = [item for item in found if verdict(*item) in ("**holds**", "**fails**")]
    run = [item for item in found if item[0] != NOT_RUN]
    return (decided or run or found)[0]


def _paper_tables(modules: Sequence[Paper], suites: Sequence[SuiteResult]) -> list[str]:
    parts = []
    for item in reversed(suites):
        tables = [paper.tables(item.finished) for paper in modules]
        if any(tables):
            parts += [f"### Suite {item.suite.name}", *filter(None, tables)]
    return parts


def _failures(suites: Sequence[SuiteResult]) -> list[str]:
    lines = [
        f"- {item.suite.name}: {record['key']}: {record['error']}"
        for item in suites
        for record in item.failed
    ]
    return ["## Failed cells", "\n".join(lines)] if lines else []


def _settings(suites: Sequence[SuiteResult]) -> list[str]:
    lines = []
    for item in suites:
        settings = {tuple(record["versions"].items()) for record in item.finished}
        for setting in sorted(settings, key=str):
            shown = ", ".join(f"{name} {value}" for name, value in setting if value is not None)
            lines.append(f"- {item.suite.name}: {shown}")
    return ["## Measured with", "\n".join(lines)] if lines else []

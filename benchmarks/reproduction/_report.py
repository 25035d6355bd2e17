"""The report: each paper's claims and their verdicts, then its tables."""

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks._report import markdown_table
from benchmarks.reproduction._cells import NOT_RUN, Cell, Claim, Judged, Record, Suite
from benchmarks.reproduction._store import read_records
from benchmarks.reproduction._verdicts import is_enough, verdict

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

To decide takes three seeds and more than the quick suite; with less it is *smoke only*. *Not
testable here* names what is missing; *not run* waits for cells. Figures are mean ± standard
deviation over seeds, on whole dev sets in eval mode where nothing else is said. A claim is judged
by the largest suite that has three seeds of it:

- A change of geometry, and all else that is said of every seed, **holds** if it goes the claimed
  way in every seed and by what the claim asks, and **fails** if not. A seed whose cell failed, or
  whose figure is undefined, has not gone that way. What changes at random goes one way in three
  seeds of three with probability 1/8.
- A gain in a metric, or a trend, **holds** if it passes a one-sided test at 0.05 (gains: paired,
  over the seeds), **fails** if it goes the other way, and is *not shown* in between. Three seeds
  show a true gain of 0.5, 1 or 2 standard deviations (of the differences between paired runs) with
  probability 0.15, 0.32 or 0.71 only. Where the best of several conditions is chosen on the dev
  set, p is multiplied by their number (Bonferroni).
- What the figures cannot decide is *not shown* too; the reason says why."""
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
    """A suite, and a record for each of its cells, whether it has run or not."""

    suite: Suite
    records: list[Record]

    @property
    def finished(self) -> list[Record]:
        """Records of the cells that have figures."""
        return [record for record in self.records if "figures" in record]

    @property
    def failed(self) -> list[Record]:
        """Records of the cells that an error ended."""
        return [record for record in self.records if "error" in record]


def read_suite(papers: Papers, suite: Suite, folder: Path) -> SuiteResult:
    """Read the records of the cells that the suite has today; those of others do not count."""
    kept = {record["key"]: record for record in read_records(suite_file(folder, suite))}
    cells = suite_cells(papers, suite)
    return SuiteResult(suite, [kept.get(cell.key, cell.fields()) for cell in cells])


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
            item.suite.name,
            str(item.suite.seeds),
            "all" if item.suite.max_rows is None else f"at most {item.suite.max_rows:,}",
            "the papers'" if item.suite.epochs is None else str(item.suite.epochs),
            f"{len(item.finished)} of {len(item.records)}",
            str(len(item.failed)),
            f"{sum(record['seconds'] for record in item.finished) / 3600:.2f}",
            f"`python -m benchmarks.reproduce --suite {item.suite.name}{_elsewhere(item.suite)}`",
        )
        for item in suites
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
    """Judge by the largest suite with enough seeds, or else by the largest one with any figure."""
    found = [(_judge(claim, item.records), item.suite) for item in reversed(suites)]
    enough = [item for item in found if is_enough(*item)]
    run = [item for item in found if item[0] != NOT_RUN]
    return (enough or run or found)[0]


def _judge(claim: Claim, records: Sequence[Record]) -> Judged:
    """Judge a claim; what goes wrong becomes its reason, for the others are worth having."""
    try:
        return claim.judge(records)
    except Exception as error:
        traceback.print_exc()
        reason = f"could not be judged: {type(error).__name__}: {error}"
        return Judged("–", None, len({record["seed"] for record in records}), reason)


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

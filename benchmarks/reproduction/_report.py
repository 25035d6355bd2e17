"""The report: what gains, the verdicts on the claims of each paper, and what they rest on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Protocol

from benchmarks._markdown import markdown_table
from benchmarks.reproduction import istar_sign
from benchmarks.reproduction._cells import CHOICE, POST_HOC, Record, Slot, read_records
from benchmarks.reproduction._choice import (
    PUBLISHED,
    candidate_name,
    candidates,
    chosen,
    first_bases,
    learned,
    recipe_of,
)
from benchmarks.reproduction._figures import TASKS, matching_records, mean_sd, of
from benchmarks.reproduction._gains import gains, gains_text
from benchmarks.reproduction._headlines import headlines_table
from benchmarks.reproduction._plan import plan, planned_records, replaced_records
from benchmarks.reproduction._statistics import power
from benchmarks.reproduction._verdicts import Claim, Line, judge_claims

SIGN = "sign"
PICTURE = "![Figures of the records](../docs/_static/reproduction-{}.svg)"
TITLES = {
    SIGN: "002, asked again: the sign of λ",
    "002": "002 Stable Anisotropic Regularization: I-STAR with ζ = 0.2",
    "003": "003 Isotropy Layer and joint loss",
    "000": "000/001 Shrink the longest: persistent entropy",
    "004": "004 On Isotropy Calibration of Transformers: CosReg, spectrum control, flow",
}
NAMES = {
    SIGN: "I-STAR (002)",
    "002": "I-STAR (002)",
    "003": "Isotropy Layer (003)",
    "000": "persistent entropy (000/001)",
    "004": "isotropy calibration (004)",
}
NOT_RUN = {
    SIGN: "",
    "002": "Not run here: RTE and SST-2 (table 1), other λ, ζ = 0 and single layers chosen on the "
    "dev set (figures 3, 5, 7 and 8), CosReg with λ = -1 (figure 4); QNLI, QQP, SST-5 and SQuAD, "
    "and BERT, ALBERT and DistilBERT are not available.",
    "003": "Not run here: IsoBN in training (table 3); RoBERTa-large is not available.",
    "000": "PLAN.md lists what is not tested, with the reasons.",
    "004": "PLAN.md lists what is not tested, with the reasons.",
}
INTRODUCTION = """\
What the papers are known for, and what the same methods do here. The encoder is
all-MiniLM-L6-v2 (6 layers, 384 dimensions; the one of the `demo` extra), fine-tuned on whole
training sets, once for every seed. The papers fine-tune BERT and others of 768 dimensions or
more, so that no row has the paper's setting. Where a row differs by more than the encoder, the
paper's value stands in brackets. Paper 004 gives F1 for MRPC, where this page has the accuracy.
Papers 000/001, 002, 003 and 004 are [1], [3], [2] and [4] in the documentation. The rows were
selected when 341 of the records were known. The intervals are those of the difference between runs
with the same seed, and if a change by some factor is claimed, from this multiple of the figure
before. Other terms, and the verdicts, are explained under "How the verdicts are given"."""
RULES = """\
The papers' scores cannot be met with this encoder; what can be tested is whether an effect is
there, in which direction and how large. [PLAN.md](reproduction/PLAN.md) says which runs there are
and how they are judged, and which claims are not tested, with reasons. It was written before the
runs, but for an amendment, departures and additions that it names.

- A claim **holds** or **fails** if the 95 % interval of the difference between runs with the same
  seed lies wholly on one side of zero, or of the factor or margin that the claim names; otherwise
  it is *not shown*. Equal differences in all seeds have no interval, and show nothing.
- **Collapsed**: the verdict rests on models that predict one class for 99 % or more of the dev
  rows. Such a loss is a collapse in training, not a measured effect of isotropy.
- *Waiting*: fewer than 3 seeds have run. *Not judged*: the task's bases have not learned it.
- *p* is twice the one-sided p-value, adjusted after Holm for all claims of the table, those that
  wait included, and small where the figures support the claim. What holds or fails by its interval,
  but not by the p-value of its side, is marked as such.
- *Over dev rows* is the 95 % bootstrap interval of the mean difference when dev rows are drawn, the
  seeds being given: the noise of the dev set itself.
- *Power*, given where a claim is not shown, is the probability that these seeds show a difference
  of the paper's size, over the 95 % interval of the standard deviation of the differences, and
  before Holm's adjustment. For a difference of one standard deviation it is {:.2f} with 3 seeds and
  {:.2f} with 5.

Figures are mean ± standard deviation over seeds, on whole dev sets. The metric is Matthews'
correlation on CoLA and accuracy on MRPC and RTE, where always predicting the most frequent class
gives 0, 0.6838 and 0.5271. The *base* is the model fine-tuned without a penalty (λ = 0). *Selected
bars* is the penalty of 000/001 on those H0 bars that its algorithm keeps. *I1* is the least value
of the partition function over the eigenvectors of the vectors, divided by the greatest, and *I2*
its standard deviation over them, divided by its mean; both are of 004."""
TRIES = """\
For each sign, λ and ζ are chosen by the metric on a fifth of the training rows, with one seed; the
choice is printed in bold. Six seeds without a penalty on the same rows show what the best of six
tries gains by chance. The claims compare the chosen settings with bases of the same, new seeds. "As
released" follows the code that the authors released, with the λ and ζ that they report for BERT.
The second rate is a learning rate of 3e-5 in place of 5e-5."""
DIFFERENCES = """\
With λ = -1 and ζ = 0.8 on CoLA, trained by the recipe of these runs with one difference of the
released code at a time (one seed):"""
BASES = """\
Learning rate and epochs are chosen once a task by the metric on a fifth of the training rows. A
task is judged where the mean of its bases is no more than one standard error below the dev figure
of a reference checkpoint, the same encoder fine-tuned with one seed. If the mean of its first three
bases is lower, the task is run again with the recipe of that checkpoint. CoLA is judged by a margin
of 0.0006, see "Departures" in [PLAN.md](reproduction/PLAN.md). SST-2 has left the plan."""
REPLACED = """\
The bases of these {n} runs have not learned their task under its first recipe. They carry no
verdicts, and are in no other table. Mean ± standard deviation of the metric, but for adapters:
{values}."""
HEADER = (
    "claim",
    "the paper's",
    "ours",
    "seeds",
    "difference [95 % over seeds]",
    "over dev rows",
    "p",
    "power",
    "verdict",
    "remarks",
)


class Paper(Protocol):
    """Interface of the module of a paper."""

    def claims(self) -> list[Claim]:
        """Return the claims, which are the lines of the table of verdicts."""


Papers = Mapping[str, Sequence[Paper]]


def planned(path: Path) -> tuple[list[Slot], list[Record], list[Record]]:
    """Return the slots, all records of a file, and for each slot that of its cell."""
    slots, every = plan(), read_records(path)
    return slots, every, planned_records(slots, every)


def reproduction_text(papers: Papers, path: Path) -> str:
    """Return the whole report on the finished cells of a file."""
    slots, every, records = planned(path)
    judged = {
        number: judge_claims([line for each in modules for line in each.claims()], records)
        for number, modules in papers.items()
    }
    labelled = [(NAMES[number], lines) for number, lines in judged.items()]
    parts = [
        f"# Reproduction\n\n{fill(INTRODUCTION, 100, break_on_hyphens=False)}",
        headlines_table(labelled, records),
    ]
    parts += [fill(_counts(judged, records, len(every)), 100), "## Does anything gain?"]
    parts.append(gains_text(gains(slots, records)))
    for number, lines in judged.items():
        parts.append(f"## {TITLES[number]}")
        if number != "002":
            parts.append(PICTURE.format(TITLES[number][:3]))
        if number == SIGN:
            parts += [TRIES, istar_sign.tries_table(every)]
            parts += [DIFFERENCES, istar_sign.differences_table(every)]
        rows = [_verdict_row(line) for line in lines]
        parts += [markdown_table(HEADER, rows, words=True), *filter(None, [NOT_RUN[number]])]
    parts += ["## How the verdicts are given", RULES.format(power(1.0, 3), power(1.0, 5))]
    replaced = replaced_records(slots, every)
    parts += _base_parts(every, records)
    parts += [*_replaced(replaced), *_failures([*records, *replaced]), *_settings(records)]
    return "\n\n".join(parts) + "\n"


def _counts(judged: Mapping[str, Sequence[Line]], records: Sequence[Record], n_lines: int) -> str:
    """Return how many claims have which verdict, and the records that the report is made from."""
    counts = Counter(line.verdict.strip("*") for lines in judged.values() for line in lines)
    named = "; ".join(f"{word} {n}" for word, n in sorted(counts.items()))
    done = sum("figures" in record for record in records)
    return (
        f"Verdicts on {counts.total()} claims: {named}. {done} of {len(records)} planned runs are "
        f"recorded. The file has {n_lines - done} more records, of runs that a second recipe "
        "replaced or that have left the plan."
    )


def _verdict_row(line: Line) -> list[str]:
    claim, judged = line.claim, line.judged
    return [
        f"{claim.claim} ({claim.where})",
        claim.theirs,
        judged.ours,
        str(judged.n_seeds) if judged.n_seeds else "",
        judged.interval,
        judged.bootstrap,
        "" if line.p is None else f"{line.p:.2g}",
        judged.power,
        line.verdict,
        judged.reason,
    ]


def _base_parts(every: Sequence[Record], records: Sequence[Record]) -> list[str]:
    """Return the table of the recipes; `every` also has the records of recipes replaced."""
    tasks = list(dict.fromkeys(item["task"] for item in every if item["kind"] == CHOICE))
    rows = [_base_row(every, records, task) for task in tasks]
    names = [candidate_name(recipe) for recipe in candidates("cola")]
    table = markdown_table(("task", *names, "chosen", "have the bases learned?"), rows, words=True)
    return ["## Bases", BASES, table]


def _base_row(every: Sequence[Record], records: Sequence[Record], task: str) -> tuple[str, ...]:
    first, recipe = chosen(every, task), recipe_of(every, task)
    names = list(dict.fromkeys(candidate_name(item) for item in (first, recipe) if item))
    tried = (_tried(every, task, candidate_name(item)) for item in candidates(task))
    if task not in PUBLISHED:
        return (TASKS[task], *tried, ", then ".join(names), "")
    passed, text = learned(records, task)
    why = f"{'waiting' if passed is None else 'yes' if passed else '**no**'}: {text}"
    if first and first != recipe:
        why = f"{names[0]}: {first_bases(every, task, first).text}; {names[1]}: {why}"
    return (TASKS[task], *tried, ", then ".join(names), why)


def _tried(records: Sequence[Record], task: str, name: str) -> str:
    found = [item for item in matching_records(records, of(name, task)) if "figures" in item]
    return f"{found[0]['figures']['metric']:.4f}" if found else ""


def _replaced(records: Sequence[Record]) -> list[str]:
    """Return the metric of the runs under a recipe that has been replaced."""
    groups: dict[tuple[str, str], list[float]] = {}
    done = [record for record in records if "figures" in record]
    for record in done:
        if record["kind"] != POST_HOC:
            own = groups.setdefault((record["task"], record["name"]), [])
            own.append(record["figures"]["metric"])
    if not groups:
        return []
    values = "; ".join(
        f"{TASKS[task]}, {name} {mean_sd(found)} ({len(found)})"
        for (task, name), found in groups.items()
    )
    text = REPLACED.format(n=len(done), values=values)
    return ["## Runs under a recipe that was replaced", fill(text, 100)]


def _failures(records: Sequence[Record]) -> list[str]:
    lines = [f"- {record['key']}: {record['error']}" for record in records if "error" in record]
    return ["## Failed cells", "\n".join(lines)] if lines else []


def _settings(records: Sequence[Record]) -> list[str]:
    settings: dict[str, Counter[str]] = {}
    for record in records:
        if "figures" in record:
            named = record["versions"].items()
            versions = ", ".join(f"{name} {value}" for name, value in named if value is not None)
            settings.setdefault(versions, Counter())[str(record.get("commit"))[:10]] += 1
    lines = [
        f"- {versions}. Cells by commit: "
        + ", ".join(f"{commit} {n}" for commit, n in commits.items())
        for versions, commits in settings.items()
    ]
    return ["## Measured with", "\n".join(lines)] if lines else []

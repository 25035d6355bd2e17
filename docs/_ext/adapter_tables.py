"""The tables of measured figures of the site, made from the registry and the results."""

from docs._ext import results
from isoadapt.adapters._registry import VARIANTS

CONTROLS = ["no adapter", "head refit only", "same layer, no penalty"]
COLUMNS = {
    "accuracy": "accuracy",
    "cross-entropy": "cross-entropy",
    "corrected": "IsoScore, corrected",
    "EV1": "EV1",
    "fit, s": "fit, s",
}
CLASSIFIERS = {
    "cola-minilm": "CoLA",
    "mrpc-minilm": "MRPC",
    "sst2-minilm": "SST-2",
    "cola-l3": "CoLA, three layers",
    "phenomenon-12-minilm": "twelve classes",
}
UNTAUGHT = "layers of TeacherReadout, whitened without a teacher"
VECTORS = {
    "raw": "raw",
    "LogitPreservingWhitening, own texts": "preserving",
    UNTAUGHT: "same columns",
    "TeacherReadout": "readout",
    "teacher, logistic head": "teacher",
}
USES = {
    "STS-B": "similarity: STS-B, Spearman",
    "RTE MRR@10": "search: RTE, MRR at 10",
    "teacher's index, MRR@10": "search in the teacher's index, MRR at 10",
    "MRPC recall@1": "paraphrase found first: MRPC, recall at 1",
    "1 bit, sign": "similarity from 1 bit a dimension, split at 0",
    "1 bit, median": "the same, split at the median",
    "outliers, AUROC": "outliers: WikiText among own texts, AUROC",
    "hubness": "hubness: skewness of the 10-occurrence (smaller is better)",
    "same class, precision@10": "neighbours of the same class, precision at 10",
    "own task": "own task",
    "changed": "predictions changed",
}


_HEAD = [".. list-table::", "   :header-rows: 1", "   :class: measured", ""]


def tables() -> dict[str, str]:
    """Give the text of each generated table by the name of its file."""
    return {"measured.txt": _measured(), "uses.txt": _uses(), "classifiers.txt": _classifiers()}


def _measured() -> str:
    rows = results.table("cola dev, n=")
    variants = [each.name for each in VARIANTS]
    lines = [*_HEAD, *_row(["adapter", *COLUMNS.values()])]
    for name in [*CONTROLS, *variants]:
        label = name
        if name in variants:
            class_, _, rest = name.partition(",")
            label = f":class:`~isoadapt.{class_}`" + (f",{rest}" if rest else "")
        row = rows.get(name, dict.fromkeys(COLUMNS, "not measured"))
        lines += _row([label, *(row[column] for column in COLUMNS)])
    return "\n".join([*lines, ""])


def _uses() -> str:
    """Each use of the vectors of the classifier of CoLA."""
    found = _dual_use()
    vectors = ["raw", "centred", *(name for name in VECTORS if name not in ("raw", UNTAUGHT))]
    lines = [*_HEAD, *_row(["use", *(VECTORS.get(name, name) for name in vectors)])]
    for column, label in USES.items():
        lines += _row([label, *(_mean(found["cola-minilm", name][column]) for name in vectors)])
    return "\n".join([*lines, ""])


def _classifiers() -> str:
    """A table for each of four uses, with a row for each classifier."""
    found, lines = _dual_use(), []
    for column in ("STS-B", "RTE MRR@10", "outliers, AUROC", "same class, precision@10"):
        lines += [f".. list-table:: {USES[column][0].upper()}{USES[column][1:]}", *_HEAD[1:]]
        lines += _row(["classifier", *VECTORS.values()])
        for name, label in CLASSIFIERS.items():
            lines += _row([label, *(_mean(found[name, each][column]) for each in VECTORS)])
        lines.append("")
    return "\n".join(lines)


def _dual_use() -> dict[tuple[str, str], dict[str, str]]:
    """Rows by checkpoint and vectors, without what stands in brackets, such as a ridge."""
    rows = results.rows("checkpoint | vectors")
    return {(row["checkpoint"], row["vectors"].split(" (")[0]): row for row in rows}


def _mean(cell: str) -> str:
    """Leave out the error and the range of a cell such as "0.709 ± 0.015 [0.708, 0.710]"."""
    return cell.split(" ±")[0]


def _row(cells: list[str]) -> list[str]:
    return [f"   {'* ' if i == 0 else '  '}- {cell}" for i, cell in enumerate(cells)]

"""Vectors of classifiers used for similarity and search: maps of the columns of one pass.

Each text is encoded once for each checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._data import Floats
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record, _figures as figures, _texts as texts
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    EPOCHS,
    HEAD_INPUT,
    MANY,
    N_TRAINING,
    Checkpoint,
)
from benchmarks.quality._texts import OwnTexts
from isoadapt import (
    AllButTheTop,
    LinearHead,
    LogitPreservingWhitening,
    TeacherReadout,
    Whitening,
    load_checkpoint,
)
from isoadapt.metrics import similarity_correlation

SECTION = "dual-use"
RECORDS = RECORDS_FOLDER / "dual_use.jsonl"
KEY = ("checkpoint", "vectors", "draw")

OWN_TASK, STSB, SEARCH, PARAPHRASE = "own task", "STS-B", "RTE MRR@10", "MRPC recall@1"
CLASSES, OUTLIERS, HUBNESS = "same class, precision@10", "outliers, AUROC", "hubness"
SIGN_BITS, MEDIAN_BITS = "1 bit, sign", "1 bit, median"
INDEX = "teacher's index, MRR@10"
COLUMNS = (
    OWN_TASK,
    STSB,
    SEARCH,
    INDEX,
    PARAPHRASE,
    SIGN_BITS,
    MEDIAN_BITS,
    CLASSES,
    OUTLIERS,
    HUBNESS,
)
OWN = "LogitPreservingWhitening, own texts"
RAW = "raw"
BEST_LAYER = "best raw layer"
UNTAUGHT = "layers of TeacherReadout, whitened without a teacher"
LAST = "TeacherReadout, last layer alone"
READOUT = "TeacherReadout"
ONE_VECTOR = 'TeacherReadout, space="head"'
TEACHER = "teacher, logistic head"

COLA = CHECKPOINTS["cola-minilm"]
MORE, OTHER = "cola-minilm, with WikiText", "cola-minilm, teacher paraphrase-l3"
MORE_OF_MANY = "phenomenon-12-minilm, with WikiText"
CASES = {
    "cola-minilm": COLA,
    MORE: COLA,
    OTHER: replace(COLA, teacher="paraphrase-l3"),
    **CHECKPOINTS,
    MORE_OF_MANY: CHECKPOINTS["phenomenon-12-minilm"],
}

# --- the rows: maps of the vectors, and the head that reads them ---------------------------------


@dataclass(frozen=True)
class Vectors:
    """Vectors of a row of the table, and the classifier that is applied to them."""

    embed: Callable[[Sequence[Any]], Floats]
    head: Any  # has predict
    map: Callable[[Floats], Floats] = lambda X: X
    logits: Callable[[Floats], Floats] | None = None  # where the head comes from the checkpoint
    note: str = ""
    n_read: int | None = None  # leading columns of `embed` that the head reads, if not mapped ones
    index: Callable[[Sequence[str]], Floats] | None = None  # the teacher, if it has the same space

    def __call__(self, inputs: Sequence[Any]) -> Floats:
        return self.map(self.embed(inputs))


def _logistic(vectors: Callable[[Sequence[Any]], Floats], own: OwnTexts) -> Any:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
    return model.fit(vectors(own.train_inputs), own.train_labels)


def raw(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the head's input as it is."""
    return Vectors(checkpoint.vectors, head, logits=head.outputs)


def centred(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the head's input minus its mean, with the intercept that keeps the logits."""
    mean = checkpoint.vectors(own.fit).mean(axis=0, dtype=np.float64)
    moved = LinearHead(head.coef_, head.intercept_ + head.coef_ @ mean, head.classes_)
    return Vectors(checkpoint.vectors, moved, lambda X: X - mean, moved.outputs)


def _mean_of_layer(checkpoint: Checkpoint, layer: int) -> Callable[[Sequence[Any]], Floats]:
    return partial(checkpoint.vectors, blocks=[f"layer{layer}_mean"])


def best_layer(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the mean-pooled layer with the highest similarity correlation on STS-B dev pairs."""
    dev = texts.similarity("dev")
    layers = [_mean_of_layer(checkpoint, i) for i in range(checkpoint.layers + 1)]
    scores = [similarity_correlation(one(dev.first), one(dev.second), dev.scores) for one in layers]
    layer = int(np.argmax(scores))
    return Vectors(layers[layer], _logistic(layers[layer], own), note=f"layer {layer}")


def whitening(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened vectors z = A(h - μ), with the head W A⁻¹ that keeps the logits."""
    adapter = Whitening(shrinkage="oas").fit(checkpoint.vectors(own.fit))
    matrix, offset = adapter.to_affine()
    coef = head.coef_ @ np.linalg.inv(matrix)
    moved = LinearHead(coef, head.intercept_ - coef @ offset, head.classes_)
    return Vectors(checkpoint.vectors, moved, adapter.transform, moved.outputs)


def all_but_the_top(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the vectors without their leading directions, with a logistic head."""
    adapter = AllButTheTop().fit(checkpoint.vectors(own.fit))
    fitted = _logistic(lambda inputs: adapter.transform(checkpoint.vectors(inputs)), own)
    return Vectors(checkpoint.vectors, fitted, adapter.transform)


def untaught(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened columns of the readout, without a teacher; the head reads its own input."""
    embed = partial(checkpoint.vectors, blocks=checkpoint.readout_blocks())
    adapter = Whitening(shrinkage="oas").fit(embed(own.fit))
    return Vectors(embed, head, adapter.transform, head.outputs, n_read=head.n_features_in_)


def readout(
    checkpoint: Checkpoint,
    head: LinearHead,
    own: OwnTexts,
    *,
    space: str = "teacher",
    last: bool = False,
) -> Vectors:
    """Return the predicted vectors of the teacher, or vectors that the head reads as its input."""
    blocks = checkpoint.readout_blocks()
    if last:
        blocks = [HEAD_INPUT] + [f"layer{checkpoint.layers}_{mode}" for mode in ("mean", "cls")]
    embed = partial(checkpoint.vectors, blocks=blocks)
    adapter = TeacherReadout(head, space=space).fit(
        embed(own.fit), checkpoint.teacher_vectors(own.fit)
    )
    note = f"ridge {adapter.ridge_:.2g}, R² {adapter.r2_:.2f}"
    if space == "head":
        return Vectors(embed, head, adapter.transform, head.outputs, note)
    n_read, index = head.n_features_in_, checkpoint.teacher_vectors
    return Vectors(embed, head, adapter.transform, head.outputs, note, n_read, index)


def teacher(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the teacher's vectors, with a logistic head."""
    embed = checkpoint.teacher_vectors
    return Vectors(embed, _logistic(embed, own), index=embed)


def preserving(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened vectors with the same head."""
    adapter = LogitPreservingWhitening(head=head).fit(checkpoint.vectors(own.fit))
    return Vectors(checkpoint.vectors, head, adapter.transform, head.outputs)


ROWS: Mapping[str, Callable[[Checkpoint, LinearHead, OwnTexts], Vectors]] = {
    RAW: raw,
    "centred": centred,
    BEST_LAYER: best_layer,
    "Whitening, head W A⁻¹": whitening,
    "AllButTheTop, logistic head": all_but_the_top,
    OWN: preserving,
    UNTAUGHT: untaught,
    LAST: partial(readout, last=True),
    READOUT: readout,
    ONE_VECTOR: partial(readout, space="head"),
    TEACHER: teacher,
}
TAUGHT = (LAST, READOUT, ONE_VECTOR)
DRAWN = (OWN, UNTAUGHT, *TAUGHT)  # fitted to several draws of the texts
ROWS_OF = {
    MORE: DRAWN,
    MORE_OF_MANY: DRAWN,
    OTHER: (*TAUGHT, TEACHER),
    "cola-l3": (RAW, *DRAWN, TEACHER),
}
DRAWS, SHARE = 3, 0.8

# --- the cells -----------------------------------------------------------------------------------


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each checkpoint, and of each draw of texts."""
    for draw in range(DRAWS):
        for case in CASES:
            for row in ROWS_OF.get(case, ROWS):
                if draw == 0 or row in DRAWN:
                    yield (case, row, draw), partial(measure_cell, case, row, draw)


def measure_cell(case: str, row: str, draw: int) -> dict[str, Any]:
    """Fit the map of a row and compute all its figures."""
    checkpoint = CASES[case]
    own, (_, head) = texts.own_texts(checkpoint.task), load_checkpoint(checkpoint.folder())
    drawn = texts.drawn(own.fit, round(SHARE * len(own.fit)), seed=draw) if draw else own.fit
    more = texts.more_texts() if case in (MORE, MORE_OF_MANY) else []
    vectors = ROWS[row](checkpoint, head, own._replace(fit=[*drawn, *more]))
    columns, before = vectors.embed(own.inputs), checkpoint.head_inputs(own.inputs)
    read = vectors.map(columns) if vectors.n_read is None else columns[:, : vectors.n_read]
    logits, error = head.outputs(before), None
    if vectors.logits is not None:
        error = float(np.abs(vectors.logits(read) - logits).max() / np.abs(logits).max())
    predicted = vectors.head.predict(read)
    found = _figures(vectors, own, predicted, matthews=checkpoint.task == "cola")
    return {
        "figures": {name: [round(part, 6) for part in pair] for name, pair in found.items()},
        "changed": int((predicted != head.predict(before)).sum()),
        "n_rows": len(predicted),
        "logit_error": error,
        "note": vectors.note,
    }


def _figures(
    vectors: Vectors, own: OwnTexts, predicted: NDArray[Any], matthews: bool
) -> dict[str, figures.Figure]:
    test = texts.similarity("test")
    A, B = vectors(test.first), vectors(test.second)
    entailed, paraphrases = texts.entailment_search(), texts.paraphrase_search()
    fitted, premises = vectors(own.fit), vectors(entailed.documents)
    foreign, second = vectors(texts.foreign_texts()), vectors(paraphrases.documents)
    asked = vectors(entailed.queries)
    found = {
        OWN_TASK: figures.agreement(own.labels, predicted, matthews),
        STSB: figures.similarity(A, B, test.scores),
        SEARCH: figures.reciprocal_rank(asked, premises, entailed.relevant, 10),
        PARAPHRASE: figures.reciprocal_rank(
            vectors(paraphrases.queries), second, paraphrases.relevant, 1
        ),
        SIGN_BITS: figures.one_bit(A, B, test.scores, 0.0),
        MEDIAN_BITS: figures.one_bit(A, B, test.scores, np.median(fitted, axis=0)),
        CLASSES: figures.same_class(vectors(own.inputs), own.labels),
        OUTLIERS: figures.outliers(vectors(own.singles), foreign, fitted),
        HUBNESS: figures.hubness(premises),
    }
    if vectors.index is not None:
        indexed = vectors.index(entailed.documents)
        found[INDEX] = figures.reciprocal_rank(asked, indexed, entailed.relevant, 10)
    return found


# --- the section ---------------------------------------------------------------------------------

SHOWN = (RAW, BEST_LAYER, OWN, UNTAUGHT, LAST, READOUT, TEACHER)  # of all classifiers
TOGETHER = (STSB, SEARCH, OUTLIERS, CLASSES)  # the figures of each cell of the second table
PROTOCOL = (
    "Vectors are inputs of the head, if nothing else is said, of single texts cut at 256 tokens; "
    "neighbours are exact, by cosine. Maps are fitted without labels on single training texts of "
    f"the task: all of CoLA's, {texts.MAX_OWN:,} of the other tasks. Texts that a column is "
    "evaluated on are left out, with the same spelling. The encoders were fine-tuned on all rows: "
    "16 of CoLA's dev sentences are also training sentences, and some of MRPC's training sentences "
    f"are in STS-B. sst2-minilm is all-MiniLM-L6-v2 after {EPOCHS} epochs on "
    f"{N_TRAINING['sst2_sentence']} training sentences of SST-2, phenomenon-12-minilm on "
    f"{N_TRAINING[MANY]} generated sentences of twelve classes. The teacher is all-MiniLM-L6-v2, "
    "from which the classifiers were fine-tuned, and for cola-l3 paraphrase-l3, which is no "
    "ancestor of cola-minilm. “with WikiText”: fitted to "
    f"{texts.MAX_MORE:,} of its sentences too, which are of the corpus of the outliers.",
    "own task: Matthews correlation on CoLA dev. "
    f"{STSB}: Spearman correlation of cosines with the scores of the 1,379 test pairs. "
    f"{SIGN_BITS} and {MEDIAN_BITS}: the same of codes of one bit a dimension (48 bytes), split at "
    f"0 or at the median of the task's texts. {SEARCH}: the 1,249 entailed hypotheses of RTE's "
    f"training split search its 2,379 distinct premises; {INDEX}: premises that the teacher has "
    f"embedded. {PARAPHRASE}: the first sentences of the 1,147 paraphrases of MRPC's test split "
    f"search the 1,135 distinct second ones. {CLASSES}: share of the ten nearest of the other "
    f"evaluated rows that have the same label. {OUTLIERS}: {texts.MAX_OUTLIERS} sentences of "
    "WikiText among the texts of the evaluated rows, by the mean distance to the ten nearest of "
    f"the task's texts. {HUBNESS}: skewness of the 10-occurrence among the premises; smaller is "
    "better. changed: predictions on the evaluated rows that differ from the checkpoint's. "
    "Logistic heads are standardised logistic regressions on the rows that the checkpoint was "
    f"fine-tuned on. The {BEST_LAYER} has the highest correlation of mean-pooled vectors on "
    f"{texts.LAYER_PAIRS} pairs of STS-B dev; layer 0 is the input of the first.",
)


def text(records: Sequence[Record]) -> str:
    """Return the table of the first classifier, that of all others, and how they were measured."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=lambda one: one["draw"]):
        found.setdefault((record["checkpoint"], record["vectors"]), []).append(record)
    own = {row: found[COLA.name, row][0] for row in ROWS}
    own |= {f"{READOUT}, {case.split(', ')[1]}": found[case, READOUT][0] for case in (MORE, OTHER)}
    others = [case for case in CASES if case not in (COLA.name, MORE, OTHER)]
    tables = (
        markdown_table([COLA.name, *COLUMNS, "changed"], [_line(*item) for item in own.items()]),
        markdown_table(
            [f"other classifiers: {' · '.join(TOGETHER)}", *SHOWN],
            [[case, *(_together(found.get((case, row))) for row in SHOWN)] for case in others],
        ),
    )
    points = "\n".join(f"- {point}" for point in (_certainty(found), *PROTOCOL))
    return "\n\n".join((*tables, points))


def _line(row: str, record: Record) -> list[str]:
    name = f"{row} ({record['note']})" if record["note"] else row
    return [name, *_values(record, COLUMNS), f"{record['changed']} of {record['n_rows']:,}"]


def _together(draws: Sequence[Record] | None) -> str:
    if draws is None:
        return ""
    note = draws[0]["note"]
    return " · ".join(_values(draws[0], TOGETHER)) + (f" ({note})" if note else "")


def _values(record: Record, columns: Sequence[str]) -> list[str]:
    pairs = (record["figures"].get(column) for column in columns)
    return ["" if pair is None else f"{pair[0]:.3f}" for pair in pairs]


def _certainty(found: Mapping[tuple[str, str], Sequence[Record]]) -> str:
    """Say how large the standard errors, the effect of the texts and the errors of logits are."""
    errors, spreads, logits = [], [], []
    for (_, row), draws in found.items():
        logits += [draw["logit_error"] for draw in draws if draw["logit_error"] is not None]
        for column in set(draws[0]["figures"]) - {HUBNESS}:
            errors.append(draws[0]["figures"][column][1])
            if row in (OWN, READOUT):
                spreads.append(np.ptp([draw["figures"][column][0] for draw in draws]))
    return (
        f"Standard errors, by 200 bootstrap samples of the rows, pairs or queries, are at most "
        f"{max(errors):.3f}, except those of the hubness. In {DRAWS - 1} fits to {SHARE:.0%} of "
        f"the texts, {OWN} and {READOUT} differ by at most {max(spreads):.3f}. Logits of heads "
        f"from the checkpoint differ by at most {max(logits):.0e} of the largest."
    )

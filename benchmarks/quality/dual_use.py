"""Vectors of classifiers used for similarity and search: maps of the vectors of four checkpoints.

Each text is encoded once for each checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, matthews_corrcoef, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._data import Floats
from benchmarks._markdown import markdown_table
from benchmarks._places import FOLDER
from benchmarks.quality import Cells, Record, _texts as texts
from benchmarks.quality._adapter_rows import measured_with, yes
from benchmarks.quality._checkpoints import (
    CHECKPOINTS,
    EPOCHS,
    LAYERS,
    MANY,
    N_TRAINING,
    Checkpoint,
    cached_vectors,
    layer_name,
)
from benchmarks.quality._texts import OwnTexts
from isoadapt import AllButTheTop, LinearHead, LogitPreservingWhitening, Whitening, load_checkpoint
from isoadapt.datasets import minilm_folder
from isoadapt.geometry._neighbours import nearest_neighbours, neighbour_counts
from isoadapt.metrics import similarity_correlation

SECTION = "dual-use"
RECORDS = FOLDER / "quality" / "results" / "dual_use.jsonl"
KEY = ("checkpoint", "vectors")

OWN_TASK, STSB, SEARCH, PARAPHRASE = "own task", "STS-B", "RTE MRR@10", "MRPC recall@1"
CLASSES, OUTLIERS, HUBNESS = "same class, precision@10", "outliers, AUROC", "hubness"
SIGN_BITS, MEDIAN_BITS = "1 bit, sign", "1 bit, median"
COLUMNS = (
    OWN_TASK,
    STSB,
    SEARCH,
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
BEFORE = "encoder before fine-tuning, logistic head"

# --- the rows: maps of the vectors, and the head that reads them ---------------------------------


@dataclass(frozen=True)
class Vectors:
    """Vectors of a row of the table, and the classifier that is applied to them."""

    embed: Callable[[Sequence[Any]], Floats]
    head: Any  # has predict
    map: Callable[[Floats], Floats] = lambda X: X
    logits: Callable[[Floats], Floats] | None = None  # where the head comes from the checkpoint
    note: str = ""

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


def best_layer(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the mean-pooled layer with the highest similarity correlation on STS-B dev pairs."""
    dev = texts.similarity("dev")
    layers = [partial(checkpoint.vectors, pooling=layer_name(i)) for i in range(LAYERS + 1)]
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


def preserving(checkpoint: Checkpoint, head: LinearHead, fit: Sequence[str]) -> Vectors:
    """Return whitened vectors with the same head; the map is fitted on the given texts."""
    adapter = LogitPreservingWhitening(head=head).fit(checkpoint.vectors(fit))
    return Vectors(checkpoint.vectors, head, adapter.transform, head.outputs)


def encoder(checkpoint: Checkpoint, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the sentence embeddings of the encoder before fine-tuning, with a logistic head."""

    def embed(inputs: Sequence[Any]) -> Floats:
        layer = layer_name(LAYERS)
        vectors = cached_vectors(minilm_folder(), "all-MiniLM-L6-v2", inputs, layer)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return Vectors(embed, _logistic(embed, own))


ROWS: Mapping[str, Callable[[Checkpoint, LinearHead, OwnTexts], Vectors]] = {
    RAW: raw,
    "centred": centred,
    BEST_LAYER: best_layer,
    "Whitening, head W A⁻¹": whitening,
    "AllButTheTop, logistic head": all_but_the_top,
    OWN: lambda checkpoint, head, own: preserving(checkpoint, head, own.fit),
    "LogitPreservingWhitening, STS-B texts": lambda checkpoint, head, own: preserving(
        checkpoint, head, [text for text in texts.target_texts() if text not in set(own.singles)]
    ),
    BEFORE: encoder,
}

# --- the columns: figures with their bootstrap standard errors -----------------------------------

Figure = tuple[float, float]  # a value and its standard error
Numbers = NDArray[np.int64]


def bootstrapped(figure: Callable[[Numbers], float], n: int, draws: int = 200) -> Figure:
    """Return a figure of all n items, and its standard deviation over samples of the items."""
    rng = np.random.default_rng(0)
    samples = [figure(rng.integers(n, size=n)) for _ in range(draws)]
    return float(figure(np.arange(n))), float(np.nanstd(samples, ddof=1))


def similarity(A: Floats, B: Floats, scores: Floats) -> Figure:
    """Spearman correlation of the cosines of pairs with their scores; samples of pairs."""
    return bootstrapped(
        lambda rows: similarity_correlation(A[rows], B[rows], scores[rows]), len(scores)
    )


def one_bit(A: Floats, B: Floats, scores: Floats, thresholds: Floats | float) -> Figure:
    """As `similarity`, of codes that are 1 where a coordinate exceeds its threshold, else -1."""
    return similarity(*(np.where(np.greater(X, thresholds), 1.0, -1.0) for X in (A, B)), scores)


def reciprocal_rank(queries: Floats, documents: Floats, relevant: Numbers, k: int) -> Figure:
    """Mean reciprocal rank within the first k documents by cosine; samples of queries."""
    hits = _neighbours(documents, k, queries)[1] == relevant[:, None]
    return _mean(np.where(hits.any(axis=1), 1 / (1.0 + hits.argmax(axis=1)), 0.0))


def same_class(X: Floats, labels: NDArray[Any]) -> Figure:
    """Mean share of the ten nearest other rows by cosine that have the same label."""
    return _mean((labels[_neighbours(X, 10)[1]] == labels[:, None]).mean(axis=1))


def outliers(inside: Floats, outside: Floats, reference: Floats) -> Figure:
    """AUROC of the mean cosine distance to the ten nearest reference rows; samples of rows."""
    rows = np.concatenate([inside, outside])
    far = _neighbours(reference, 10, rows)[0].mean(axis=1)
    foreign = np.arange(len(rows)) >= len(inside)
    return bootstrapped(lambda part: roc_auc_score(foreign[part], far[part]), len(rows))


def hubness(X: Floats) -> Figure:
    """Skewness of the 10-occurrence by cosine; samples of the occurrences of the rows."""
    counts = neighbour_counts(torch.from_numpy(_neighbours(X, 10)[1]), len(X)).numpy()

    def skewness(rows: Numbers) -> float:
        deviations = counts[rows] - counts[rows].mean()
        return float((deviations**3).mean() / (deviations**2).mean() ** 1.5)

    return bootstrapped(skewness, len(X))


def agreement(labels: NDArray[Any], predicted: NDArray[Any], matthews: bool) -> Figure:
    """Accuracy or Matthews correlation of predictions; samples of rows."""
    score = matthews_corrcoef if matthews else accuracy_score
    return bootstrapped(lambda rows: score(labels[rows], predicted[rows]), len(labels))


def _mean(items: Floats) -> Figure:
    return bootstrapped(lambda rows: items[rows].mean(), len(items))


def _neighbours(X: Floats, k: int, queries: Floats | None = None) -> tuple[Floats, Numbers]:
    """Return the cosine distances and the numbers of the k nearest rows."""
    points, asked = (
        None if rows is None else torch.from_numpy(np.asarray(rows, np.float64))
        for rows in (X, queries)
    )
    distances, numbers = nearest_neighbours(points, k, queries=asked)
    return distances.numpy(), numbers.numpy()


# --- the cells -----------------------------------------------------------------------------------


def cells() -> Cells:
    """Yield the figures of each kind of vectors of each checkpoint."""
    for checkpoint in CHECKPOINTS.values():
        for row in ROWS:
            yield (checkpoint.name, row), partial(measure_cell, checkpoint, row)


def measure_cell(checkpoint: Checkpoint, row: str) -> dict[str, Any]:
    """Fit the map of a row and compute all its figures."""
    own, (_, head) = texts.own_texts(checkpoint.task), load_checkpoint(checkpoint.folder())
    vectors = ROWS[row](checkpoint, head, own)
    mapped, before = vectors(own.inputs), checkpoint.vectors(own.inputs)
    logits, error = head.outputs(before), None
    if vectors.logits is not None:
        error = float(np.abs(vectors.logits(mapped) - logits).max() / np.abs(logits).max())
    predicted = vectors.head.predict(mapped)
    figures = _figures(vectors, own, predicted, matthews=checkpoint.task == "cola")
    return {
        "figures": {name: [round(part, 4) for part in pair] for name, pair in figures.items()},
        "changed": int((predicted != head.predict(before)).sum()),
        "n_rows": len(predicted),
        "logit_error": error,
        "note": vectors.note,
    }


def _figures(
    vectors: Vectors, own: OwnTexts, predicted: NDArray[Any], matthews: bool
) -> dict[str, Figure]:
    test = texts.similarity("test")
    A, B = vectors(test.first), vectors(test.second)
    entailed, paraphrases = texts.entailment_search(), texts.paraphrase_search()
    fitted, premises = vectors(own.fit), vectors(entailed.documents)
    foreign, second = vectors(texts.foreign_texts()), vectors(paraphrases.documents)
    return {
        OWN_TASK: agreement(own.labels, predicted, matthews),
        STSB: similarity(A, B, test.scores),
        SEARCH: reciprocal_rank(vectors(entailed.queries), premises, entailed.relevant, 10),
        PARAPHRASE: reciprocal_rank(vectors(paraphrases.queries), second, paraphrases.relevant, 1),
        SIGN_BITS: one_bit(A, B, test.scores, 0.0),
        MEDIAN_BITS: one_bit(A, B, test.scores, np.median(fitted, axis=0)),
        CLASSES: same_class(vectors(own.inputs), own.labels),
        OUTLIERS: outliers(vectors(own.singles), foreign, fitted),
        HUBNESS: hubness(premises),
    }


# --- the section ---------------------------------------------------------------------------------

TARGETS = (
    ("cola-minilm", STSB, 0.70),
    ("cola-minilm", SEARCH, 0.68),
    ("cola-minilm", SIGN_BITS, 0.68),
    ("mrpc-minilm", SEARCH, 0.58),
)
PROTOCOL = (
    "Vectors are inputs of the head, of single texts cut at 256 tokens; neighbours are exact, by "
    "cosine. ± is the standard error of 200 bootstrap samples of the rows, pairs or queries of the "
    "column; the maps are not fitted again. “own task”: Matthews correlation on CoLA dev, else "
    f"accuracy on MRPC dev, SST-2 dev, or {texts.MAX_ROWS:,} generated sentences of other words.",
    "cola-minilm and mrpc-minilm are trained fully. sst2-minilm is all-MiniLM-L6-v2 after "
    f"{EPOCHS} epochs on {N_TRAINING['sst2_sentence']} training sentences of SST-2, and "
    f"phenomenon-12-minilm after {EPOCHS} epochs on {N_TRAINING[MANY]} generated sentences of "
    "twelve classes; both are far from what all training rows would give.",
    "Maps are fitted without labels on single training texts of the task: all of CoLA's, "
    f"{texts.MAX_OWN:,} of the other tasks; “STS-B texts” are {texts.MAX_TARGET:,} training texts "
    "of STS-B. Texts that a column is evaluated on are left out, with the same spelling. The "
    "encoders were fine-tuned on all rows: 16 of CoLA's dev sentences are also training sentences, "
    "and some of MRPC's training sentences are in STS-B.",
    "Logistic heads are standardised logistic regressions on the rows that the checkpoint was "
    f"fine-tuned on: all of CoLA's, {texts.MAX_PAIRS:,} of MRPC's pairs, whose vectors are of "
    f"joined pairs. The {BEST_LAYER} has the highest correlation of mean-pooled vectors on "
    f"{texts.LAYER_PAIRS} pairs of STS-B dev; layer 0 is the input of the first.",
    f"{STSB}: Spearman correlation of cosines with the scores of the 1,379 test pairs. "
    f"{SIGN_BITS} and {MEDIAN_BITS}: the same of codes of one bit a dimension (48 bytes), split at "
    f"0 or at the median of the texts that the maps are fitted on. {SEARCH}: the 1,249 entailed "
    "hypotheses of RTE's training split search its 2,379 distinct premises. "
    f"{PARAPHRASE}: the first sentences of the 1,147 paraphrases of MRPC's test split search the "
    "1,135 distinct second ones.",
    f"{CLASSES}: share of the ten nearest of the other evaluated rows that have the same label. "
    f"{OUTLIERS}: {texts.MAX_OUTLIERS} sentences of WikiText among the texts of the evaluated "
    "rows, by the mean distance to the ten nearest of the texts that the maps are fitted on. "
    f"{HUBNESS}: skewness of the 10-occurrence among the premises; smaller is better.",
    "changed: predictions on the evaluated rows that differ from the checkpoint's. logits: largest "
    "difference from the checkpoint's logits, relative to the largest logit, for float32 vectors.",
)


def text(records: Sequence[Record]) -> str:
    """Return the table, the targets and how it was measured."""
    header = ["checkpoint", "vectors", *COLUMNS, "changed", "logits"]
    order = [key for key, _ in cells()]
    ordered = sorted(records, key=lambda cell: order.index((cell["checkpoint"], cell["vectors"])))
    points = "\n".join(f"- {point}" for point in (*_targets(ordered), *PROTOCOL))
    settings = measured_with(cell["setting"] for cell in records if "setting" in cell)
    parts = (markdown_table(header, [_line(cell) for cell in ordered]), points, settings)
    return "\n\n".join(part for part in parts if part)


def _line(cell: Record) -> list[str]:
    figures = ["{:.3f} ± {:.3f}".format(*cell["figures"][column]) for column in COLUMNS]
    error = "" if cell["logit_error"] is None else f"{cell['logit_error']:.0e}"
    name = f"{cell['vectors']} ({cell['note']})" if cell["note"] else cell["vectors"]
    changed = f"{cell['changed']} of {cell['n_rows']:,}"
    return [cell["checkpoint"], name, *figures, changed, error]


def _targets(records: Sequence[Record]) -> list[str]:
    """Return a line for each target, where its cells were measured."""
    table = {(cell["checkpoint"], cell["vectors"]): cell for cell in records}
    lines = []
    for name, column, least in TARGETS:
        if (name, OWN) in table and (name, RAW) in table:
            after, before = (table[name, row]["figures"][column][0] for row in (OWN, RAW))
            lines.append(
                f"{name}, {column}, at least {least:.2f} by {OWN}: {yes(after >= least)} "
                f"({before:.3f} → {after:.3f})"
            )
    if ("cola-minilm", OWN) in table and ("cola-minilm", BEST_LAYER) in table:
        after, layer = (table["cola-minilm", row]["figures"][STSB][0] for row in (OWN, BEST_LAYER))
        lines.append(
            f"cola-minilm, {STSB}, at least 0.12 above the {BEST_LAYER}: "
            f"{yes(after - layer >= 0.12)} ({after - layer:+.3f})"
        )
    kept = [
        not cell["changed"] and cell["logit_error"] <= 1e-5
        for (_, row), cell in table.items()
        if row == OWN
    ]
    if kept:
        lines.append(f"no prediction changed and logits to 1e-05 by {OWN}: {yes(all(kept))}")
    return lines

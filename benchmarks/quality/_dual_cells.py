"""Cells of the table on vectors of classifiers: one for each checkpoint and kind of vectors."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._data import shared_folder
from benchmarks._store import CellStore
from benchmarks.quality import _dual_measures as measure, _dual_texts as texts
from benchmarks.quality._checkpoints import (
    EPOCHS,
    MANY,
    RECIPES,
    checkpoint_folder,
    obtain_checkpoint,
)
from benchmarks.quality._dual_measures import Figure
from benchmarks.quality._dual_rows import ROWS, Embedder, Vectors
from isoadapt import load_checkpoint

PROTOCOL = 1  # raise it when a figure is computed in another way

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


class Key(NamedTuple):
    """What a cell depends on; `data` is a digest of weights, recipe, texts and protocol."""

    checkpoint: str
    vectors: str
    data: str


class Cell(NamedTuple):
    """Figures of one kind of vectors of one checkpoint."""

    figures: Mapping[str, Figure]
    changed: int  # predictions on the evaluated rows that differ from those of the checkpoint
    n_rows: int
    logit_error: float | None  # largest difference of logits, relative to the largest logit
    note: str


@dataclass(frozen=True)
class Checkpoint:
    """A classifier of the table; `epochs` is None for one of the shared models."""

    name: str
    task: str
    epochs: int | None = None

    def folder(self) -> Path:
        """Return its folder, after fine-tuning it if it is missing."""
        if self.epochs is None:
            return shared_folder() / "models" / self.name
        return obtain_checkpoint(RECIPES[self.task], self.epochs)

    def identity(self) -> str:
        """Return a name that changes with the weights."""
        if self.epochs is not None:
            return "/".join(checkpoint_folder(RECIPES[self.task], self.epochs).parts[-2:])
        weights = self.folder() / "model.safetensors"
        with weights.open("rb") as file:
            return f"{self.name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"

    def own_texts(self) -> texts.OwnTexts:
        """Return the texts of its task."""
        return texts.own_texts(self.task, self.epochs is not None)

    def embedder(self) -> Embedder:
        """Return its head's input as a function of texts."""
        return Embedder(self.folder(), self.identity())


CHECKPOINTS = {
    checkpoint.name: checkpoint
    for checkpoint in (
        Checkpoint("cola-minilm", "cola"),
        Checkpoint("mrpc-minilm", "mrpc"),
        Checkpoint("sst2-minilm", "sst2_sentence", max(EPOCHS)),
        Checkpoint("phenomenon-12-minilm", MANY, max(EPOCHS)),
    )
}

Cells = CellStore[Key, Cell]


def cell_store(path: Path, fresh: bool = False) -> Cells:
    """Open a file of cells."""
    return CellStore(path, _parse, fresh)


def _parse(line: Mapping[str, Any]) -> tuple[Key, Cell]:
    fields = dict(line)
    key = Key(*(fields.pop(name) for name in Key._fields))
    figures = {name: Figure(*pair) for name, pair in fields.pop("figures").items()}
    return key, Cell(figures, **fields)


def cell_line(key: Key, cell: Cell) -> dict[str, Any]:
    """Return the entry of a cell in the file."""
    return {**key._asdict(), **cell._asdict()}


def cell_key(checkpoint: Checkpoint, vectors: str) -> Key:
    """Return the key of a cell, without loading a model."""
    own = checkpoint.own_texts()
    content: list[Any] = [
        PROTOCOL,
        checkpoint.identity(),
        [own.fit, own.train_inputs, own.train_labels.tolist(), own.inputs, own.labels.tolist()],
        *(texts.similarity(split).first for split in ("dev", "test")),
        texts.target_texts(),
        *(search().queries for search in (texts.entailment_search, texts.paraphrase_search)),
        texts.foreign_texts(),
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]
    return Key(checkpoint.name, vectors, digest)


def measure_cell(checkpoint: Checkpoint, row: str) -> Cell:
    """Fit the map of a row and compute all its figures."""
    folder, own = checkpoint.folder(), checkpoint.own_texts()
    _, head = load_checkpoint(folder, device="cpu")
    embed = checkpoint.embedder()
    vectors = ROWS[row](embed, head, own)
    mapped = vectors(own.inputs)
    predicted = vectors.head.predict(mapped)
    logits = head.outputs(embed(own.inputs))
    error = None
    if vectors.logits is not None:
        error = float(np.abs(vectors.logits(mapped) - logits).max() / np.abs(logits).max())
    return Cell(
        {
            name: Figure(*(round(float(part), 4) for part in figure()))
            for name, figure in _figures(vectors, own, checkpoint.task).items()
        },
        changed=int((predicted != head.predict(embed(own.inputs))).sum()),
        n_rows=len(predicted),
        logit_error=error,
        note=vectors.note,
    )


def _figures(vectors: Vectors, own: texts.OwnTexts, task: str) -> dict[str, Callable[[], Figure]]:
    test = texts.similarity("test")
    A, B = vectors(test.first), vectors(test.second)
    entailment, paraphrases = texts.entailment_search(), texts.paraphrase_search()
    fitted, inputs = vectors(own.fit), vectors(own.inputs)
    premises = vectors(entailment.documents)
    return {
        OWN_TASK: lambda: measure.agreement(
            own.labels, vectors.head.predict(inputs), task == "cola"
        ),
        STSB: lambda: measure.similarity(A, B, test.scores),
        SEARCH: lambda: measure.reciprocal_rank(
            vectors(entailment.queries), premises, entailment.relevant
        ),
        PARAPHRASE: lambda: measure.first_hit(
            vectors(paraphrases.queries), vectors(paraphrases.documents), paraphrases.relevant
        ),
        SIGN_BITS: lambda: measure.one_bit(A, B, test.scores, 0.0),
        MEDIAN_BITS: lambda: measure.one_bit(A, B, test.scores, np.median(fitted, axis=0)),
        CLASSES: lambda: measure.same_class(inputs, own.labels),
        OUTLIERS: lambda: measure.outliers(
            vectors(own.singles), vectors(texts.foreign_texts()), fitted
        ),
        HUBNESS: lambda: measure.hubness(premises),
    }

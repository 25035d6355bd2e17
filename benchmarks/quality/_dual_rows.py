"""The vectors of the table on classifiers: maps of the vectors of a checkpoint, and its head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._data import Floats
from benchmarks.quality import _dual_measures as measure, _dual_texts as texts
from benchmarks.quality._dual_texts import OwnTexts
from benchmarks.quality._layer_vectors import HEAD_INPUT, cached_vectors, layer_name
from isoadapt import AllButTheTop, LinearHead, LogitPreservingWhitening, Whitening
from isoadapt.datasets import minilm_folder

ENCODER = "all-MiniLM-L6-v2"
LAYERS = 6

Map = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Embedder:
    """Vectors of one pooling of a checkpoint; the name changes with its weights."""

    folder: Path
    name: str
    pooling: str = HEAD_INPUT
    normalise: bool = False

    def __call__(self, inputs: Sequence[Any]) -> Floats:
        vectors = cached_vectors(self.folder, self.name, inputs, self.pooling)
        if self.normalise:
            return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


@dataclass(frozen=True)
class Vectors:
    """Vectors of a row of the table, and the classifier that is applied to them."""

    embed: Embedder
    map: Map
    head: Any  # has predict
    logits: Map | None = None  # of the mapped vectors, where the head comes from the checkpoint
    note: str = ""

    def __call__(self, inputs: Sequence[Any]) -> Floats:
        return self.map(self.embed(inputs))


def _same(X: Floats) -> Floats:
    return X


def _logistic(vectors: Callable[[Sequence[Any]], Floats], own: OwnTexts) -> Any:
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=3000))
    return model.fit(vectors(own.train_inputs), own.train_labels)


def raw(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the head's input as it is."""
    return Vectors(embed, _same, head, head.outputs)


def centred(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the head's input minus its mean, with the intercept that keeps the logits."""
    mean = embed(own.fit).mean(axis=0, dtype=np.float64)
    moved = _moved(head, head.coef_, head.intercept_ + head.coef_ @ mean)
    return Vectors(embed, lambda X: X - mean, moved, moved.outputs)


def best_layer(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the mean-pooled layer with the highest similarity correlation on STS-B dev pairs."""
    dev = texts.similarity("dev")
    candidates = [Embedder(embed.folder, embed.name, layer_name(i)) for i in range(LAYERS + 1)]
    scores = [
        measure.similarity_correlation(one(dev.first), one(dev.second), dev.scores)
        for one in candidates
    ]
    layer = int(np.argmax(scores))
    chosen = candidates[layer]
    return Vectors(chosen, _same, _logistic(chosen, own), note=f"layer {layer}")


def whitening(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened vectors z = A(h - μ), with the head W A⁻¹ that keeps the logits."""
    adapter = Whitening(shrinkage="oas").fit(embed(own.fit))
    inverse = np.linalg.inv(adapter.map_.matrix)
    coef = head.coef_ @ inverse
    moved = _moved(head, coef, head.intercept_ - coef @ adapter.map_.offset)
    return Vectors(embed, adapter.transform, moved, moved.outputs)


def all_but_the_top(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the vectors without their leading directions, with a logistic head."""
    adapter = AllButTheTop().fit(embed(own.fit))
    return Vectors(
        embed, adapter.transform, _logistic(lambda inputs: adapter.transform(embed(inputs)), own)
    )


def preserving(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened vectors with the same head; the map is fitted on texts of the task."""
    return _preserving(embed, head, own.fit)


def preserving_target(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return whitened vectors with the same head; the map is fitted on STS-B training texts."""
    judged = set(own.singles)
    return _preserving(embed, head, [text for text in texts.target_texts() if text not in judged])


def encoder(embed: Embedder, head: LinearHead, own: OwnTexts) -> Vectors:
    """Return the sentence embeddings of the encoder before fine-tuning, with a logistic head."""
    before = Embedder(minilm_folder(), ENCODER, layer_name(LAYERS), normalise=True)
    return Vectors(before, _same, _logistic(before, own))


def _preserving(embed: Embedder, head: LinearHead, fit: Sequence[str]) -> Vectors:
    adapter = LogitPreservingWhitening(head=head).fit(embed(fit))
    return Vectors(embed, adapter.transform, head, head.outputs)


def _moved(head: LinearHead, coef: Floats, intercept: NDArray[Any]) -> LinearHead:
    return LinearHead(coef, intercept, head.classes_)


OWN = "LogitPreservingWhitening, own texts"
RAW = "raw"
BEST_LAYER = "best raw layer"
BEFORE = "encoder before fine-tuning, logistic head"
ROWS: Mapping[str, Callable[[Embedder, LinearHead, OwnTexts], Vectors]] = {
    RAW: raw,
    "centred": centred,
    BEST_LAYER: best_layer,
    "Whitening, head W A⁻¹": whitening,
    "AllButTheTop, logistic head": all_but_the_top,
    OWN: preserving,
    "LogitPreservingWhitening, STS-B texts": preserving_target,
    BEFORE: encoder,
}

"""Cases for advice on whitening: figures of vectors without labels, and what whitening changes."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._data import Floats
from benchmarks._store import CellStore
from benchmarks.quality import _dual_texts as texts
from benchmarks.quality._checkpoints import RECIPES, checkpoint_folder, finetune, training_rows
from benchmarks.quality._dual_cells import CHECKPOINTS, Checkpoint
from benchmarks.quality._dual_rows import ENCODER, LAYERS, Embedder
from benchmarks.quality._layer_vectors import CLS, HEAD_INPUT, layer_name
from isoadapt import Whitening
from isoadapt.datasets import minilm_folder
from isoadapt.metrics import isotropy_report, similarity_correlation

PROTOCOL = 1  # raise it when a figure is computed in another way
MAX_TEXTS = 1000  # training texts of a task
POOLINGS = (HEAD_INPUT, CLS, layer_name(LAYERS), layer_name(4), layer_name(2))
FIGURES = (
    "isoscore_corrected",
    "ev1",
    "ev3",
    "anisotropy1",
    "mean_cosine",
    "effective_rank_share",
    "hubness",
    "antihub_share",
    "two_nn",
    "partition_isotropy",
)


class Key(NamedTuple):
    """What a case depends on; `data` is a digest of weights, texts and protocol."""

    task: str
    checkpoint: str
    pooling: str
    normalised: bool
    data: str


class Outcome(NamedTuple):
    """Figures of the training texts' vectors, and the STS-B correlation with and without a map."""

    task: str
    figures: Mapping[str, float]
    before: float
    after: float

    @property
    def gains(self) -> bool:
        """Whether whitening raises the correlation."""
        return self.after > self.before


@dataclass(frozen=True)
class Case:
    """Vectors of one pooling of one checkpoint, normalised to unit length or not."""

    task: str
    checkpoint: str
    embed: Embedder

    def key(self) -> Key:
        """Return the key of the case, without loading a model."""
        test = texts.similarity("test")
        content = [PROTOCOL, self.embed.name, task_texts(self.task), test.first, test.second]
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:20]
        return Key(self.task, self.checkpoint, self.embed.pooling, self.embed.normalise, digest)


Outcomes = CellStore[Key, Outcome]


def outcome_store(path: Path, fresh: bool = False) -> Outcomes:
    """Open a file of outcomes."""
    return CellStore(path, _parse, fresh)


def _parse(line: Mapping[str, Any]) -> tuple[Key, Outcome]:
    key = Key(*(line[name] for name in Key._fields))
    return key, Outcome(**{name: line[name] for name in Outcome._fields})


def outcome_line(key: Key, outcome: Outcome) -> dict[str, Any]:
    """Return the entry of an outcome in the file."""
    return {**key._asdict(), **outcome._asdict()}


def task_texts(task: str) -> list[str]:
    """Return single training texts of a task, without those of the STS-B test split."""
    test = texts.similarity("test")
    excluded = {*test.first, *test.second}
    found = [text for text in texts.singles(list(training_rows(task)[0])) if text not in excluded]
    return texts.drawn(found, MAX_TEXTS)


def all_cases(tasks: Sequence[str], epochs: Sequence[int]) -> Iterator[Case]:
    """Yield the cases of tasks and epochs, and of shared checkpoints; 0 epochs is the encoder."""
    for name, task, folder, identity in _checkpoints(tasks, epochs):
        for pooling in POOLINGS:
            for normalise in (False, True):
                yield Case(task, name, Embedder(folder, identity, pooling, normalise))


def _checkpoints(
    tasks: Sequence[str], epochs: Sequence[int]
) -> Iterator[tuple[str, str, Path, str]]:
    for checkpoint in CHECKPOINTS.values():
        if checkpoint.epochs is None and checkpoint.task in tasks:
            yield checkpoint.name, checkpoint.task, checkpoint.folder(), checkpoint.identity()
    for task in tasks:
        for epoch in epochs:
            name = "1 epoch" if epoch == 1 else f"{epoch} epochs"
            if epoch == 0:
                yield name, task, minilm_folder(), ENCODER
            else:
                folder = checkpoint_folder(RECIPES[task], epoch)
                yield name, task, folder, Checkpoint(task, task, epoch).identity()


def measure_case(case: Case) -> Outcome:
    """Describe the training texts' vectors, whiten them, and judge the map on STS-B test.

    A checkpoint that is missing is fine-tuned first.
    """
    if not case.embed.folder.exists():
        finetune(RECIPES[case.task])
    own = case.embed(task_texts(case.task))
    test = texts.similarity("test")
    A, B = case.embed(test.first), case.embed(test.second)
    adapter = Whitening(shrinkage="oas").fit(own)
    after = similarity_correlation(adapter.transform(A), adapter.transform(B), test.scores)
    before = similarity_correlation(A, B, test.scores)
    return Outcome(case.task, describe(own), round(before, 4), round(after, 4))


def describe(X: Floats) -> dict[str, float]:
    """Return the figures that a rule may use."""
    with warnings.catch_warnings():  # fewer rows than 3 × features
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        report = isotropy_report(X)
    named = {**report.to_dict(), "effective_rank_share": report.effective_rank / X.shape[1]}
    return {name: float(f"{named[name]:.6g}") for name in FIGURES}

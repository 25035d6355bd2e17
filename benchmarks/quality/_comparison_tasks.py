"""Comparisons of adapters on stored embeddings, judged on rows that the encoder has not seen."""

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import Floats, load_embeddings, load_unseen
from benchmarks._store import CellStore
from benchmarks.quality import _dual_texts as texts
from benchmarks.quality._checkpoints import FOLDER
from benchmarks.quality._dual_cells import CHECKPOINTS
from isoadapt import LinearHead
from isoadapt.model_selection import Comparison, compare_adapters

PROTOCOL = 1  # raise it when a figure is computed in another way
SEED = 0

CACHE = FOLDER / "comparison"
ENCODERS = {"cola": "cola-minilm", "mrpc": "mrpc-minilm"}
RUNS = (
    ("cola", "all"),
    ("cola", "fast"),
    ("mrpc", "fast"),
    ("rte", "fast"),
    ("sst2_sentence", "fast"),
)

_KEPT = (
    "use",
    "adapter",
    "kind",
    "score",
    "ci_low",
    "ci_high",
    "difference",
    "difference_low",
    "difference_high",
    "p_holm",
    "control",
    "control_difference",
    "control_p_holm",
    "isoscore_corrected",
    "changed_predictions",
    "n_predictions",
    "fit_seconds",
)

Pairs = tuple[Floats, Floats, Floats]


class Key(NamedTuple):
    """What a comparison depends on; `data` is a digest of the data and the protocol."""

    task: str
    adapters: str
    data: str


class Compared(NamedTuple):
    """The table and the verdict of a comparison, and how long it took.

    `resumed` says that fits of an earlier call were read, whose seconds are missing.
    """

    task: str
    adapters: str
    rows: list[dict[str, Any]]
    verdict: Mapping[str, str]
    notes: list[str]
    n_train: int
    n_judged: int
    n_pairs: int
    seconds: float
    cpu_seconds: float
    resumed: bool


class TaskData(NamedTuple):
    """Training rows of a task, judged rows, its head, and pairs of STS-B where there are any."""

    X: Floats
    y: NDArray[Any]
    X_test: Floats
    y_test: NDArray[Any]
    head: LinearHead
    pairs: Pairs | None

    def digest(self) -> str:
        """Return a digest of all arrays and of the protocol."""
        arrays = [*self[:4], self.head.coef_, self.head.intercept_, *(self.pairs or ())]
        digest = hashlib.sha256(f"{PROTOCOL} {SEED}".encode())
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:20]


Cells = CellStore[Key, Compared]


def cell_store(path: Path, fresh: bool = False) -> Cells:
    """Open a file of comparisons."""
    return CellStore(path, _parse, fresh)


def _parse(line: Mapping[str, Any]) -> tuple[Key, Compared]:
    fields = dict(line)
    key = Key(fields["task"], fields["adapters"], fields.pop("data"))
    return key, Compared(**fields)


def cell_line(key: Key, found: Compared) -> dict[str, Any]:
    """Return the entry of a comparison in the file."""
    return {**found._asdict(), "data": key.data}


def task_data(task: str) -> TaskData:
    """Read the rows of a task, and encode the pairs of STS-B unless they are in build/."""
    stored, unseen = load_embeddings(task), load_unseen(task)
    pairs = None
    if task in ENCODERS:
        embed, test = CHECKPOINTS[ENCODERS[task]].embedder(), texts.similarity("test")
        pairs = embed(test.first), embed(test.second), test.scores
    return TaskData(stored.X_train, stored.y_train, unseen.X, unseen.y, stored.head, pairs)


def measure_task(task: str, adapters: str, data: TaskData, cache: Path | None = None) -> Compared:
    """Compare adapters and take the time of this process."""
    resumed = cache is not None and cache.exists() and any(cache.iterdir())
    wall, cpu = time.perf_counter(), time.process_time()
    found = compare_adapters(
        data.X,
        data.y,
        adapters,
        head=data.head,
        X_test=data.X_test,
        y_test=data.y_test,
        encoder_saw=True,
        pairs=data.pairs,
        random_state=SEED,
        cache=cache,
    )
    return Compared(
        task,
        adapters,
        kept_rows(found),
        {use: found.verdict(use) for use in found.uses},
        found.notes,
        len(data.X),
        len(data.X_test),
        0 if data.pairs is None else len(data.pairs[2]),
        round(time.perf_counter() - wall, 1),
        round(time.process_time() - cpu, 1),
        resumed,
    )


def kept_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the columns of the table that are reported, rounded; NaN becomes None."""
    return [{name: _rounded(row[name]) for name in _KEPT} for row in comparison.to_dict()["rows"]]


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value

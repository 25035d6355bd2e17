"""What `compare_adapters` finds on stored embeddings, judged on rows the encoder has not seen."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks._data import load_embeddings, load_unseen
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS
from isoadapt.model_selection import Similarity, compare_adapters

SECTION = "comparison"
RECORDS = RECORDS_FOLDER / "comparison_tasks.jsonl"
KEY = ("task", "adapters")
RUNS = (
    ("cola", "all"),
    ("mrpc", "fast"),
    ("rte", "fast"),
    ("sst2_sentence", "fast"),
)
ENCODERS = {"cola": "cola-minilm", "mrpc": "mrpc-minilm"}
PROTOCOL = (
    "Stored embeddings: adapters are fitted to the training rows, on which the encoder was "
    "fine-tuned, and judged on the rows of dev (for MRPC and SST-2 dev and test) that are no "
    "copies of training rows. The head is that of the checkpoint. Similarity: the 1,379 test pairs "
    "of STS-B, each text embedded alone; some of MRPC's training sentences occur in them. The "
    "scores, intervals and p-values of each adapter are in the records. Seconds are those of one "
    "process with one thread."
)


def cells() -> Cells:
    """Yield a comparison for each task and choice of adapters."""
    for task, adapters in RUNS:
        yield (task, adapters), partial(measure, task, adapters)


def measure(task: str, adapters: str) -> dict[str, Any]:
    """Compare adapters and take the time of this process."""
    stored, (_, X_test, y_test) = load_embeddings(task), load_unseen(task)
    uses = []
    if task in ENCODERS:
        embed, test = CHECKPOINTS[ENCODERS[task]].vectors, texts.similarity("test")
        uses.append(Similarity(embed(test.first), embed(test.second), test.scores))
    begun = time.perf_counter()
    found = compare_adapters(
        stored.X_train,
        stored.y_train,
        adapters,
        head=stored.head,
        X_test=X_test,
        y_test=y_test,
        encoder_saw=True,
        uses=uses,
        random_state=0,
    )
    rows = found.to_dict()["rows"]
    return {
        "rows": [{name: _rounded(value) for name, value in row.items()} for row in rows],
        "verdict": {use: found.verdict(use) for use in found.uses},
        "n_train": len(stored.X_train),
        "n_judged": len(X_test),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def text(records: Sequence[Record]) -> str:
    """Return the verdicts of all runs, and which share of the predictions adapters change."""
    points = []
    for found in records:
        n_rows = sum(row["use"] == "classify" for row in found["rows"])
        points.append(
            f"- {found['task']}, {found['adapters']} ({n_rows} rows fitted to "
            f"{found['n_train']:,}, judged on {found['n_judged']:,}, {found['seconds']:.0f} s): "
            f"{' '.join(found['verdict'].values())}"
        )
    return "\n".join([*points, f"- {_changed(records)}", f"- {PROTOCOL}"])


def _changed(records: Sequence[Record]) -> str:
    """Say which share of the predictions adapters change, which are the discordant rows."""
    shares = [
        row["changed_predictions"] / row["n_predictions"]
        for found in records
        for row in found["rows"]
        if (row["use"], row["kind"]) == ("classify", "adapter") and row["changed_predictions"]
    ]
    low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
    return (
        f"An adapter that changes predictions changes {middle:.1%} of them at the median, and "
        f"{low:.1%} to {high:.1%} from the first to the last decile."
    )

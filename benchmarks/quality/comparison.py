"""What `compare_adapters` finds on stored embeddings, judged on rows the encoder has not seen."""

import time
from functools import partial
from typing import Any

import pandas as pd

from benchmarks._data import load_embeddings, load_unseen
from benchmarks._store import rounded
from benchmarks.quality import Cells, _texts as texts
from benchmarks.quality._checkpoints import CHECKPOINTS
from isoadapt.model_selection import Similarity, compare_adapters

KEY = ("task", "adapters")
RUNS = {"cola": "all", "mrpc": "fast", "rte": "fast", "sst2_sentence": "fast"}


def cells() -> Cells:
    """Yield a comparison for each task and choice of adapters."""
    for task, adapters in RUNS.items():
        yield (task, adapters), partial(measure, task, adapters)


def measure(task: str, adapters: str) -> dict[str, Any]:
    """Compare adapters and take the time of this process."""
    stored, (X_test, y_test) = load_embeddings(task), load_unseen(task)
    uses = []
    if checkpoint := CHECKPOINTS.get(f"{task}-minilm"):
        embed, test = checkpoint.vectors, texts.similarity("test")
        uses.append(Similarity(embed(test.first), embed(test.second), test.scores))
    begun = time.perf_counter()
    options = {"X_test": X_test, "y_test": y_test, "encoder_saw": True, "random_state": 0}
    train = stored.X_train, stored.y_train
    found = compare_adapters(*train, adapters, head=stored.head, uses=uses, **options).to_dict()
    seconds = round(time.perf_counter() - begun, 1)
    rows, verdict = rounded(found["rows"], 6), found["verdict"]
    sizes = {"n_train": len(stored.X_train), "n_judged": len(X_test)}
    return {"rows": rows, "verdict": verdict, **sizes, "seconds": seconds}


def text(frame: pd.DataFrame) -> str:
    """Return the verdicts of all runs."""
    return "\n".join(
        f'- {run.task}, adapters="{run.adapters}", '
        f"{sum(row['use'] == 'classify' for row in run.rows)} rows of the comparison, fitted to "
        f"{run.n_train:,} rows and judged on {run.n_judged:,} in {run.seconds:.0f} s: "
        f"{' '.join(run.verdict.values())}"
        for run in frame.itertuples()
    )

"""Time of fitting the flow against one epoch of fine-tuning on the same texts, and its memory."""

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks._data import load_embeddings, narrow_cone, shared_folder
from benchmarks.speed._harness import Comparison, Measurement, Result, Skipped, compare
from benchmarks.speed._memory import STATUS, anonymous_bytes, peak_of
from isoadapt import FlowAdapter

D = 384
MIB = 2**20
TARGET = 2.0
NAME = "FlowAdapter, whole fit, against one epoch of fine-tuning MiniLM"
MEMORY = "FlowAdapter, memory of a fit"


def run(quick: bool) -> list[Result]:
    """Compare whole fits with an epoch of fine-tuning, then fits of n and 4n rows."""
    n = 100 if quick else 8551
    return [_against_finetuning(n, 1), _memory(1000 if quick else 8000)]


def _against_finetuning(n: int, repeats: int) -> Comparison | Skipped:
    from isoadapt.datasets import load_table, minilm_folder
    from isoadapt.finetune import finetune_text_classifier

    stored = shared_folder() / "embeddings" / "cola.npz"
    table = shared_folder() / "data" / "cola" / "train.tsv"
    if not stored.is_file() or not table.is_file():
        return Skipped(NAME, "the CoLA texts and embeddings are not there: set ISOADAPT_SHARED")
    model = minilm_folder()
    X = load_embeddings("cola").X_train[:n]
    texts, labels = load_table(table)
    flow = FlowAdapter(device="cpu", random_state=0)

    def finetune() -> None:
        with tempfile.TemporaryDirectory() as folder:
            finetune_text_classifier(
                model,
                texts[:n],
                labels[:n],
                Path(folder) / "model",
                epochs=1,
                device="cpu",
                random_state=0,
            )

    return compare(
        NAME,
        lambda: flow.fit(X),
        finetune,
        repeats=repeats,
        target=TARGET,
        n=n,
        d=X.shape[1],
    )


def _memory(n: int) -> Measurement | Skipped:
    """Fit n and 4n rows, each in a new process, and compare the memory they need."""
    if not STATUS.is_file():
        return Skipped(MEMORY, f"{STATUS} is not there to read the memory from")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        small, large = pool.map(_fit, [n, 4 * n])
    peak, matrix = round(large["peak"] / MIB), round(large["matrix"] / MIB)
    return Measurement(
        f"{MEMORY}, peak {peak} MiB beside X of {matrix} MiB",
        (large["seconds"],),
        {
            "n": 4 * n,
            "d": D,
            "epochs": 1,
            "X_MiB": matrix,
            "peak_above_X_MiB": peak,
            f"peak_above_X_MiB at n={n}": round(small["peak"] / MIB),
            "growth_MiB": round((large["peak"] - small["peak"]) / MIB),
        },
    )


def _fit(n: int) -> dict[str, float]:
    """Fit one epoch; return its seconds, the bytes of X and the peak of memory beyond X."""
    X = narrow_cone(n, D, seed=0).X_train
    flow = FlowAdapter(max_epochs=1, device="cpu", random_state=0)
    flow.fit(X[:500])
    begun, before = time.perf_counter(), anonymous_bytes()
    peak = max(peak_of(lambda: flow.fit(X)) - before, 0)
    return {"seconds": time.perf_counter() - begun, "matrix": X.nbytes, "peak": peak}

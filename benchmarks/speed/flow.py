"""Fitting the flow to embeddings, against one epoch of fine-tuning on the same texts."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks._data import load_embeddings, read_table
from benchmarks.speed._harness import Comparison, compare
from isoadapt import FlowAdapter
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier


def run(quick: bool) -> Iterator[Comparison]:
    """Compare a whole fit with one epoch on CoLA."""
    X, (texts, labels) = load_embeddings("cola").X_train, read_table("cola", "train")
    settings = {"device": "cpu", "random_state": 0}
    flow = FlowAdapter(**settings)

    def finetune(n: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            data, out = (minilm_folder(), texts[:n], labels[:n]), Path(folder, "model")
            finetune_text_classifier(*data, out, epochs=1, **settings)

    flow.fit(X[:100])  # a warm-up
    finetune(100)
    X = X[: 100 if quick else None]
    yield compare(
        "FlowAdapter, whole fit, against one epoch of fine-tuning MiniLM",
        partial(flow.fit, X),
        partial(finetune, len(X)),
        repeats=1,
        warm_up=False,
        target=2.0,
        rows=X,
    )

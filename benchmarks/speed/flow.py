"""Fitting the flow to embeddings, against one epoch of fine-tuning on the same texts."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks._data import load_embeddings, read_table
from benchmarks.speed._harness import Comparison, compare
from isoadapt import FlowAdapter
from isoadapt.datasets import minilm_folder
from isoadapt.finetune import finetune_text_classifier


def run(quick: bool) -> Iterator[Comparison]:
    """Compare a whole fit with one epoch on CoLA."""
    name = "FlowAdapter, whole fit, against one epoch of fine-tuning MiniLM"
    n = 100 if quick else 8551
    X = load_embeddings("cola").X_train[:n]
    texts, labels = read_table("cola", "train")
    settings = {"device": "cpu", "random_state": 0}

    def finetune() -> None:
        with tempfile.TemporaryDirectory() as folder:
            finetune_text_classifier(
                minilm_folder(), texts[:n], labels[:n], Path(folder) / "model", epochs=1, **settings
            )

    flow = FlowAdapter(**settings)
    yield compare(name, lambda: flow.fit(X), finetune, repeats=1, target=2.0, rows=X)

"""Adapters, and their controls, on the embeddings of a base."""

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.quality._adapter_rows import ROWS, Row, measure_adapter
from benchmarks.reproduction._cells import POST_HOC, Cell
from benchmarks.reproduction._figures import task_score
from benchmarks.reproduction._measuring import embedding_figures
from benchmarks.reproduction._statistics import pack
from benchmarks.reproduction._training import (
    Job,
    adapter_settings,
    base_commit,
    base_embeddings,
)
from isoadapt.geometry import Moments
from isoadapt.metrics import cumulative_explained_variance

TOP = 20  # number of principal components of the explained variance


def row_named(name: str) -> Row:
    """Return the row of the table of adapters with this name."""
    return {row.name: row for row in ROWS}[name]


def post_hoc_cell(row: Row, job: Job) -> Cell:
    """Return the cell of an adapter on the embeddings of a run without a penalty."""
    settings = {"base": job.settings(), **adapter_settings(row.make(None))}
    if "head refit" in row.name:  # earlier records have a head with C = 1
        settings["refit"] = "C by cross-validation"
    run = partial(post_hoc_figures, row, job)
    return Cell(POST_HOC, row.name, job.task, job.seed, settings, run, needs=job.cell().key)


def post_hoc_figures(row: Row, job: Job) -> dict[str, Any]:
    """Fit to the training embeddings of the base and evaluate on its dev embeddings."""
    data = base_embeddings(job)
    estimator = row.make_seeded(data.head, job.seed if row.takes_seed() else None)
    found = measure_adapter(estimator, data)
    Z = np.asarray(estimator.transform(data.X_test))
    moments = Moments().update(Z)
    return {
        **found,
        "metric": found[task_score(job.task)],
        "dev": pack(data.y_test, estimator.predict(data.X_test)),
        **embedding_figures(torch.from_numpy(Z)),
        "explained_variance": [
            cumulative_explained_variance(moments, k) for k in range(1, TOP + 1)
        ],
        "base_commit": base_commit(job),
    }

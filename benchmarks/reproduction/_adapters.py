"""Adapters, and their controls, on the embeddings of a base."""

from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.quality import _adapter_rows as rows
from benchmarks.quality._adapter_rows import MINIBATCH, NO_PENALTY, Row
from benchmarks.reproduction._measuring import METRICS, embedding_figures
from benchmarks.reproduction._records import Cell, pack
from benchmarks.reproduction._training import Job, base_embeddings
from isoadapt import IsotropyLayer
from isoadapt.geometry import Moments
from isoadapt.metrics import cumulative_explained_variance

TOP = 20  # number of principal components of the explained variance
IN_PAPER = {"coordinates": "raw", "ridge": 0.0, "lr_schedule": "constant"}
STORED = {row.name: row for row in rows.ROWS}
ADAPTERS = (
    *(STORED[name] for name in (rows.BASE, rows.REFIT, NO_PENALTY, MINIBATCH)),
    *(
        Row(f"{name}, {training} head", partial(IsotropyLayer, alpha=alpha, head_training=training))
        for training in ("joint", "alternating")
        for name, alpha in ((NO_PENALTY, 1.0), (MINIBATCH, 0.5))
    ),
    STORED[rows.NO_PENALTY_RAW],
    Row(f"{MINIBATCH}, raw coordinates", partial(IsotropyLayer, **IN_PAPER)),
    *(STORED[name] for name in (rows.ISOBN, "FlowAdapter, head refit")),
)


def adapter_cell(row: Row, job: Job) -> Cell:
    """Return the cell of an adapter on the embeddings of a run without a penalty."""
    estimator = row.make(None)
    settings = {"base": job.settings(), "adapter": type(estimator).__name__}
    settings["parameters"] = estimator.get_params(deep=False)
    return Cell("post-hoc", row.name, job.task, job.seed, settings, partial(_figures, row, job))


def _figures(row: Row, job: Job) -> dict[str, Any]:
    """Fit to the training embeddings of the base and evaluate on its dev embeddings."""
    data = base_embeddings(job)
    estimator = row.make_seeded(data.head, job.seed)
    found = rows.measure_adapter(estimator, data)
    Z = np.asarray(estimator.transform(data.X_test))
    moments, ks = Moments().update(Z), range(1, TOP + 1)
    return {
        **found,
        "metric": found[METRICS[job.task]],
        "dev": pack(data.y_test, estimator.predict(data.X_test)),
        **embedding_figures(torch.from_numpy(Z)),
        "explained_variance": [cumulative_explained_variance(moments, k) for k in ks],
    }

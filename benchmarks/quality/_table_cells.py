"""Cells of the table of adapters: each is one fit, evaluated on the test rows."""

import time
import warnings
from dataclasses import dataclass
from typing import Any

from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef

from benchmarks._data import Embeddings
from benchmarks._versions import versions, written
from benchmarks.quality._cells import MeasuredCell
from isoadapt.metrics import isotropy_report


@dataclass(frozen=True)
class Figures:
    """Figures of one fit on the test rows; `changed` is the number of changed predictions."""

    accuracy: float
    matthews: float
    cross_entropy: float
    isoscore: float
    corrected: float
    ev1: float
    anisotropy1: float
    mean_cosine: float
    two_nn: float
    seconds: float
    changed: int


def measure_cell(estimator: Any, data: Embeddings) -> MeasuredCell:
    """Fit to the training rows and evaluate on the test rows."""
    begun = time.perf_counter()
    estimator.fit(data.X_train, data.y_train)
    seconds = time.perf_counter() - begun
    predicted = estimator.predict(data.X_test)
    with warnings.catch_warnings():  # the table shows both scores, so no warning on the bias
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        report = isotropy_report(estimator.transform(data.X_test))
    figures = Figures(
        accuracy=float(accuracy_score(data.y_test, predicted)),
        matthews=float(matthews_corrcoef(data.y_test, predicted)),
        cross_entropy=float(log_loss(data.y_test, estimator.predict_proba(data.X_test))),
        isoscore=report.isoscore,
        corrected=report.isoscore_corrected,
        ev1=report.ev1,
        anisotropy1=report.anisotropy1,
        mean_cosine=report.mean_cosine,
        two_nn=report.two_nn,
        seconds=seconds,
        changed=int((predicted != data.head.predict(data.X_test)).sum()),
    )
    return MeasuredCell(figures, written(versions()))

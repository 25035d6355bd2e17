"""The rows of the tables of adapters, and the figures of one fit."""

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, log_loss, matthews_corrcoef, r2_score
from sklearn.preprocessing import FunctionTransformer

from benchmarks._data import Embeddings
from isoadapt import CosRegAdapter, IsotropyLayer
from isoadapt.adapters._affine import TransformerAdapter
from isoadapt.adapters._registry import VARIANTS
from isoadapt.metrics import isotropy_report

BASE = "no adapter"
REFIT = "head refit only"
NO_PENALTY = "same layer, no penalty"
NO_PENALTY_RAW = "same layer in raw coordinates, no penalty"
MINIBATCH, EXACT = "IsotropyLayer, minibatch", "IsotropyLayer, exact"
RECORDED = {"IsotropyLayer": MINIBATCH, "ExactIsotropyLayer": EXACT}  # names in the records
ISOBN = "IsoBN, head refit"
REGRESSIONS = ("esol",)  # tasks


def is_regression(y: NDArray[Any]) -> bool:
    """Return whether labels are values."""
    return y.dtype.kind == "f"


class Unchanged(TransformerAdapter):
    """The unchanged embeddings with the stored head, or with a head that is fitted again."""

    transformer = FunctionTransformer()

    def __init__(self, head: Any, refit: bool = False) -> None:
        self.head, self.refit = head, refit
        self.head_training = "refit" if refit else "frozen"


class Row(NamedTuple):
    """The name of a row, and a function from the stored head to its estimator."""

    name: str
    make: Callable[[Any], Any]

    def make_seeded(self, head: Any, seed: int | None) -> Any:
        """Create the estimator, with the seed if its fits depend on one."""
        estimator = self.make(head)
        return estimator.set_params(random_state=seed) if self.takes_seed() else estimator

    def takes_seed(self) -> bool:
        """Return whether fits depend on the seed; closed forms and the exact solver do not."""
        return "random_state" in self.make(None).get_params(deep=False)


ROWS = (
    Row(BASE, Unchanged),
    Row(REFIT, lambda head: Unchanged(head, refit=True)),
    Row(NO_PENALTY, lambda head: IsotropyLayer(head, alpha=1.0)),
    Row(NO_PENALTY_RAW, lambda head: CosRegAdapter(head, lam=0.0)),
    *(Row(RECORDED.get(each.name, each.name), each.make) for each in VARIANTS),
)


def measure_adapter(estimator: Any, data: Embeddings) -> dict[str, float]:
    """Fit to the training rows and evaluate on the test rows.

    `changed` is the number of predictions that differ from those of the stored head. The accuracy
    of a regression is R², and its predictions differ by more than 1e-4 of their largest.
    """
    begun = time.process_time()
    estimator.fit(data.X_train, data.y_train)
    seconds = time.process_time() - begun
    predicted, before = estimator.predict(data.X_test), data.head.predict(data.X_test)
    if is_regression(data.y_train):
        task = {"accuracy": float(r2_score(data.y_test, predicted))}
        changed = np.abs(predicted - before) > 1e-4 * np.abs(before).max()
    else:
        probabilities, changed = estimator.predict_proba(data.X_test), predicted != before
        task = {
            "accuracy": float(accuracy_score(data.y_test, predicted)),
            "matthews": float(matthews_corrcoef(data.y_test, predicted)),
            "cross_entropy": float(log_loss(data.y_test, probabilities)),
        }
    with warnings.catch_warnings():  # both scores are shown, so no warning on the bias
        warnings.filterwarnings("ignore", message="n_samples=", category=UserWarning)
        report = isotropy_report(estimator.transform(data.X_test))
    scores = {"isoscore": report.isoscore, "corrected": report.isoscore_corrected}
    return task | scores | {"ev1": report.ev1, "seconds": seconds, "changed": int(changed.sum())}


def format_figure(value: float, column: str = "") -> str:
    """Format a figure of a column; the smaller the figure, the more decimals."""
    if np.isnan(value):
        return "–"
    decimals = {"seconds": 2, "changed": 0}.get(column, 4 if abs(value) < 0.01 else 3)
    return f"{value:z.{decimals}f}"

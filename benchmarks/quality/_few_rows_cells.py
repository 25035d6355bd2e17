"""Cells of the few-rows table: the split into training and test rows, and one fit each."""

import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold, train_test_split

from benchmarks._data import UnseenRows
from benchmarks._versions import versions, written
from benchmarks.quality._cells import MeasuredCell, arrays_fingerprint
from isoadapt.metrics import isoscore

N_FOLDS = 5
FEWEST_JUDGING = 100
HARM = "this fit harms the task"


@dataclass(frozen=True)
class FitFigures:
    """Figures of one fit on its test rows, and the warnings that it ended with."""

    accuracy: float
    corrected: float
    harmful: bool
    unconverged: bool
    seconds: float
    n_fitted: int
    n_judged: int

    @property
    def warned(self) -> bool:
        """Return whether the fit ended with a warning of either kind."""
        return self.harmful or self.unconverged


class Split(NamedTuple):
    """Indices of the training and the test rows; `draw` is the number of the draw or fold."""

    draw: int
    fitting: NDArray[np.int64]
    judging: NDArray[np.int64]

    def fingerprint(self, data: UnseenRows) -> str:
        """Return a digest of these rows and their labels."""
        return arrays_fingerprint(data.X, data.y, self.fitting, self.judging)


def splits(data: UnseenRows, n: int | None, draws: int) -> list[Split]:
    """Return `draws` stratified splits with n training rows; for n=None, the first of five folds.

    There is no split if fewer than 100 test rows would remain.
    """
    rows = np.arange(len(data.y))
    if n is None:
        folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=0).split(rows, data.y)
        return [Split(draw, *fold) for draw, fold in zip(range(draws), folds, strict=False)]
    if len(rows) - n < FEWEST_JUDGING:
        return []
    return [
        Split(draw, *train_test_split(rows, train_size=n, stratify=data.y, random_state=draw))
        for draw in range(draws)
    ]


def measure_fit(estimator: Any, data: UnseenRows, split: Split) -> MeasuredCell:
    """Fit to the training rows and evaluate on the test rows of a split."""
    X, y = data.X[split.judging], data.y[split.judging]
    begun = time.perf_counter()
    harmful, unconverged = _fit(estimator, data.X[split.fitting], data.y[split.fitting])
    seconds = time.perf_counter() - begun
    figures = FitFigures(
        accuracy=float((estimator.predict(X) == y).mean()),
        corrected=float(isoscore(estimator.transform(X), bias_corrected=True)),
        harmful=harmful,
        unconverged=unconverged,
        seconds=seconds,
        n_fitted=len(split.fitting),
        n_judged=len(split.judging),
    )
    return MeasuredCell(figures, written(versions()))


def _fit(estimator: Any, X: NDArray[Any], y: NDArray[Any]) -> tuple[bool, bool]:
    """Fit; return whether it warned of a lower score and of no convergence; show other warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y)
    unconverged = [each for each in caught if issubclass(each.category, ConvergenceWarning)]
    harmful = [each for each in caught if str(each.message).startswith(HARM)]
    for each in caught:
        if each not in unconverged and each not in harmful:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return bool(harmful), bool(unconverged)

"""Adapters that are fitted to few rows, all of which the encoder was not trained on.

Some rows are drawn as training rows, the others are test rows.
"""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split

from benchmarks._data import Floats, load_unseen
from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record, _phenomena
from benchmarks.quality._adapter_rows import (
    EXACT,
    MINIBATCH,
    NO_PENALTY,
    PRESERVING,
    PROBE,
    Row,
    Unchanged,
    format_figure,
)
from isoadapt import IsotropyLayer, IStarAdapter, LogitPreservingWhitening
from isoadapt.metrics import isoscore

SECTION = "few-rows"
RECORDS = RECORDS_FOLDER / "few_rows.jsonl"
KEY = ("task", "size", "row", "draw")
SIZES = {
    "cola": (100, 300, 600),
    "mrpc": (100, 300, 600, 1200),
    "rte": (100,),
    "sst2_sentence": (100, 300, 600, 1200),
    "bbbp": (100, 300),
    "esol": (100, 200),
    "cola_distilbert": (100, 300, 600),
    _phenomena.TASK: (800,),
}
REGRESSIONS = ("esol",)
ISTAR = "IStarAdapter"
N_DRAWS = 5
ROWS = (
    Row(PROBE, lambda head: Unchanged(head, refit=True)),
    Row(MINIBATCH, IsotropyLayer),
    Row(EXACT, lambda head: IsotropyLayer(head, solver="exact")),
    Row(NO_PENALTY, lambda head: IsotropyLayer(head, alpha=1.0)),
    Row(ISTAR, IStarAdapter),
    Row(PRESERVING, LogitPreservingWhitening),
)
INTRODUCTION = (
    "Adapters fitted to few rows, with the head that they fit by default, a logistic probe. The "
    "encoder was fitted to none of the rows; those that also stand in its training split are left "
    "out. n rows are drawn to fit on, stratified, and the others judge. Accuracy: that of a probe "
    f"fitted to the same n rows, mean ± standard deviation over {N_DRAWS} draws; beside it the "
    "binomial standard error over the rows that judge one draw. ESOL is a regression under a "
    "ridge: its accuracy is R², and its error that of the mean over the draws. Then the mean "
    "difference of each adapter from the probe, and the IsoScore of the rows that judge, corrected "
    "for few rows. The records have more sizes, and five-fold cross-validations. The twelve "
    "classes are what sentences of the generated corpus are about; MiniLM was fine-tuned on "
    f"{_phenomena.N_TRAINING} sentences of each for {_phenomena.RECIPE['epochs']} epochs."
)


def cells() -> Cells:
    """Yield a fit for each task, number of training rows, row and draw or fold."""
    load = cache(
        lambda task: _phenomena.phenomenon_task() if task == _phenomena.TASK else load_unseen(task)
    )
    for task, sizes in SIZES.items():
        for n in (*sizes, None):
            for row in ROWS:
                for draw in range(N_DRAWS):

                    def fit(task=task, n=n, row=row, draw=draw):
                        name, X, y = load(task)
                        probe = "ridge" if task in REGRESSIONS else "logistic"
                        estimator = row.make_seeded(probe, draw if row.takes_seed() else None)
                        found = measure_fit(estimator, X, y, *split(y, n, draw))
                        return {"name": name, **found}

                    yield (task, "all" if n is None else n, row.name, draw), fit


def split(y: NDArray[Any], n: int | None, draw: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return n stratified training rows and the others; for n=None those of one of five folds.

    Values of a regression are not stratified.
    """
    rows, classes = np.arange(len(y)), y.dtype.kind != "f"
    if n is None:
        folds = StratifiedKFold if classes else KFold
        return list(folds(N_DRAWS, shuffle=True, random_state=0).split(rows, y))[draw]
    return train_test_split(rows, train_size=n, stratify=y if classes else None, random_state=draw)


def measure_fit(
    estimator: Any, X: Floats, y: NDArray[Any], fitting: NDArray[Any], judging: NDArray[Any]
) -> dict[str, Any]:
    """Fit to the training rows and evaluate on the others; count two kinds of warnings."""
    metric = r2_score if y.dtype.kind == "f" else accuracy_score
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X[fitting], y[fitting])
    return {
        "accuracy": float(metric(y[judging], estimator.predict(X[judging]))),
        "corrected": float(isoscore(estimator.transform(X[judging]), bias_corrected=True)),
        "harmful": any(str(each.message).startswith("this fit harms the task") for each in caught),
        "unconverged": any(issubclass(each.category, ConvergenceWarning) for each in caught),
        "n_fitted": len(fitting),
        "n_judged": len(judging),
    }


def text(records: Sequence[Record]) -> str:
    """Return a row for each task at its smallest number of training rows, then the checks."""
    frame = pd.DataFrame(records)
    groups = [_Size(own) for _, own in frame.groupby(["task", "size"], sort=False)]
    header = ["rows", "n", "judged on", "accuracy", "error", *_Size.COMPARED]
    header += ["corrected, before", *(f"{row}, corrected" for row in _Size.ISOTROPIC)]
    smallest = {min(sizes) for sizes in SIZES.values()}
    shown = [group.cells() for group in groups if group.size in smallest]
    checks = "\n".join(f"- {line}" for line in (_losses(groups), _alarms(groups)))
    return "\n\n".join([INTRODUCTION, markdown_table(header, shown), checks])


class _Size:
    """The fits of one task and number of training rows."""

    COMPARED = (MINIBATCH, EXACT, ISTAR, PRESERVING, NO_PENALTY)
    ISOTROPIC = (ISTAR, PRESERVING)

    def __init__(self, own: pd.DataFrame) -> None:
        self.name, self.size = own[["name", "size"]].iloc[0]
        self.fits = {name: fits.set_index("draw") for name, fits in own.groupby("row")}
        self.probe = self.fits.get(PROBE, own[:0])

    def error(self) -> float:
        """Binomial standard error of the probe's mean accuracy; of R², that of its draws."""
        if self.fits[PROBE]["task"].iloc[0] in REGRESSIONS:
            return float(self.probe["accuracy"].std() / np.sqrt(len(self.probe)))
        n, mean = self.n_judged(), self.probe["accuracy"].mean()
        return float(np.sqrt(mean * (1 - mean) / n))

    def n_judged(self) -> int:
        """Rows that judge one draw, or all folds."""
        judged = self.probe["n_judged"]
        return int(judged.sum() if self.size == "all" else judged.iloc[0])

    def differences(self, row: str) -> pd.Series:
        """Accuracy minus that of the probe, for each draw that both have."""
        fits = self.fits.get(row, self.probe[:0])
        return (fits["accuracy"] - self.probe["accuracy"]).dropna()

    def cells(self) -> list[str]:
        accuracy = self.probe["accuracy"]
        corrected = [self.fits[row]["corrected"].mean() for row in (PROBE, *self.ISOTROPIC)]
        return [
            self.name,
            str(self.size),
            str(self.n_judged()),
            f"{accuracy.mean():.3f} ± {accuracy.std():.3f}",
            f"{self.error():.4f}",
            *(f"{self.differences(row).mean():z.4f}" for row in self.COMPARED),
            *map(format_figure, corrected),
        ]


def _compared(groups: Sequence[_Size]) -> list[tuple[_Size, str, pd.Series]]:
    adapters = [row.name for row in ROWS if row.name != PROBE]
    found = [(group, row, group.differences(row)) for group in groups for row in adapters]
    return [each for each in found if len(each[2])]


def _losses(groups: Sequence[_Size]) -> str:
    compared = _compared(groups)
    losing = [
        f"{group.name}, n={group.size}, {row}"
        for group, row, steps in compared
        if steps.mean() < -group.error()
    ]
    listed = f": {'; '.join(losing)}" if losing else ""
    return (
        "Mean accuracy more than one standard error below the probe's: "
        f"{len(losing)} of {len(compared)} cells{listed}"
    )


def _alarms(groups: Sequence[_Size]) -> str:
    warned = []
    for group, row, steps in _compared(groups):
        fits = group.fits[row].loc[steps.index[steps >= -group.error()]]
        warned += list(fits["harmful"] | fits["unconverged"])
    share = 100 * np.mean(warned) if warned else np.nan
    return (
        "Fits that lose no more than one standard error and yet end with the warning that they "
        "harm the task or a ConvergenceWarning, the probe's own included (at most 10 % wanted): "
        f"{sum(warned)} of {len(warned)}, {share:.1f} %"
    )

"""The automatic weight of the ridge, which keeps the head's outputs near those at the start."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax
from scipy.stats import t as student

from isoadapt.adapters._linalg import descending_eigh, oas_shrinkage, shrink
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._ridge_path import ridge_path
from isoadapt.adapters._rows import fold_numbers, strata
from isoadapt.geometry import Moments
from isoadapt.geometry._spread import dead_dimensions

_LEVEL = 0.95  # of the quantile that the agreement on left-out rows must exceed
_N_FOLDS = 5
_RIDGES = np.geomspace(99, 1 / 99, 17)  # (1 - s) / s for shares s from 0.01 to 0.99


def automatic_ridge(
    X: NDArray[Any],
    targets: NDArray[Any],
    outputs: Floats,  # (n, n_outputs), in the units of the targets
    weights: Floats | None = None,  # (n,), of mean 1
    groups: NDArray[np.int64] | None = None,
) -> float:
    """Estimate the ridge from embeddings X (n, d), as :doc:`/guide/appendix` describes."""
    classes = None if targets.dtype.kind == "f" else strata(targets)
    folds = fold_numbers(X, classes, groups, _N_FOLDS)
    weights = np.ones(len(X)) if weights is None else weights
    points, residuals = _whitened(X, Moments().update(X, weights)), _residuals(targets, outputs)
    units = np.arange(len(X)) if groups is None else groups
    agreement, gains = np.zeros(units.max() + 1), np.zeros((len(_RIDGES), units.max() + 1))
    for fold in range(_N_FOLDS if folds.any() else 0):
        held, rows = folds == fold, points[folds != fold]
        shares = weights[folds != fold, None] / weights[folds != fold].sum()
        gram, cross = (shares * rows).T @ rows, (shares * rows).T @ residuals[folds != fold]
        for place, coef in enumerate(ridge_path(gram, cross, _RIDGES)):
            step = points[held] @ coef
            products = weights[held] * (step * residuals[held]).sum(axis=1)
            gain = 2 * products - weights[held] * (step**2).sum(axis=1)
            gains[place] += np.bincount(units[held], gain, len(agreement))
            if place == len(_RIDGES) // 2:
                agreement += np.bincount(units[held], products, len(agreement))
    # Each pair of rows counts twice in the sum, which doubles its variance.
    quantile = student.ppf(_LEVEL, max(len(np.unique(units)) - 1, 1))
    level = np.sqrt(2 * (agreement**2).sum()) * quantile
    lost = gains[gains.sum(axis=1).argmax()] - gains
    enough = lost.sum(axis=1) <= np.sqrt((lost**2).sum(axis=1))
    ridge = _RIDGES[enough.argmax() if agreement.sum() > level else 0]
    # The ridge shrinks the step that minimises a quadratic upper bound of the task loss. The
    # curvature of the cross-entropy is at most 1/2.
    return float(ridge / {"f": 1, "i": 4, "b": 8}[targets.dtype.kind])


def _whitened(X: NDArray[Any], moments: Moments) -> Floats:
    """Rows in coordinates divided by the roots of their shrunk variances, and a column of ones."""
    eigenvalues, vectors = descending_eigh(moments.covariance().numpy())
    live = ~dead_dimensions(eigenvalues)
    roots = np.sqrt(shrink(eigenvalues, oas_shrinkage(moments))[live])
    centred = X - moments.mean.numpy()
    return np.column_stack([centred @ (vectors[:, live] / roots), np.ones(len(X))])


def _residuals(targets: NDArray[Any], outputs: Floats) -> Floats:
    """Return the gradient of each row's task loss with respect to its outputs, up to a factor."""
    if targets.ndim == 2:
        return (expit(outputs) if targets.dtype == bool else outputs) - targets
    residuals = softmax(outputs, axis=1)
    residuals[np.arange(len(targets)), targets] -= 1
    return residuals

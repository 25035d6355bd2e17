"""Moments of embeddings and a teacher's vectors, kept by fold, and ridge regressions from them."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from isoadapt.adapters._maps import Floats
from isoadapt.geometry._chunks import row_hashes
from isoadapt.geometry._spread import dead_dimensions

CONSTANT = 1e-20  # variance of unit vectors up to which they count as equal
_N_FOLDS = 5
_BLOCK = 2048  # rows that are converted to float64 at a time
_FIRST = (-2, -1)  # exponents of the ridges that are tried first
_LOWEST, _HIGHEST = -6, 4


class CrossMoments(NamedTuple):
    """Moments of rows x (p,) and targets t (q,): of x all second moments, of t only the trace."""

    weight: float  # sum of the weights of the rows
    mean: Floats  # of the columns of x and t side by side, (p + q,)
    gram: Floats  # scatter of x, (p, p)
    cross: Floats  # sum of the products of centred x and t, (p, q)
    spread: float  # sum of the squared distances of t from its mean


class Folds(NamedTuple):
    """Cross-moments of the rows of each fold, None for one without rows, and the groups' folds."""

    parts: list[CrossMoments | None]
    groups: dict[str, int]  # the first five groups have a fold each; others are hashed


def new_folds(before: Folds | None = None) -> Folds:
    """Return folds without rows, or a copy of others, to which rows can be added."""
    if before is None:
        return Folds([None] * _N_FOLDS, {})
    return Folds(list(before.parts), dict(before.groups))


def add_rows(
    folds: Folds,
    X: NDArray[Any],
    targets: Floats,
    weights: NDArray[Any] | None,
    groups: NDArray[Any] | None,
) -> None:
    """Add rows X (n, p) and targets (n, q) to folds; cross-moments are replaced, not changed."""
    weights = np.ones(len(X)) if weights is None else weights
    kept = np.flatnonzero(weights > 0)
    blocks = [kept[start : start + _BLOCK] for start in range(0, len(kept), _BLOCK)]
    if groups is None:
        hashes = [row_hashes(X[block].astype(np.float64)) for block in blocks]
        numbers = np.concatenate([np.zeros(0, np.uint64), *hashes]) % _N_FOLDS
    else:
        numbers = np.array([_group_fold(str(each), folds.groups) for each in groups[kept].tolist()])
    for fold in range(_N_FOLDS):
        own = kept[numbers == fold]
        for start in range(0, len(own), _BLOCK):
            block = own[start : start + _BLOCK]
            new = _measure(X[block].astype(np.float64), targets[block], weights[block])
            old = folds.parts[fold]
            folds.parts[fold] = new if old is None else merge_all([old, new])


def _group_fold(group: str, known: dict[str, int]) -> int:
    if len(known) < _N_FOLDS:
        known.setdefault(group, len(known))
    return known.get(group, zlib.crc32(group.encode()) % _N_FOLDS)


@np.errstate(over="ignore", invalid="ignore")
def _measure(X: Floats, targets: Floats, weights: NDArray[Any]) -> CrossMoments:
    """Cross-moments of rows (n, p) of positive weight; `X` and `targets` are overwritten."""
    weight, p = float(weights.sum()), X.shape[1]
    first = np.concatenate([X[0], targets[0]])  # constant columns become exactly zero
    X -= first[:p]
    targets -= first[p:]
    shift = np.concatenate([weights @ X, weights @ targets]) / weight
    roots = np.sqrt(weights)[:, None]
    X -= shift[:p]
    X *= roots
    targets -= shift[p:]
    targets *= roots
    spread = float(np.vdot(targets, targets))
    return CrossMoments(weight, first + shift, X.T @ X, X.T @ targets, spread)


@np.errstate(over="ignore", invalid="ignore")
def merge_all(parts: Iterable[CrossMoments | None]) -> CrossMoments:
    """Return the cross-moments of the rows of all parts, of which at least one has rows."""
    filled = [part for part in parts if part is not None]
    weights, means = np.array([each.weight for each in filled]), np.stack([m.mean for m in filled])
    p, weight = len(filled[0].gram), float(weights.sum())
    mean = means[0] + weights @ (means - means[0]) / weight
    steps = (means - mean) * np.sqrt(weights)[:, None]
    gram, cross = steps[:, :p].T @ steps[:, :p], steps[:, :p].T @ steps[:, p:]
    for part in filled:
        gram += part.gram
        cross += part.cross
    spread = np.square(steps[:, p:]).sum() + sum(part.spread for part in filled)
    return CrossMoments(weight, mean, gram, cross, float(spread))


class RidgeRegression:
    """Ridge regressions of targets on standardised columns, from cross-moments, for any ridge."""

    def __init__(self, moments: CrossMoments) -> None:
        variances = moments.gram.diagonal() / moments.weight
        self.mean, self._live = moments.mean, ~dead_dimensions(variances)
        self._scale = np.where(self._live, 1 / np.sqrt(np.where(self._live, variances, 1.0)), 0.0)
        self._correlation = moments.gram * (self._scale / moments.weight)
        self._correlation *= self._scale[:, None]
        self._cross = moments.cross * (self._scale / moments.weight)[:, None]

    def coef(self, ridge: float) -> Floats:
        """Return the coefficients (p, q) of centred, not of standardised columns."""
        np.fill_diagonal(self._correlation, self._live + ridge)
        # torch's Cholesky decomposition is several times faster than SciPy's.
        factor = torch.linalg.cholesky(torch.from_numpy(self._correlation))
        # SciPy's solution from it needs no copy of the factor, unlike torch's.
        solution = cho_solve((factor.numpy(), True), self._cross, check_finite=False)
        return self._scale[:, None] * solution


def choose_ridge(parts: Sequence[CrossMoments], ridge: float | str) -> tuple[float, float]:
    """Return the ridge and its held-out squared error, NaN if there is only one part."""
    if len(parts) == 1:
        return 1.0 if isinstance(ridge, str) else float(ridge), float("nan")
    if not isinstance(ridge, str):
        return float(ridge), _held_out_errors(parts, [float(ridge)])[0]
    errors: dict[int, float] = {}
    todo = list(_FIRST)
    while todo:
        errors |= zip(todo, _held_out_errors(parts, [10.0**each for each in todo]), strict=True)
        best = min(errors, key=lambda each: (errors[each], -each))
        beside = [each for each in (best - 1, best + 1) if _LOWEST <= each <= _HIGHEST]
        todo = [each for each in beside if each not in errors]
    left, right = (errors.get(each, errors[best]) - errors[best] for each in (best - 1, best + 1))
    found = errors[best], 10.0**best
    if len(beside) == 2 and left + right > 0:  # tries the minimum of a parabola
        between = 10.0 ** (best + (left - right) / (left + right) / 2)
        found = min(found, (_held_out_errors(parts, [between])[0], between))
    return found[1], found[0]


def _held_out_errors(parts: Sequence[CrossMoments], ridges: Sequence[float]) -> list[float]:
    """Sum, for each ridge, the squared errors on each part of the fits to the other parts."""
    found = [
        _errors_on(part, [*parts[:number], *parts[number + 1 :]], ridges)
        for number, part in enumerate(parts)
    ]
    return [sum(each) for each in zip(*found, strict=True)]


def _errors_on(
    part: CrossMoments, others: Sequence[CrossMoments], ridges: Sequence[float]
) -> list[float]:
    """Squared errors on a part, for each ridge, of the fit to other parts."""
    fit, errors = RidgeRegression(merge_all(others)), []
    for ridge in ridges:
        coef, step = fit.coef(ridge), part.mean - fit.mean
        offset = step[len(coef) :] - step[: len(coef)] @ coef
        error = part.spread + part.weight * float(offset @ offset)
        errors.append(error + float(np.vdot(coef, part.gram @ coef - 2 * part.cross)))
    return errors

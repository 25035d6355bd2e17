"""Ridge regressions, and the choice of their ridge from moments of the rows of each fold."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from isoadapt._utils.copies import copy_hashes
from isoadapt.adapters._maps import Floats
from isoadapt.geometry import Moments
from isoadapt.geometry._ridge import standardised_path

_N_FOLDS = 5
_BLOCK = 2048  # rows that are converted to float64 at a time
_FIRST = (-2, -1)  # exponents of the ridges that are tried first
_LOWEST, _HIGHEST = -6, 4


class Folds(NamedTuple):
    """Moments of the rows (x, t) of each fold, None for one without rows, and the groups' folds."""

    parts: list[Moments | None]
    groups: dict[str, int]  # the first five groups have a fold each; others are hashed


NO_ROWS = Folds([None] * _N_FOLDS, {})


def add_rows(
    folds: Folds,
    X: NDArray[Any],
    targets: Floats,
    weights: NDArray[Any] | None,
    groups: NDArray[Any] | None,
) -> Folds:
    """Return folds with more rows X (n, p) and targets (n, q)."""
    parts, known = list(folds.parts), dict(folds.groups)
    weights = np.ones(len(X)) if weights is None else weights
    kept = np.flatnonzero(weights > 0)
    if groups is None:
        numbers = copy_hashes(X, 0.0)[kept] % _N_FOLDS
    else:
        names = [str(each) for each in groups[kept].tolist()]
        first = list(dict.fromkeys([*known, *names]))[:_N_FOLDS]
        known = {name: fold for fold, name in enumerate(first)}
        numbers = np.array([known.get(n, zlib.crc32(n.encode()) % _N_FOLDS) for n in names])
    for fold in range(_N_FOLDS):
        own = kept[numbers == fold]
        for start in range(0, len(own), _BLOCK):
            block = own[start : start + _BLOCK]
            new = _measure(np.hstack([X[block], targets[block]]), weights[block])
            parts[fold] = merged([new, parts[fold]])
    return Folds(parts, known)


@np.errstate(over="ignore", invalid="ignore")
def _measure(rows: Floats, weights: Floats) -> Moments:
    """Return mean and scatter of rows of positive weight, which are overwritten."""
    first = rows[0].copy()  # constant columns become exactly zero
    rows -= first
    shift = weights @ rows / weights.sum()
    rows -= shift
    rows *= np.sqrt(weights)[:, None]
    mean, scatter = torch.from_numpy(first + shift), torch.from_numpy(rows.T @ rows)
    return Moments._of(float(weights.sum()), mean, scatter)


def merged(parts: Iterable[Moments | None]) -> Moments:
    """Return the moments of the rows of all parts."""
    return reduce(Moments.merge, (part for part in parts if part is not None), Moments())


def ridge_path(gram: Floats, cross: Floats, ridges: Sequence[float] | Floats) -> Iterator[Floats]:
    """Yield the solution (p, q) of (gram + ridge I) B = cross for each of many ridges."""
    sizes, axes = np.linalg.eigh(gram)
    crossed = axes.T @ cross
    yield from (axes @ (crossed / (sizes + ridge)[:, None]) for ridge in ridges)


def choose_ridge(parts: Sequence[Moments], p: int, ridge: float | str) -> tuple[float, float]:
    """Return the ridge and its held-out squared error, NaN if there is only one part."""
    if len(parts) == 1:
        return 1.0 if isinstance(ridge, str) else float(ridge), float("nan")
    if not isinstance(ridge, str):
        return float(ridge), _held_out_errors(parts, p, [float(ridge)])[0]
    errors: dict[int, float] = {}
    todo = list(_FIRST)
    while todo:
        errors |= zip(todo, _held_out_errors(parts, p, [10.0**each for each in todo]), strict=True)
        best = min(errors, key=lambda each: (errors[each], -each))
        beside = [each for each in (best - 1, best + 1) if _LOWEST <= each <= _HIGHEST]
        todo = [each for each in beside if each not in errors]
    left, right = (errors.get(each, errors[best]) - errors[best] for each in (best - 1, best + 1))
    found = errors[best], 10.0**best
    if len(beside) == 2 and left + right > 0:  # tries the minimum of a parabola
        between = 10.0 ** (best + (left - right) / (left + right) / 2)
        found = min(found, (_held_out_errors(parts, p, [between])[0], between))
    return found[1], found[0]


def _held_out_errors(parts: Sequence[Moments], p: int, ridges: Sequence[float]) -> list[float]:
    """Sum, for each ridge, the squared errors on each part of the fits to the other parts."""
    errors = [0.0] * len(ridges)
    for number, part in enumerate(parts):
        fit = merged([*parts[:number], *parts[number + 1 :]])
        scatter, step = part.scatter, part.mean - fit.mean
        for place, coef in enumerate(standardised_path(fit, p, ridges)):
            offset = step[p:] - step[:p] @ coef
            explained = coef * (scatter[:p, :p] @ coef - 2 * scatter[:p, p:])
            error = scatter[p:, p:].trace() + part.count * (offset @ offset) + explained.sum()
            errors[place] += float(error)
    return errors

"""Paper 002, figure 2: IsoScore* against the number of points, on Gaussian points."""

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks._data import BUMPS, bumpy_variances
from benchmarks.reproduction._records import Cell
from isoadapt.geometry import Moments
from isoadapt.metrics import isoscore
from isoadapt.metrics._points import score_of

D = 768
CLOUD, SHRINKAGE = 250_000, 75_000
SIZES = (16, 64, 256, 700, 1_536, 4_096, 16_384, 65_536, CLOUD - SHRINKAGE)
ZETAS = (0.0, 0.2, 0.4, 0.6, 0.8)
CORRECTED = "corrected, no shrinkage"
MANY = 8_192  # number of points in one batch
LONG, NEAR = 0.1, 0.02  # relative errors: a clear underestimate, and close to the truth
SHOWN: dict[str, tuple[str, tuple[int, ...]]] = {  # scores beside each margin: name and sizes
    "too low": ("zeta 0", (16, 64, 256, 700)),
    "gain of ζ": ("zeta 0.8", (700,)),
    "nearest ζ": ("zeta 0.8", (700,)),
    "corrected": (CORRECTED, (64, 700)),
}


@cache
def truth() -> float:
    """Return the IsoScore of the true covariance."""
    variances = torch.from_numpy(bumpy_variances(D)).double()
    return score_of(variances / variances.sum(), D)


def cell(seed: int) -> Cell:
    """Return the cell of a seed: all sample sizes of one set of points."""
    settings = {"d": D, "variances": BUMPS, "sizes": SIZES, "zetas": ZETAS, "shrinkage": SHRINKAGE}
    run = partial(scores, seed)
    return Cell("points", "IsoScore* by sample size", "gaussian", seed, settings, run)


def scores(seed: int) -> dict[str, Any]:
    """Return lists of scores over sample sizes, for every ζ and for the corrected score.

    Smaller samples are the first points of larger ones. The shrinkage covariance is computed from
    points that are in none of them.
    """
    rng = np.random.default_rng(seed)
    prior = Moments()
    for points in _points(rng, SHRINKAGE):
        prior.update(points)
    found: dict[str, list[float]] = {name: [] for name in (*map(zeta_name, ZETAS), CORRECTED)}
    sample = Moments()
    for before, size in pairwise((0, *SIZES)):
        for points in _points(rng, size - before):
            sample.update(points)
        cov = sample.covariance()
        for zeta in ZETAS:
            mixed = (1 - zeta) * cov + zeta * prior.covariance()
            found[zeta_name(zeta)].append(score_of(mixed / mixed.trace(), D))
        found[CORRECTED].append(isoscore(sample, bias_corrected=True))
    return {"n": list(SIZES), **found}


def _points(rng: np.random.Generator, n: int) -> Iterator[NDArray[np.float32]]:
    spread = np.sqrt(bumpy_variances(D))
    for start in range(0, n, MANY):
        yield rng.standard_normal((min(MANY, n - start), D), np.float32) * spread


def zeta_name(zeta: float) -> str:
    """Return the name of the score with this ζ."""
    return f"zeta {zeta:g}"


def margins(seed_scores: pd.DataFrame) -> dict[str, float]:
    """Return by how much each claim is met by the scores of a seed, shape (n_sizes, n_names)."""
    errors, shrunk = (seed_scores - truth()).abs(), [zeta_name(zeta) for zeta in ZETAS]
    return {
        "too low": ((1 - LONG) * truth() - seed_scores.loc[:D, "zeta 0"]).min(),
        "gain of ζ": -errors.loc[700, shrunk].diff().max(),
        "nearest ζ": NEAR * truth() - errors.loc[700, shrunk].min(),
        "corrected": NEAR * truth() - errors.loc[700:, CORRECTED].max(),
    }

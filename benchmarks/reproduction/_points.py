"""Paper 002, figure 2: IsoScore* against the number of points, on Gaussian points."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

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
NAMES = [*(f"zeta {zeta:g}" for zeta in ZETAS), CORRECTED]
VARIANCES = torch.from_numpy(bumpy_variances(D)).double()
TRUTH = score_of(VARIANCES / VARIANCES.sum(), D)
MANY = 8_192  # number of points in one batch
LONG, NEAR = 0.1, 0.02  # relative errors: a clear underestimate, and close to the truth
SHOWN: dict[str, tuple[str, tuple[int, ...]]] = {  # scores beside each margin: name and sizes
    "too low": ("zeta 0", (16, 64, 256, 700)),
    "gain of ζ": ("zeta 0.8", (700,)),
    "nearest ζ": ("zeta 0.8", (700,)),
    "corrected": (CORRECTED, (64, 700)),
}


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
    prior, sample = _drawn(rng, SHRINKAGE), Moments()
    found = []
    for before, size in pairwise((0, *SIZES)):
        sample.merge(_drawn(rng, size - before))
        cov = sample.covariance()
        mixed = ((1 - zeta) * cov + zeta * prior.covariance() for zeta in ZETAS)
        shrunk = [score_of(each / each.trace(), D) for each in mixed]
        found.append([*shrunk, isoscore(sample, bias_corrected=True)])
    return {"n": list(SIZES), **dict(zip(NAMES, zip(*found, strict=True), strict=True))}


def _drawn(rng: np.random.Generator, n: int) -> Moments:
    moments, spread = Moments(), np.sqrt(bumpy_variances(D))
    for start in range(0, n, MANY):
        moments.update(rng.standard_normal((min(MANY, n - start), D), np.float32) * spread)
    return moments


def margins(seed_scores: pd.DataFrame) -> dict[str, float]:
    """Return by how much each claim is met by the scores of a seed, shape (n_sizes, n_names)."""
    errors, shrunk = (seed_scores - TRUTH).abs(), NAMES[:-1]
    return {
        "too low": ((1 - LONG) * TRUTH - seed_scores.loc[:D, "zeta 0"]).min(),
        "gain of ζ": -errors.loc[700, shrunk].diff().max(),
        "nearest ζ": NEAR * TRUTH - errors.loc[700, shrunk].min(),
        "corrected": NEAR * TRUTH - errors.loc[700:, CORRECTED].max(),
    }

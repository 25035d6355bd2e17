"""Remaining bias of the corrected IsoScore, on generated rows, in about a minute.

The estimates of its numerator and denominator are unbiased, but their clamped ratio is not.
"""

from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks._markdown import frame_table
from benchmarks.quality import Cells
from isoadapt.geometry._isoscore import isoscore_star
from isoadapt.metrics._points import score_of

KEY = ("d", "decay", "rows", "n")
ROWS = (5, 8, 16, 40, 100, 400)
SPECTRA = ((12, 1.0), (12, 0.5), (384, 1.0))  # width and decay: variance k is k**-decay
NUMBERS = 12_000_000  # maximum of random numbers drawn for each score
DRAWS = 4_000  # maximum number of draws
GAUSSIAN, HEAVY = "Gaussian", "t₅"  # the latter is the t distribution of 5 degrees of freedom


def drawn(kind: str, rng: np.random.Generator, shape: tuple[int, int, int]) -> Tensor:
    """Draw rows of uncorrelated coordinates of variance 1 in float32."""
    lengths = np.sqrt(3 / rng.chisquare(5, size=(*shape[:2], 1))) if kind == HEAVY else 1.0
    rows = rng.standard_normal(shape, dtype=np.float32) * np.asarray(lengths, np.float32)
    return torch.from_numpy(rows)


def cells() -> Cells:
    """Yield the mean scores for each spectrum, distribution and number of rows."""
    for spectrum, *others in product(SPECTRA, (GAUSSIAN, HEAVY), ROWS):
        key = (*spectrum, *others)
        yield key, partial(mean_scores, *key)


def mean_scores(d: int, decay: float, kind: str, n: int) -> dict[str, float]:
    """Return the true score, and means of the plain and corrected score of n rows over draws."""
    rng, variances = np.random.default_rng(n), torch.arange(1, d + 1, dtype=torch.float64) ** -decay
    found, draws, part = [], min(DRAWS, NUMBERS // (n * d)), max(1, NUMBERS // (8 * n * d))
    for start in range(0, draws, part):
        X = drawn(kind, rng, (min(part, draws - start), n, d)) * variances.sqrt().float()
        found.append(torch.stack([isoscore_star(X), isoscore_star(X, bias_corrected=True)]))
    plain, corrected = torch.cat(found, dim=1).double().mean(1).tolist()
    true = score_of(variances / variances.sum(), d)
    return {"true": true, "plain": plain, "corrected": corrected}


def text(frame: pd.DataFrame) -> str:
    """Return the true score beside mean scores of n rows, those of the plain score in brackets."""
    shown = frame.assign(n="n=" + frame["n"].astype(str))
    shown["score"] = [f"{c:.3f} ({p:.3f})" for c, p in shown[["corrected", "plain"]].to_numpy()]
    shown["true"] = shown["true"].map("{:.3f}".format)
    shown["decay"] = shown["decay"].map("{:g}".format)
    keys = ["rows", "d", "decay", "true", "n"]
    return frame_table(shown.set_index(keys)["score"].unstack("n", sort=False))

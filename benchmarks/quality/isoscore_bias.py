"""Remaining bias of the corrected IsoScore, on generated rows, in about a minute.

The estimates of its numerator and denominator are unbiased, but their clamped ratio is not.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks._markdown import markdown_table
from benchmarks._places import RECORDS_FOLDER
from benchmarks.quality import Cells, Record
from isoadapt.geometry._isoscore import isoscore_from_covariance, isoscore_star

SECTION = "isoscore-bias"
RECORDS = RECORDS_FOLDER / "isoscore_bias.jsonl"
KEY = ("d", "decay", "rows", "n")
ROWS = (5, 8, 16, 40, 100, 400)
WIDTHS = (12, 384, 768)
SHOWN = (12, 384)
DECAYS = (1.0, 0.5)  # variance k is k**-decay
NUMBERS = 12_000_000  # maximum of random numbers drawn for each score
DRAWS = 4_000  # maximum number of draws

Draw = Callable[[np.random.Generator, tuple[int, int, int]], NDArray[np.float32]]


def gaussian(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Draw rows of independent normal coordinates."""
    return rng.standard_normal(shape, dtype=np.float32)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int, int]) -> NDArray[np.float32]:
    """Draw rows of a multivariate t distribution with 5 degrees of freedom."""
    lengths = np.sqrt(3 / rng.chisquare(5, size=(*shape[:2], 1)))
    return gaussian(rng, shape) * lengths.astype(np.float32)


KINDS: dict[str, Draw] = {"Gaussian": gaussian, "t₅": heavy_tailed}


def cells() -> Cells:
    """Yield the mean scores for each width, spectrum, distribution and number of rows."""
    for d in WIDTHS:
        for decay in DECAYS:
            variances = torch.arange(1, d + 1, dtype=torch.float64) ** -decay
            for kind, draw in KINDS.items():
                for n in ROWS:
                    yield (d, decay, kind, n), partial(mean_scores, draw, n, variances)


def mean_scores(draw: Draw, n: int, variances: Tensor) -> dict[str, float]:
    """Return the true score, and means of the plain and corrected score of n rows over draws."""
    rng, d = np.random.default_rng(n), len(variances)
    found = []
    left = min(DRAWS, NUMBERS // (n * d))
    part = max(1, NUMBERS // (8 * n * d))
    while left > 0:
        X = torch.from_numpy(draw(rng, (min(part, left), n, d))) * variances.sqrt().float()
        found.append(torch.stack([isoscore_star(X), isoscore_star(X, bias_corrected=True)]))
        left -= len(X)
    plain, corrected = torch.cat(found, dim=1).double().mean(1).tolist()
    true = float(isoscore_from_covariance(torch.diag(variances)))
    return {"true": true, "plain": plain, "corrected": corrected}


def text(records: Sequence[Record]) -> str:
    """Return the true score beside mean scores of n rows."""
    frame = pd.DataFrame(records).query("d in @SHOWN")
    lines = []
    for (d, decay, kind), own in frame.groupby(["d", "decay", "rows"], sort=False):
        means = {row.n: f"{row.corrected:.3f} ({row.plain:.3f})" for row in own.itertuples()}
        true = f"{own['true'].iloc[0]:.3f}"
        lines.append([kind, str(d), f"{decay:g}", true, *(means.get(n, "") for n in ROWS)])
    header = ["rows", "d", "decay", "true", *(f"n={n}" for n in ROWS)]
    return (
        "The bias that the corrected IsoScore keeps: mean corrected score of n rows, in brackets "
        "that of the plain score, beside the true score. The estimates of tr(Σ)² and ‖Σ‖² are "
        "without bias, but their ratio, clamped to [1, d], is not: it raises low scores and lowers "
        "scores near 1, by an amount that falls roughly as 1 / n. The variance of dimension k is k "
        f"to the power of minus the decay; up to {DRAWS:,} draws. Widths not shown: "
        f"{', '.join(map(str, set(WIDTHS) - set(SHOWN)))}.\n\n{markdown_table(header, lines)}"
    )

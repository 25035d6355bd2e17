"""Remaining bias of the corrected IsoScore: `python -m benchmarks.quality.isoscore_bias`.

The estimates of its numerator and denominator are unbiased, but their clamped ratio is not. The
result is printed as Markdown; `--write FILE` writes it to a section of that file. This takes about
a minute.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks._markdown import markdown_table
from benchmarks._versions import versions, written
from benchmarks.quality._command import add_write_option, publish
from isoadapt.geometry._isoscore import isoscore_from_covariance, isoscore_star

ROWS = (5, 8, 16, 40, 100, 400)
WIDTHS = (12, 96, 384, 768)
DECAYS = (1.0, 0.5, 0.25)  # variance k is k**-decay
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


def power_law_variances(d: int, decay: float) -> Tensor:
    """Return the variances of the d dimensions."""
    return torch.arange(1, d + 1, dtype=torch.float64) ** -decay


def mean_scores(draw: Draw, n: int, variances: Tensor) -> tuple[float, float]:
    """Return the means of the plain and of the corrected score of n rows over many draws."""
    rng, d = np.random.default_rng(n), len(variances)
    found = []
    left = min(DRAWS, NUMBERS // (n * d))
    part = max(1, NUMBERS // (8 * n * d))
    while left > 0:
        X = torch.from_numpy(draw(rng, (min(part, left), n, d))) * variances.sqrt().float()
        found.append(torch.stack([isoscore_star(X), isoscore_star(X, bias_corrected=True)]))
        left -= len(X)
    plain, corrected = torch.cat(found, dim=1).double().mean(1).tolist()
    return plain, corrected


def bias_text(rows: Sequence[int], widths: Sequence[int], decays: Sequence[float]) -> str:
    """Return the section: the true score beside mean scores of n rows."""
    lines = []
    for d in widths:
        for decay in decays:
            variances = power_law_variances(d, decay)
            true = float(isoscore_from_covariance(torch.diag(variances)))
            for name, draw in KINDS.items():
                means = [mean_scores(draw, n, variances) for n in rows]
                cells = [f"{corrected:.3f} ({plain:.3f})" for plain, corrected in means]
                lines.append([name, str(d), f"{decay:g}", f"{true:.3f}", *cells])
    header = ["rows", "d", "decay", "true", *(f"n={n}" for n in rows)]
    return (
        "The bias that the corrected IsoScore keeps: mean corrected score of n rows, in brackets "
        "that of the plain score, beside the true score. The estimates of tr(Σ)² and ‖Σ‖² are "
        "without bias, but their ratio, clamped to [1, d], is not: it raises low scores and lowers "
        "scores near 1, by an amount that falls roughly as 1 / n. The variance of dimension k is k "
        f"to the power of minus the decay; up to {DRAWS:,} draws.\n\n"
        f"{markdown_table(header, lines)}\n\nMeasured with {written(versions())}."
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.isoscore_bias")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="N")
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS, metavar="D")
    parser.add_argument("--decays", nargs="+", type=float, default=DECAYS, metavar="POWER")
    add_write_option(parser)
    options = parser.parse_args(arguments)
    if min(options.rows) < 4 or min(options.widths) < 2:
        parser.error("the corrected score needs 4 rows and 2 dimensions")
    text = bias_text(options.rows, options.widths, options.decays)
    publish(text, options.write, "isoscore-bias")
    return 0


if __name__ == "__main__":
    sys.exit(main())

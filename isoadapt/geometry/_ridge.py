"""Ridge regression from moments."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from isoadapt.geometry._moments import Moments
from isoadapt.geometry._spread import is_rounding


def standardised_path(moments: Moments, p: int, ridges: Sequence[float]) -> Iterator[Tensor]:
    """Yield coefficients (p, q) of p columns, standardised for the ridge; others are targets."""
    # All in torch: products of NumPy and SciPy beside it would wait for its threads.
    scatter, cross = moments.scatter[:p, :p], moments.scatter[:p, p:] / moments.count
    deviations = (scatter.diagonal() / moments.count).sqrt()
    constant = is_rounding(deviations, moments.mean[:p].abs())
    scale = (1 / deviations).where(~constant, 0.0)[:, None]
    correlation = scatter * (scale.T / moments.count)
    correlation *= scale
    cross *= scale
    for number, ridge in enumerate(ridges, start=1):
        # Large copies are avoided: the matrix is symmetric, and is transposed for LAPACK.
        factor = (correlation if number == len(ridges) else correlation.clone()).mT
        factor.diagonal().add_(ridge)
        torch.linalg.cholesky(factor, out=factor)
        solved = torch.linalg.solve_triangular(factor, cross, upper=False)
        yield scale * torch.linalg.solve_triangular(factor.mT, solved, upper=True)

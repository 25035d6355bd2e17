"""Checks of the spread of embeddings: there is some, and it is not lost beside their mean."""

import math
import warnings
from typing import Any

from numpy.typing import NDArray

from isoadapt.geometry import Moments

_BLOCK = 1024
_LARGEST_MEAN = 1e5  # in spreads


def check_spread(X: NDArray[Any] | Moments, rows: str = "rows") -> None:
    """Refuse embeddings that are all equal; constant columns among others are admitted.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features), or Moments
        Embeddings.
    rows : str, default="rows"
        How the error names them.

    Raises
    ------
    ValueError
        If all rows are equal.
    """
    if isinstance(X, Moments):
        n_samples, constant = X.count, not X.scatter.diagonal().any()
    else:
        starts = range(0, len(X), _BLOCK)
        n_samples = len(X)
        constant = all((X[start : start + _BLOCK] == X[0]).all() for start in starts)
    if constant:
        raise ValueError(
            f"X is constant: all {n_samples:.0f} {rows} are equal, so there is no spread to adapt; "
            "check that the texts differ and that the encoder is the fine-tuned one"
        )


def warn_of_large_mean(moments: Moments) -> None:
    """Warn where training in float32 would lose the rows' differences beside their mean."""
    spread = math.sqrt(moments.covariance().trace())
    size = float(moments.mean.norm())
    if size > _LARGEST_MEAN * spread:
        warnings.warn(
            f"the mean of X is {size / spread:.1g} times as large as its spread, so training in "
            "float32 loses digits: subtract the mean from X first, or use solver='exact' or "
            "LogitPreservingWhitening",
            stacklevel=4,
        )

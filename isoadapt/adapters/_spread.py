"""Refusing embeddings that have no spread to adapt."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024


def check_spread(X: NDArray[Any], columns: bool = True) -> None:
    """Refuse matrices without a usable covariance.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Embeddings.
    columns : bool, default=True
        Whether every column needs a spread of its own.

    Raises
    ------
    ValueError
        If all rows are equal or, with `columns`, a column is constant.
    """
    constant = np.ones(X.shape[1], dtype=bool)
    for start in range(0, len(X), _BLOCK):
        constant &= (X[start : start + _BLOCK] == X[0]).all(axis=0)
        if not constant.any():
            return
    refuse_constant(constant, len(X), columns)


def refuse_constant(columns_constant: NDArray[np.bool_], n_samples: float, columns: bool) -> None:
    """Refuse what has no usable covariance, given which columns are constant.

    Parameters
    ----------
    columns_constant : ndarray of shape (n_features,)
        Whether all rows are equal there.
    n_samples : float
        Rows that have been seen.
    columns : bool
        Whether every column needs a spread of its own.

    Raises
    ------
    ValueError
        If all columns are constant or, with `columns`, any is.
    """
    constant = np.flatnonzero(columns_constant)
    if len(constant) == len(columns_constant):
        raise ValueError(
            f"X is constant: all {n_samples:.0f} rows are equal, so there is no spread to adapt; "
            "check that the texts differ and that the encoder is the fine-tuned one"
        )
    if columns and len(constant):
        raise ValueError(
            f"X has {len(constant)} constant column(s): {constant[:5].tolist()}. They have no "
            "spread to adapt: drop them with sklearn.feature_selection.VarianceThreshold (and "
            "from the head), or fit on more rows"
        )

"""Cosines between the rows of a matrix, without ever forming all pairs."""

import torch
from torch import Tensor


def cosine_sum(X: Tensor) -> Tensor:
    """Sum of the cosines of all ordered pairs of different rows, in O(nd).

    Parameters
    ----------
    X : Tensor of shape (..., n, d)
        Rows; a zero row has cosine 0 with every other.

    Returns
    -------
    Tensor of shape (...)
        ``sum_{i != j} cos(x_i, x_j)``.
    """
    norms = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    unit = torch.where(norms == 0, 0.0, X / norms.where(norms != 0, 1.0))
    return unit.sum(-2).square().sum(-1) - unit.square().sum((-2, -1))


def mean_cosine(X: Tensor) -> Tensor:
    """Mean cosine over all pairs of different rows.

    Parameters
    ----------
    X : Tensor of shape (..., n, d)
        Rows, n at least 2.

    Returns
    -------
    Tensor of shape (...)
        In [-1, 1].
    """
    n = X.shape[-2]
    return cosine_sum(X) / (n * (n - 1))

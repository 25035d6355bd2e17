"""Sums and means of the cosines between the rows of a matrix, in O(n d)."""

import torch
from torch import Tensor


def cosine_sum(X: Tensor) -> Tensor:
    """Sum of the cosines of all ordered pairs of different rows of X (..., n, d); shape (...).

    A zero row has cosine 0 with every other row.
    """
    norms = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    unit = torch.where(norms == 0, 0.0, X / norms.where(norms != 0, 1.0))
    return unit.sum(-2).square().sum(-1) - unit.square().sum((-2, -1))


def mean_cosine(X: Tensor) -> Tensor:
    """Mean cosine over all pairs of different rows of X (..., n, d), n at least 2; shape (...)."""
    n = X.shape[-2]
    return cosine_sum(X) / (n * (n - 1))

"""Measures of a spectrum: variances along the principal directions, descending."""

import torch
from torch import Tensor


def spectrum(X: Tensor, center: bool = True) -> Tensor:
    """Squared singular values of a point cloud, largest first.

    Parameters
    ----------
    X : Tensor of shape (n, d)
        Points.
    center : bool, default=True
        Subtract the mean first.

    Returns
    -------
    Tensor of shape (min(n, d),)
        Squared singular values, from the smaller of the Gram matrix and the scatter.
    """
    if center:
        X = X - X.mean(0)
    small = X @ X.T if len(X) < X.shape[1] else X.T @ X
    return torch.linalg.eigvalsh(small).flip(0).clamp(min=0)


def cumulative_explained_variance(variances: Tensor, k: int) -> Tensor:
    """Share of the k largest variances, EV_k.

    Parameters
    ----------
    variances : Tensor of shape (r,)
        Descending.
    k : int
        How many.

    Returns
    -------
    Tensor of shape ()
        In [0, 1].
    """
    return variances[:k].sum() / variances.sum()


def anisotropy(variances: Tensor, k: int) -> Tensor:
    """Share of the k-th largest variance, anisotropy_k.

    Parameters
    ----------
    variances : Tensor of shape (r,)
        Descending.
    k : int
        Which, from 1.

    Returns
    -------
    Tensor of shape ()
        In [0, 1]; 0 beyond the last.
    """
    return variances[k - 1 : k].sum() / variances.sum()


def effective_rank(variances: Tensor) -> Tensor:
    """Exponential of the entropy of the normalised variances (Roy and Vetterli, 2007).

    Parameters
    ----------
    variances : Tensor of shape (r,)
        Not negative.

    Returns
    -------
    Tensor of shape ()
        In [1, r].
    """
    shares = variances / variances.sum()
    return torch.special.entr(shares).sum().exp().clamp(1, len(shares))

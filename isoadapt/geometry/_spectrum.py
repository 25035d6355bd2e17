"""Spectra of point clouds, and measures of the variances along principal directions."""

import torch
from torch import Tensor


def spectrum(X: Tensor, center: bool = True) -> Tensor:
    """Squared singular values (min(n, d),) of points X (n, d), largest first.

    They are the eigenvalues of the smaller of the Gram matrix and the scatter. The mean is
    subtracted first if `center` is set.
    """
    if center:
        X = X - X.mean(0)
    small = X @ X.T if len(X) < X.shape[1] else X.T @ X
    return torch.linalg.eigvalsh(small).flip(0).clamp(min=0)


def cumulative_explained_variance(variances: Tensor, k: int) -> Tensor:
    """EV_k: share of the k largest of `variances` (r,), which are in descending order."""
    return variances[:k].sum() / variances.sum()


def anisotropy(variances: Tensor, k: int) -> Tensor:
    """Share of the k-th of `variances` (r,), descending and counted from 1; 0 for k > r."""
    return variances[k - 1 : k].sum() / variances.sum()


def effective_rank(variances: Tensor) -> Tensor:
    """Exponential of the entropy of normalised `variances` (r,) (Roy and Vetterli, 2007)."""
    shares = variances / variances.sum()
    return torch.special.entr(shares).sum().exp().clamp(1, len(shares))

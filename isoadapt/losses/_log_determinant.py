"""Minus the log-determinant of the correlations, for features that depend on each other."""

import torch
from torch import Tensor, nn

from isoadapt.losses._isoscore import check_points


class LogDeterminantLoss(nn.Module):
    """Minus the mean logarithm of the eigenvalues of the shrunk correlation matrix.

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import LogDeterminantLoss
    >>> bool(LogDeterminantLoss()(torch.randn(500, 3)) < 0.2)
    True
    """

    def forward(self, Z: Tensor) -> Tensor:
        """Compute the penalty.

        Parameters
        ----------
        Z : Tensor of shape (..., n, d)
            Points.

        Returns
        -------
        Tensor of shape (...)
            One penalty for each member.
        """
        check_points(Z)
        centred = Z - Z.mean(-2, keepdim=True)
        centred = centred / centred.square().sum(-2, keepdim=True).clamp(min=1e-12).sqrt()
        eye = torch.eye(Z.shape[-1], device=Z.device, dtype=Z.dtype)
        return -torch.logdet(0.9 * centred.mT @ centred + 0.1 * eye) / Z.shape[-1]

"""Cosine regularisation."""

import torch
from torch import Tensor, nn

from isoadapt.geometry import cosine_sum


class CosRegLoss(nn.Module):
    """Penalty on cosines: their sum over all ordered pairs of different rows, over n².

    It moves the mean of the points towards the origin and says nothing of their covariance:
    isotropy in the sense of IsoScore does not follow.

    References
    ----------
    Gao et al. (2019), "Representation Degeneration Problem in Training Natural Language
    Generation Models"; compared with in Rudman and Eickhoff, "Stable Anisotropic
    Regularization".

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import CosRegLoss
    >>> CosRegLoss()(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    tensor(0.1250)
    """

    def forward(self, Z: Tensor) -> Tensor:
        """Compute the penalty in O(n d).

        Parameters
        ----------
        Z : Tensor of shape (..., n, d)
            Points; a zero row has cosine 0 with every other.

        Returns
        -------
        Tensor of shape (...)
            One penalty for each member, in [-1, 1]; 0 for a single row.
        """
        with torch.autocast(Z.device.type, enabled=False):
            wide = Z.to(torch.promote_types(Z.dtype, torch.float32))
            return cosine_sum(wide) / max(Z.shape[-2], 1) ** 2

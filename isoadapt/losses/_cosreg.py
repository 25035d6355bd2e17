"""Cosine regularisation penalty."""

import torch
from torch import Tensor, nn

from isoadapt.geometry._spread import unit_sums
from isoadapt.losses._isoscore import check_points


class CosRegLoss(nn.Module):
    """Cosine regularisation: the sum of the cosines of all pairs of different rows, divided by n².

    It moves the mean of the points towards the origin and does not act on their covariance, so it
    does not by itself raise IsoScore.

    Notes
    -----
    The penalty is ``(1 / n²) sum_{i != j} cos(z_i, z_j)``.

    References
    ----------
    Gao et al. (2019), "Representation Degeneration Problem in Training Natural Language
    Generation Models". It is a baseline in Rudman and Eickhoff, "Stable Anisotropic
    Regularization".

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import CosRegLoss
    >>> CosRegLoss()(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    tensor(0.1250)
    """

    def forward(self, Z: Tensor) -> Tensor:
        """Compute one penalty (...) in [-1, 1] of points Z (..., n, d), in O(n d).

        A zero row has cosine 0 with every other row, and a single row gives 0. Half precision is
        computed in float32. ValueError is raised if Z has fewer than two dimensions.
        """
        check_points(Z)
        with torch.autocast(Z.device.type, enabled=False):
            direction, count = unit_sums(Z.to(torch.promote_types(Z.dtype, torch.float32)))
            return (direction.square().sum(-1) - count) / max(Z.shape[-2], 1) ** 2

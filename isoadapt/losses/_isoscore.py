"""Isotropy penalty based on IsoScore*, and the check of the points of all penalties."""

from typing import Any

import torch
from torch import Tensor, nn

from isoadapt.geometry._isoscore import FactoredCovariance, isoscore_star

_FLOOR = 1e-6  # smaller scores are raised to it, so that -log stays finite


def check_points(Z: Any) -> None:
    """Raise ValueError unless Z is a tensor of shape (..., n, d)."""
    if not isinstance(Z, Tensor) or Z.ndim < 2:
        given = f"a tensor of shape {tuple(Z.shape)}" if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(
            f"Z is {given}; it must be a tensor of shape (..., n, d), with one row for each of n "
            "points"
        )


def fewest_points(zeta: float, bias_corrected: bool) -> int:
    """Return the number of points that the penalty needs to have a gradient."""
    if bias_corrected:
        return 4
    return 2 if zeta else 3  # the IsoScore of two points is always 0


class IsoScoreLoss(nn.Module):
    """Penalty that decreases as IsoScore* increases.

    Parameters
    ----------
    zeta : float or Tensor of shape (...), default=0.0
        Weight ζ of the shrinkage covariance Σ_S, in [0, 1]. A tensor holds one weight for each
        member.
    form : {"log", "linear"}, default="log"
        "log" is -log IsoScore*, the penalty of the Isotropy Layer. "linear" is 1 - IsoScore*, the
        penalty of I-STAR.
    bias_corrected : bool, default=False
        Estimate tr(Σ)² and ‖Σ‖² of the covariance Σ of the batch without bias, whatever the
        distribution of the rows. Batches then need 4 rows; otherwise they need 3, or 2 with `zeta`
        above 0. With `zeta` above 0 only the terms quadratic in Σ change, because the others are
        unbiased.

    Attributes
    ----------
    n_degenerate : Tensor of shape ()
        Number of point clouds so far with too few rows or without variance. Their penalty is 0,
        with zero gradient.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization" (I-STAR), equation 3.

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import IsoScoreLoss
    >>> Z = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> IsoScoreLoss(form="linear")(Z)
    tensor(0.)
    """

    n_degenerate: Tensor

    def __init__(
        self, zeta: float | Tensor = 0.0, form: str = "log", bias_corrected: bool = False
    ) -> None:
        super().__init__()
        weights = torch.as_tensor(zeta)
        if not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ValueError(f"zeta={zeta!r} must lie in [0, 1]")
        if form not in ("log", "linear"):
            raise ValueError(f"form={form!r} must be 'log' or 'linear'")
        self.zeta, self.form, self.bias_corrected = zeta, form, bias_corrected
        self.register_buffer("n_degenerate", torch.zeros((), dtype=torch.long))

    def extra_repr(self) -> str:
        return f"zeta={self.zeta!r}, form={self.form!r}, bias_corrected={self.bias_corrected!r}"

    def forward(self, Z: Tensor, prior_cov: Tensor | FactoredCovariance | None = None) -> Tensor:
        """Compute one penalty (...) of points Z (..., n, d).

        It is NaN where points are not finite, or so large that squares of their covariance
        overflow. `prior_cov` (d, d) or (..., d, d) is the shrinkage covariance Σ_S, None the
        identity. The adapters pass a factor of Σ_S, which costs less if it is trained. ValueError
        is raised if Z has fewer than two dimensions.
        """
        check_points(Z)
        n, d = Z.shape[-2:]
        if n < (4 if self.bias_corrected else 2) or d < 2:
            zero_loss = Z.sum((-2, -1)) * 0
            self.n_degenerate += zero_loss.numel()
            return zero_loss.to(torch.promote_types(Z.dtype, torch.float32))
        score = isoscore_star(Z, prior_cov, self.zeta, self.bias_corrected)
        degenerate = score.detach().isnan()
        if n == 2:  # the IsoScore of two points is always 0
            degenerate = degenerate | (torch.as_tensor(self.zeta, device=score.device) == 0)
        if degenerate.device.type != "cpu" or degenerate.any():  # a GPU would be waited for
            degenerate = degenerate & _has_finite_squares(Z.detach().to(score.dtype))
            # Points may lie on another device than the module.
            self.n_degenerate = self.n_degenerate.to(Z.device) + degenerate.sum()
            score = score.masked_fill(degenerate, 1.0)
        score = score.clamp(_FLOOR, 1)
        return -score.log() if self.form == "log" else 1 - score


def _has_finite_squares(points: Tensor) -> Tensor:
    """Whether points (..., n, d) and the squares of their covariance are finite."""
    centred = points - points.mean(-2, keepdim=True)
    return (torch.linalg.vector_norm(centred, dim=(-2, -1)) ** 4).isfinite()

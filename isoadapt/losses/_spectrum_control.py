"""Spectrum control penalty."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from isoadapt.losses._isoscore import check_points

_GAMMA = {"polynomial": -0.5, "exponential": 1.0}  # default exponent of each decay


class SpectrumControlLoss(nn.Module):
    """Squared distance of the singular values from a prescribed decay.

    Parameters
    ----------
    decay : {"polynomial", "exponential"}, default="polynomial"
        Shape of the target; see the notes.
    c1 : float, default=None
        Scale of the target, above zero. None takes the largest singular value of the first call
        with finite points that are not all zero; until then the penalty is 0, or NaN for points
        that are not finite.
    c2 : float, default=0.01
        Rate of the exponential decay, above zero.
    gamma : float, default=None
        Exponent γ. None is -0.5 for "polynomial" and 1 for "exponential".
    per_row : bool, default=True
        Divide the singular values by √n, which turns them into the square roots of the eigenvalues
        of the second moment of n points. Use False for a weight matrix.

    Attributes
    ----------
    c1 : Tensor of shape (...)
        Scale in use; NaN until it is known.

    Raises
    ------
    ValueError
        If a parameter is out of its range.

    Notes
    -----
    The penalty is ``sum_k (σ_k - c_1 f(k))²`` over the singular values σ_1 ≥ σ_2 ≥ …, with
    ``f(k) = k^γ`` for "polynomial" and ``f(k) = exp(-c_2 k^γ)`` for "exponential".

    References
    ----------
    Wang et al. (2020), "Improving Neural Language Generation with Spectrum Control".

    Examples
    --------
    >>> import torch
    >>> from isoadapt.losses import SpectrumControlLoss
    >>> SpectrumControlLoss(c1=2.0, per_row=False)(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(0.1716)
    """

    c1: Tensor

    def __init__(
        self,
        decay: str = "polynomial",
        c1: float | None = None,
        c2: float = 0.01,
        gamma: float | None = None,
        per_row: bool = True,
    ) -> None:
        super().__init__()
        if decay not in _GAMMA:
            raise ValueError(f"decay={decay!r} must be 'polynomial' or 'exponential'")
        for name, value in (("c1", c1), ("c2", c2)):
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value!r} must be above zero and finite")
        self.decay, self.c2, self.per_row = decay, c2, per_row
        if gamma is not None and not math.isfinite(gamma):
            raise ValueError(f"gamma={gamma!r} must be finite")
        self.gamma = _GAMMA[decay] if gamma is None else gamma
        start = float("nan") if c1 is None else c1
        self.register_buffer("c1", torch.tensor(start, dtype=torch.float64))
        # A plain attribute: reading it does not synchronise the device.
        self._c1_unset = c1 is None

    def extra_repr(self) -> str:
        c1 = None if self._c1_unset else self.c1.tolist()
        return f"decay={self.decay!r}, c1={c1}, gamma={self.gamma}, per_row={self.per_row}"

    def forward(self, Z: Tensor) -> Tensor:
        """Compute one penalty (...) of points or a weight matrix Z (..., n, d); NaN if not finite.

        Half precision is computed in float32. ValueError is raised for fewer than two dimensions.
        """
        check_points(Z)
        with torch.autocast(Z.device.type, enabled=False):
            wide = Z.to(torch.promote_types(Z.dtype, torch.float32))
            finite = wide.isfinite().all(-1).all(-1)
            values = torch.linalg.svdvals(wide.where(finite[..., None, None], 0.0))
            if self.per_row:
                values = values / max(Z.shape[-2], 1) ** 0.5
            if self._c1_unset and values.shape[-1]:
                largest = values.detach()[..., 0].double()
                found = largest.where(largest > 0, torch.nan)
                self.c1 = found.where(self.c1.isnan(), self.c1)  # for members without a scale
                self._c1_unset = bool(self.c1.isnan().any())
            target = self.target(values.shape[-1]).nan_to_num(0.0)  # unknown: all values are 0
            distance = (values - target.to(values)).square().sum(-1)
            return distance.where(finite, torch.nan)

    def target(self, n_values: int) -> Tensor:
        """Return the singular values (..., n_values) at which the penalty is zero.

        They are ``c_1 f(k)`` for k from 1 to `n_values`, in float64; descending for the default γ.
        """
        k = torch.arange(1, n_values + 1, dtype=self.c1.dtype, device=self.c1.device)
        shape = k**self.gamma
        if self.decay == "exponential":
            shape = torch.exp(-self.c2 * shape)
        return self.c1[..., None] * shape

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}c1" in state:
            self.c1 = torch.empty_like(state[f"{prefix}c1"], device=self.c1.device)
        super()._load_from_state_dict(state, prefix, *rest)
        self._c1_unset = bool(self.c1.isnan().any())

"""Adapter with spectrum control, a prescribed decay of the singular values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._engine._network import Layer
from isoadapt.adapters._engine._task import Penalty, Problem, stacked
from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.geometry import Moments
from isoadapt.losses import SpectrumControlLoss

_SVD_INTERVAL = 10  # steps between two decompositions


@dataclass(eq=False, repr=False, kw_only=True)
class SpectrumControlAdapter(WeightedPenaltyAdapter):
    """Adapter whose singular values of the adapted embeddings are drawn to a prescribed decay.

    The loss is the task loss plus ``lam * sum_k (σ_k - c_1 f(k))²``. The σ_k are the singular
    values of all n adapted training rows, computed from their second moment and divided by √n, in
    units of the size of the embeddings. c_1 is the largest one before training.

    Parameters
    ----------
    <linear head>
    lam : float, default=1.0
        Weight λ >= 0 of the penalty. 0 is the control without a penalty.
    decay : {"polynomial", "exponential"}, default="polynomial"
        Prescribed decay: f(k) = k^(-1/2) for "polynomial", exp(-k/100) for "exponential".

    <attributes and training>

    References
    ----------
    Wang et al. (2020), "Improving Neural Language Generation with Spectrum Control".

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import SpectrumControlAdapter
    >>> from isoadapt.metrics import cumulative_explained_variance
    >>> X, y = make_classification(500, 10, n_informative=3, random_state=0)
    >>> adapter = SpectrumControlAdapter("logistic", random_state=0).fit(X, y)
    >>> adapter.transform(X).shape
    (500, 10)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "decay": [StrOptions({"polynomial", "exponential"})],
        "lam": [Interval(Real, 0, None, closed="left")],
    }

    decay: str = "polynomial"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        largest = torch.linalg.eigvalsh(problem.moments.second_moment())[-1]
        c1 = float(largest.sqrt()) / problem.coordinates.scale
        inputs = _second_moment_root(problem.moments.mapped(*problem.coordinates.into))
        root = torch.as_tensor(inputs, dtype=torch.float32, device=device)[None]
        loss = SpectrumControlLoss(self.decay, c1=c1, per_row=False).to(device)
        return _ExactSpectrum(loss, root, loss.target(root.shape[-1] - 1)[None])


class _ExactSpectrum(Penalty):
    """The penalty of all outputs of a layer, bounded from above between decompositions.

    Let M be the second moment of the inputs with a constant 1. B = [A c] M^(1/2) has the singular
    values of the outputs. For orthonormal U and V, ⟨B, U diag(t) Vᵀ⟩ <= Σ σ_k t_k (von Neumann), so
    ‖B - U diag(t) Vᵀ‖² is an upper bound of the penalty, with the same value and gradient if U and
    V are the singular vectors of B. These are updated every few steps, and whenever gradients are
    disabled.
    """

    def __init__(self, loss: Callable[..., Tensor], root: Tensor, target: Tensor) -> None:
        super().__init__(loss)
        self.root, self.target = root, target  # (K or 1, d + 1, d + 1) and t of shape (K or 1, d)
        self.step = 0

    def join(self, others: Sequence["_ExactSpectrum"]) -> "_ExactSpectrum":
        members = (self, *others)
        roots, targets = [each.root for each in members], [each.target for each in members]
        return _ExactSpectrum(self.loss, stacked(roots), stacked(targets))

    def refresh(self, layer: Layer) -> None:
        self.step = 0

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        outputs = torch.cat([layer.weight, layer.bias.mT], -1) @ self.root
        if self.step % _SVD_INTERVAL == 0 or not torch.is_grad_enabled():
            U, _, Vh = torch.linalg.svd(outputs.detach().double(), full_matrices=False)
            self.nearest = ((U * self.target[:, None]) @ Vh).to(outputs)
        self.step += torch.is_grad_enabled()
        return (outputs - self.nearest).square().sum((-2, -1))


def _second_moment_root(moments: Moments) -> Floats:
    """Return a root (d + 1, d + 1) of the second moment of the rows with a constant 1 appended."""
    identity = np.eye(len(moments) + 1)
    appended = moments.mapped(identity[:, :-1], identity[-1])
    eigenvalues, vectors = descending_eigh(appended.second_moment().numpy())
    return vectors * np.sqrt(eigenvalues)

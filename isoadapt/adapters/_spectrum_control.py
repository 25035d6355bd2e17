"""Spectrum control on frozen embeddings."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt.adapters._linalg import descending_eigh
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.geometry import Moments
from isoadapt.losses import SpectrumControlLoss

_STEPS = 10  # between two decompositions


@dataclass(eq=False, repr=False, kw_only=True)
class SpectrumControlAdapter(PenalisedAdapter):
    """An adapter whose outputs' singular values are drawn to a decay that is prescribed.

    The loss is the task's plus ``lam * sum_k (σ_k - c_1 f(k))²``, with σ the singular values of
    the outputs over √n and c_1 the largest one at the start. For a linear network they are
    those of all rows trained on, from the second moment; "mlp" takes each batch's. All are in
    units of the embeddings' size.

    Parameters
    ----------
    decay : {"polynomial", "exponential"}, default="polynomial"
        The shape: f(k) = k^(-1/2) or exp(-k/100).
    lam : float, default=1.0
        Weight λ of the penalty, zero or more; 0 is the control.

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
        **PenalisedAdapter._parameter_constraints,
        "decay": [StrOptions({"polynomial", "exponential"})],
        "lam": [Interval(Real, 0, None, closed="left")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}

    decay: str = "polynomial"
    lam: float = 1.0
    coordinates: str = "whitened"
    ridge: float | str = "auto"
    lr_schedule: str = "linear"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        largest = torch.linalg.eigvalsh(problem.moments.second_moment())[-1]
        c1 = float(largest.sqrt()) / problem.coordinates.scale
        linear = self.network == "linear"
        loss = SpectrumControlLoss(self.decay, c1=c1, per_row=not linear).to(device)
        if not linear:
            return Penalty(loss)
        inputs = _second_moment_root(problem.moments.mapped(*problem.coordinates.into))
        return _ExactSpectrum(loss, torch.as_tensor(inputs, dtype=torch.float32, device=device))

    def _penalty_weight(self) -> float:
        return self.lam


class _ExactSpectrum(Penalty):
    """The penalty of all outputs of a linear network, bounded from above between steps.

    With M the second moment of the inputs and a constant 1, the outputs' singular values are
    those of B = [A c] M^(1/2). For any orthonormal U and V, ⟨B, U diag(t) Vᵀ⟩ <= Σ σ_k t_k (von
    Neumann), so ‖B - U diag(t) Vᵀ‖² is no less than the penalty, and equals it in value and
    gradient where U and V are B's own. These are renewed every few steps, and wherever no
    gradient is asked for.
    """

    def __init__(self, loss: SpectrumControlLoss, root: Tensor) -> None:
        super().__init__(loss)
        self.goal = loss.target(len(root) - 1)
        self.root, self.step = root, 0

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        self.step = 0

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        outputs = torch.cat([network.weight, network.bias.mT], -1) @ self.root
        if self.step % _STEPS == 0 or not torch.is_grad_enabled():
            U, _, Vh = torch.linalg.svd(outputs.detach().double(), full_matrices=False)
            self.nearest = ((U * self.goal) @ Vh).to(outputs)
        self.step += torch.is_grad_enabled()
        return (outputs - self.nearest).square().sum((-2, -1))


def _second_moment_root(moments: Moments) -> Floats:
    """Factor of the second moment of the rows with a constant 1 appended, (d + 1, d + 1)."""
    mean = moments.mean.numpy()
    second = np.block(
        [[moments.second_moment().numpy(), mean[:, None]], [mean[None], np.ones((1, 1))]]
    )
    eigenvalues, vectors = descending_eigh(second)
    return vectors * np.sqrt(eigenvalues)

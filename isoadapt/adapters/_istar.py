"""Adapter with the penalty of I-STAR, 1 - IsoScore* of the adapted embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from isoadapt._utils.sklearn_private import Interval, StrOptions
from isoadapt.adapters._engine._network import Layer
from isoadapt.adapters._engine._task import Penalty, Problem, stacked
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import to_tensor
from isoadapt.geometry._isoscore import FactoredCovariance, SquaredNorm
from isoadapt.losses import IsoScoreLoss
from isoadapt.losses._isoscore import fewest_points

_STEPS = 16  # most steps from one exact computation of ‖Σ_S‖² to the next
_SHARE = 6.0  # these steps for equal shares of what is exact and what is estimated
_MOVE = 0.032  # these steps, times lr ζ


@dataclass(eq=False, repr=False, kw_only=True)
class IStarAdapter(WeightedPenaltyAdapter):
    """Adapter trained on the task loss plus lam (1 - IsoScore*) of the adapted embeddings.

    The covariance of a small batch is a poor estimate. IsoScore* therefore mixes the covariance Σ
    of the batch with the covariance Σ_S of all training rows, as (1 - zeta) Σ + zeta Σ_S.

    Parameters
    ----------
    <linear head>
    lam : float, default=1.0
        Weight λ of the penalty. A positive weight raises isotropy. A negative weight lowers it,
        which gives the best scores in the paper. 0 is the control without a penalty.
    zeta : float, default=0.2
        Weight ζ of Σ_S, in [0, 1].
    bias_corrected : bool, default=False
        Whether to correct most of the bias of the penalty in small batches. With zeta=0 this
        replaces the shrinkage. The penalty then needs batches of at least 4 rows; otherwise it
        needs 3, or 2 with zeta above 0.
    shrinkage : {"exact", "detached"}, default="exact"
        "exact" uses Σ_S of the current weights in each step, with its gradient. It is AΣAᵀ and
        needs no pass over the rows. Only ‖Σ_S‖² is estimated in most steps, see Notes. "detached"
        computes Σ_S without gradient at the start of each epoch, as in the paper; only the
        validation uses Σ_S of the current weights.

    <attributes and training>

    Notes
    -----
    With ``shrinkage="exact"``, the products that give ‖Σ_S‖² and its gradient G would take longer
    than the rest of a training step. They are computed at the start of each epoch and then every n
    steps, where n is the smallest of 16, 6 (1 - ζ²) / ζ² and 0.032 / (lr ζ), rounded down, but at
    least 1. In between, ‖Σ_S‖² is estimated as f (⟨G, A⟩ / 4f)⁴, where f and G are its last exact
    value and gradient, and A are the current weights. The estimate is exact for a change of scale
    and never too large. Everything else is exact in each step.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization", equation 3 and algorithm 1. The paper
    regularises fine-tuning; here the encoder is frozen.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import IStarAdapter
    >>> from isoadapt.metrics import isoscore
    >>> X, y = make_classification(500, 10, n_informative=6, random_state=0)
    >>> low, high = (IStarAdapter(lam=lam, random_state=0).fit(X, y) for lam in (-5, 5))
    >>> isoscore(low.transform(X)) < isoscore(high.transform(X))
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "bias_corrected": ["boolean"],
        "zeta": [Interval(Real, 0, 1, closed="both")],
        "shrinkage": [StrOptions({"exact", "detached"})],
    }
    _batchable_params: ClassVar[frozenset[str]] = WeightedPenaltyAdapter._batchable_params | {
        "zeta"
    }

    bias_corrected: bool = False
    zeta: float = 0.2
    shrinkage: str = "exact"

    def _batch_key(self) -> tuple[Any, ...]:
        return *super()._batch_key(), bool(self.zeta)

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(self.zeta, "linear", self.bias_corrected)
        least_rows = fewest_points(self.zeta, self.bias_corrected)
        if not self.zeta:
            return Penalty(loss, least_rows, shared=True, shifts=False)
        return _ExactShrinkage(
            loss=loss,
            inputs_root=to_tensor(problem.inputs_root, device)[None],
            steps=[_steps_between(self.zeta, self._rates(problem.coordinates.n_read).lr)],
            detached=self.shrinkage == "detached",
            least_rows=least_rows,
        )


def _steps_between(zeta: float, lr: float) -> int:
    """Steps from one exact computation of ‖Σ_S‖² to the next."""
    # The error of the estimate grows as the weights move. Of the squared norm of the mixture, it
    # concerns the share ζ²; if the rest, which is exact, is small, training exploits the error.
    zeta, lr = max(zeta, 1e-3), max(lr, 1e-6)
    limit = min(_STEPS, _SHARE * (1 / zeta**2 - 1), _MOVE / (lr * zeta))
    return max(1, int(limit + 1e-6))


@dataclass(eq=False, kw_only=True)
class _ExactShrinkage(Penalty):
    """IsoScore* with Σ_S of the outputs, of which ‖Σ_S‖² is exact at every `steps[k]`-th step."""

    loss: IsoScoreLoss
    shifts: bool = False
    inputs_root: Tensor  # of the covariance, (K or 1, d, d), or its diagonal (K or 1, d)
    steps: list[int]
    detached: bool
    _n_steps: int = 0  # in this epoch
    _squared_norm: SquaredNorm | None = None  # the last exact one of each member

    def join(self, others: Sequence["_ExactShrinkage"]) -> "_ExactShrinkage":
        members = (self, *others)
        zetas = self.inputs_root.new_tensor([member.loss.zeta for member in members])
        zeta = zetas if others else self.loss.zeta
        loss = IsoScoreLoss(zeta, "linear", self.loss.bias_corrected)
        return _ExactShrinkage(
            loss=loss.to(self.inputs_root.device),
            inputs_root=stacked([member.inputs_root for member in members]),
            steps=[own for member in members for own in member.steps],
            detached=self.detached,
        )

    def refresh(self, layer: Layer) -> None:
        self._n_steps = 0
        if self.detached:
            root = self._outputs_root(layer).detach()
            self.prior_cov = root @ root.mT

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        if self.detached and torch.is_grad_enabled():
            return self.loss(points, self.prior_cov)
        root = self._outputs_root(layer)
        if not torch.is_grad_enabled():
            return self.loss(points, root @ root.mT)
        norm = self._renewed_squared_norm(root.detach())
        return self.loss(points, FactoredCovariance(root, norm))

    def _renewed_squared_norm(self, root: Tensor) -> SquaredNorm:
        """Compute ‖Σ_S‖² and its gradient for those members whose turn it is in this step."""
        due = [k for k, steps in enumerate(self.steps) if self._n_steps % steps == 0]
        self._n_steps += 1
        if self._squared_norm is None:
            self._squared_norm = SquaredNorm.at(root)
        else:
            self._squared_norm.renew(due, root)
        return self._squared_norm

    def _outputs_root(self, layer: Layer) -> Tensor:
        """Return a root B (K, d, d) of the outputs' covariance BBᵀ."""
        if self.inputs_root.ndim == 2:
            return layer.weight * self.inputs_root[:, None]
        return layer.weight @ self.inputs_root

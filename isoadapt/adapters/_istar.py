"""I-STAR on frozen embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt._utils.devices import to_tensor
from isoadapt.adapters._isoscore_adapter import IsoScoreAdapter, IsoScorePenalty
from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._prior_cov import outputs_covariance
from isoadapt.adapters._training._problem import Problem
from isoadapt.losses import IsoScoreLoss


@dataclass(eq=False, repr=False, kw_only=True)
class IStarAdapter(IsoScoreAdapter):
    """An adapter trained on the task's loss plus lam (1 - IsoScore*) of its outputs.

    IsoScore* mixes the covariance Σ of a batch with Σ_S, that of all rows trained on, as
    (1 - zeta) Σ + zeta Σ_S, because small batches say little about a covariance.

    Parameters
    ----------
    lam : float, default=1.0
        Weight λ of the penalty: above zero it raises isotropy, below zero it lowers it (where
        the paper finds its best scores), 0 is the control without a penalty.
    zeta : float, default=0.2
        Weight ζ of Σ_S, in [0, 1].
    shrinkage : {"exact", "detached"}, default="exact"
        "exact" computes Σ_S from the current weights in each step, with its gradient: for a linear
        network it is AΣAᵀ and needs no pass over the rows. "detached" recomputes it at the start
        of each epoch, as in the paper; so does "mlp" either way.
    n_shrinkage : int, default=250_000
        Maximum number of rows from which "mlp" recomputes Σ_S.
    bias_corrected : bool, default=False
        Correct most of the small-batch bias of the score. With zeta=0 this replaces shrinkage.
    solver : {"minibatch", "exact"}, default="minibatch"
        "exact" computes the limit of the training directly, see :class:`IsotropyLayer`. It
        requires lam >= 0 and zeta=0, because neither the size of lam nor Σ_S matters there.

    References
    ----------
    Rudman and Eickhoff, "Stable Anisotropic Regularization", equation 3 and algorithm 1. There
    it regularises fine-tuning; here the encoder is frozen.

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
        **IsoScoreAdapter._parameter_constraints,
        "lam": [Interval(Real, None, None, closed="neither")],
        "zeta": [Interval(Real, 0, 1, closed="both")],
        "shrinkage": [StrOptions({"exact", "detached"})],
        "n_shrinkage": [Interval(Integral, 2, None, closed="left")],
    }
    _batchable_params: ClassVar[frozenset[str]] = IsoScoreAdapter._batchable_params | {
        "lam",
        "zeta",
    }
    _batches_folds: ClassVar[bool] = True

    lam: float = 1.0
    zeta: float = 0.2
    shrinkage: str = "exact"
    n_shrinkage: int = 250_000

    def _check_combination(self) -> None:
        super()._check_combination()
        if self.solver == "exact":
            self._check_solvable("lam", self.lam >= 0, "0 or more")
            self._check_solvable("zeta", self.zeta == 0, "0")

    def _batch_key(self) -> tuple[Any, ...] | None:
        kind = super()._batch_key()
        return None if kind is None else (*kind, bool(self.zeta))

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(self.zeta, "linear", self.bias_corrected).to(device)
        if not self.zeta:
            return IsoScorePenalty(loss)
        if self.network == "mlp":
            return _SampledShrinkage(loss, self.n_shrinkage)
        root = to_tensor(problem.inputs_root, device)
        return _ExactShrinkage(loss, root[None], detached=self.shrinkage == "detached")

    def _penalty_weight(self) -> float:
        return self.lam


class _Shrinkage(IsoScorePenalty):
    """What penalties with Σ_S have in common: members differ in ζ."""

    loss: IsoScoreLoss

    def _joint_loss(self, others: Sequence["_Shrinkage"]) -> IsoScoreLoss:
        if not others:
            return self.loss
        zetas = [member.loss.zeta for member in (self, *others)]
        device = self.loss.n_degenerate.device
        loss = IsoScoreLoss(torch.tensor(zetas, device=device), "linear", self.loss.bias_corrected)
        return loss.to(device)


class _ExactShrinkage(_Shrinkage):
    """Σ_S of a linear network's outputs, from a root of the covariance of its inputs."""

    def __init__(self, loss: IsoScoreLoss, inputs_root: Tensor, detached: bool) -> None:
        super().__init__(loss)
        self.inputs_root, self.detached = inputs_root, detached

    def join(self, others: Sequence["_ExactShrinkage"]) -> "_ExactShrinkage":
        roots = [member.inputs_root for member in (self, *others)]
        alike = all(torch.equal(root, roots[0]) for root in roots)
        root = roots[0] if alike else torch.cat(roots)
        return _ExactShrinkage(self._joint_loss(others), root, self.detached)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        if self.detached:
            root = self._outputs_root(network)
            self.prior_cov = (root @ root.mT).detach()

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        if self.detached:
            return self.loss(points, self.prior_cov)
        return self.loss(points, root=self._outputs_root(network))

    def _outputs_root(self, network: LinearNetwork) -> Tensor:
        """Root of the outputs' covariance, from the inputs' (K or 1, d, d) or (K or 1, d)."""
        if self.inputs_root.ndim == 2:
            return network.weight * self.inputs_root[:, None]
        return network.weight @ self.inputs_root


class _SampledShrinkage(_Shrinkage):
    """Σ_S of any network's outputs, from rows spread evenly over the training rows."""

    def __init__(self, loss: IsoScoreLoss, n_rows: int) -> None:
        super().__init__(loss)
        self.n_rows = n_rows

    def join(self, others: Sequence["_SampledShrinkage"]) -> "_SampledShrinkage":
        return _SampledShrinkage(self._joint_loss(others), self.n_rows)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        self.prior_cov = outputs_covariance(network, batches, self.n_rows)

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        return self.loss(points, self.prior_cov)

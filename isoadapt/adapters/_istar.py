"""I-STAR on frozen embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from isoadapt.adapters._isoscore_adapter import IsoScoreAdapter, IsoScorePenalty
from isoadapt.adapters._maps import Floats
from isoadapt.adapters._members import Problem
from isoadapt.adapters._minibatch import Batches, Penalty, to_device
from isoadapt.adapters._network import LinearNetwork
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss

_CHUNK = 8192
_ROUNDING = 1e-6  # a covariance that near the identity is one in float32


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
        "exact" takes Σ_S from the present weights in each step, gradient included: for a linear
        network it is AΣAᵀ and needs no pass over the rows. "detached" renews it at each epoch's
        start, as the paper does; so does "mlp" either way.
    n_shrinkage : int, default=250_000
        Rows at most from which "mlp" renews Σ_S.
    bias_corrected : bool, default=False
        Take most of the bias of small batches out of the score: with zeta=0 it does without Σ_S
        what shrinkage is for.
    solver : {"minibatch", "exact"}, default="minibatch"
        "exact" goes to the end of the path, see :class:`IsotropyLayer`; for lam of zero or more
        zeta=0 (to be set), since neither the size of lam nor Σ_S matters there.
    ridge : float, default=3e-2
        With "exact", weight of the mean squared change in the head's row space, in units of the
        embeddings' size.

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
    _numbers: ClassVar[frozenset[str]] = IsoScoreAdapter._numbers | {"lam", "zeta"}
    _spans_rows: ClassVar[bool] = True

    lam: float = 1.0
    zeta: float = 0.2
    shrinkage: str = "exact"
    n_shrinkage: int = 250_000

    def _check_combination(self) -> None:
        super()._check_combination()
        if self.solver == "exact":
            self._check_solvable("lam", self.lam >= 0, "0 or more")
            self._check_solvable("zeta", self.zeta == 0, "0")

    def _kind(self) -> tuple[Any, ...] | None:
        kind = super()._kind()
        return None if kind is None else (*kind, bool(self.zeta))

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(self.zeta, "linear", self.bias_corrected).to(device)
        if not self.zeta:
            return IsoScorePenalty(loss)
        if self.network == "mlp":
            return _SampledShrinkage(loss, self.n_shrinkage)
        root = _Root.of(*problem.inputs_spectrum, device)
        return _ExactShrinkage(loss, root, detached=self.shrinkage == "detached")

    def _penalty_weight(self) -> float:
        return self.lam


class _Root(NamedTuple):
    """R = I - VW with RRᵀ a covariance; where the rows are whitened but for a few directions,
    so much less work than a full R.
    """

    V: Tensor  # (d, k) or (K, d, k)
    W: Tensor  # (k, d) or (K, k, d)

    @classmethod
    def of(cls, eigenvalues: Floats, vectors: Floats, device: torch.device) -> "_Root":
        """Give that of a covariance with these eigenvalues and eigenvectors."""
        others = np.abs(eigenvalues - 1) > _ROUNDING
        left = vectors[:, others] * (1 - np.sqrt(eigenvalues[others]))
        return cls(*(to_device(part, device) for part in (left, vectors[:, others].T)))

    @classmethod
    def stacked(cls, roots: Sequence["_Root"]) -> "_Root":
        """Join those of several members."""
        if all(torch.equal(root.V, roots[0].V) for root in roots):
            return roots[0]
        width = max(root.V.shape[-1] for root in roots)
        missing = [width - root.V.shape[-1] for root in roots]
        pairs = list(zip(roots, missing, strict=True))
        return cls(
            torch.stack([F.pad(root.V, (0, k)) for root, k in pairs]),
            torch.stack([F.pad(root.W, (0, 0, 0, k)) for root, k in pairs]),
        )

    def after(self, weight: Tensor) -> Tensor:
        """Give AR."""
        if not self.V.shape[-1]:
            return weight
        return _LessLowRank.apply(weight, *(part.expand(len(weight), -1, -1) for part in self))


class _LessLowRank(torch.autograd.Function):
    """A - AVW, with one matrix of the size of A made on the way there and one on the way back."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, V: Tensor, W: Tensor) -> Tensor:
        ctx.save_for_backward(V, W)
        return torch.baddbmm(A, A @ V, W, alpha=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        V, W = ctx.saved_tensors
        return torch.baddbmm(grad, grad @ W.mT, V.mT, alpha=-1), None, None


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

    def __init__(self, loss: IsoScoreLoss, inputs_root: _Root, detached: bool) -> None:
        super().__init__(loss)
        self.inputs_root, self.detached = inputs_root, detached

    def join(self, others: Sequence["_ExactShrinkage"]) -> "_ExactShrinkage":
        root = _Root.stacked([member.inputs_root for member in (self, *others)])
        return _ExactShrinkage(self._joint_loss(others), root, self.detached)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        if self.detached:
            root = self.inputs_root.after(network.weight)
            self.cov = (root @ root.mT).detach()

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        if self.detached:
            return self.loss(points, self.cov)
        return self.loss(points, root=self.inputs_root.after(network.weight))


class _SampledShrinkage(_Shrinkage):
    """Σ_S of any network's outputs, from rows spread evenly over the training rows."""

    def __init__(self, loss: IsoScoreLoss, n_rows: int) -> None:
        super().__init__(loss)
        self.n_rows = n_rows

    def join(self, others: Sequence["_SampledShrinkage"]) -> "_SampledShrinkage":
        return _SampledShrinkage(self._joint_loss(others), self.n_rows)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        n = batches.index.shape[-1]
        index = batches.index[..., :: -(-n // self.n_rows)]
        moments = [Moments() for _ in network.weight]
        for chunk in index.split(_CHUNK, dim=-1):
            rows = batches.rows.take(chunk)
            weights = None if rows.weights is None else rows.weights.expand(len(moments), -1)
            for k, points in enumerate(network(rows.X)):
                moments[k].update(points, None if weights is None else weights[k])
        self.cov = torch.stack([member.covariance() for member in moments]).to(network.weight)

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        return self.loss(points, self.cov)

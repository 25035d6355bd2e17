"""I-STAR on frozen embeddings."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt.adapters._isoscore_adapter import IsoScoreAdapter
from isoadapt.adapters._minibatch import Penalty, Rows
from isoadapt.adapters._network import LinearNetwork
from isoadapt.adapters._penalised import Problem
from isoadapt.geometry import Moments
from isoadapt.losses import IsoScoreLoss

_CHUNK = 8192


@dataclass(eq=False, repr=False, kw_only=True)
class IStarAdapter(IsoScoreAdapter):
    """An adapter trained on the task's loss plus lam (1 - IsoScore*) of its outputs.

    IsoScore* mixes the covariance Σ of a batch with that of all rows, Σ_S, as
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
        Take the bias of small batches out of the score: with zeta=0 it does without Σ_S what
        shrinkage is for.
    solver : {"minibatch", "exact"}, default="minibatch"
        "exact" goes to the end of the path, see :class:`IsotropyLayer`; for lam of zero or more
        zeta=0 (to be set), since neither the size of lam nor Σ_S matters there.
    ridge : float, default=1e-2
        With "exact", weight of the mean squared change of what the head sees.

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

    lam: float = 1.0
    zeta: float = 0.2
    shrinkage: str = "exact"
    n_shrinkage: int = 250_000

    def _check_combination(self) -> None:
        super()._check_combination()
        if self.solver == "exact":
            self._check_solvable("lam", self.lam >= 0, "0 or more")
            self._check_solvable("zeta", self.zeta == 0, "0")

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(self.zeta, "linear", self.bias_corrected).to(device)
        if not self.zeta:
            return Penalty(loss)
        if self.network == "mlp":
            return _SampledShrinkage(loss, self.n_shrinkage)
        cov = problem.moments.mapped(*problem.coordinates.into).covariance()
        return _ExactShrinkage(
            loss, cov.to(device, torch.float32), detached=self.shrinkage == "detached"
        )

    def _penalty_weight(self) -> float:
        return self.lam


class _ExactShrinkage(Penalty):
    """Σ_S of a linear network's outputs, from the covariance of its inputs."""

    def __init__(self, loss: IsoScoreLoss, inputs_cov: Tensor, detached: bool) -> None:
        super().__init__(loss)
        self.inputs_cov, self.detached = inputs_cov, detached

    def refresh(self, network: LinearNetwork, rows: Rows) -> None:
        if self.detached:
            self.cov = network.covariance(self.inputs_cov).detach()

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        cov = self.cov if self.detached else network.covariance(self.inputs_cov)
        return self.loss(points, cov)


class _SampledShrinkage(Penalty):
    """Σ_S of any network's outputs, from rows spread evenly over the training rows."""

    def __init__(self, loss: IsoScoreLoss, n_rows: int) -> None:
        super().__init__(loss)
        self.n_rows = n_rows

    def refresh(self, network: LinearNetwork, rows: Rows) -> None:
        X = rows.X[:: -(-len(rows.X) // self.n_rows)]
        moments = [Moments() for _ in network.weight]
        for chunk in X.split(_CHUNK):
            for member, points in zip(moments, network(chunk), strict=True):
                member.update(points)
        self.cov = torch.stack([member.covariance() for member in moments]).to(X)

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        return self.loss(points, self.cov)

"""Adapter with the penalty of I-STAR, 1 - IsoScore* of the adapted embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from isoadapt.adapters._penalised import IsoScoreAdapter, IsoScorePenalty
from isoadapt.adapters._rows import Batches, to_tensor
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._problem import Penalty, Problem, outputs_covariance
from isoadapt.geometry._isoscore import FactoredCovariance, SquaredNorm, isoscore_from_covariance
from isoadapt.losses import IsoScoreLoss
from isoadapt.losses._isoscore import fewest_points

_STEPS = 16  # most steps from one exact computation of ‖Σ_S‖² to the next
_SHARE = 6.0  # these steps for equal shares of what is exact and what is estimated
_MOVE = 0.032  # these steps, times lr ζ


@dataclass(eq=False, repr=False, kw_only=True)
class IStarAdapter(IsoScoreAdapter):
    """Adapter trained on the task loss plus lam (1 - IsoScore*) of the adapted embeddings.

    The covariance of a small batch is a poor estimate. IsoScore* therefore mixes the covariance Σ
    of the batch with the covariance Σ_S of all training rows, as (1 - zeta) Σ + zeta Σ_S.

    Parameters
    ----------
    head : LinearHead, linear estimator, {"logistic", "ridge"} or None, default="logistic"
        The linear head that is applied to the adapted embeddings, as in :class:`IsotropyLayer`.
        With None, the adapter is trained for the penalty alone.
    balance : {"ema", "cumulative"} or None, default=None
        How the task loss and the penalty are balanced. "ema" scales both to a common size by their
        moving means, "cumulative" by their means over all steps so far, see
        :class:`~isoadapt.losses.JointLoss`. None adds the two without scaling.
    smoothing : float, default=0.15
        Smoothing factor of the moving means of "ema", in (0, 1]. A larger value gives more weight
        to recent steps.
    network : {"linear", "mlp"}, default="linear"
        "linear" trains one linear layer. "mlp" adds a branch with one hidden layer of the same
        width; the fitted map is then not affine and has no inverse.
    head_training : {"frozen", "joint", "alternating"}, default="frozen"
        "frozen" keeps the head as it is. "joint" trains it together with the adapter.
        "alternating" trains the adapter in odd epochs and the head in even ones.
    coordinates : {"whitened", "raw"}, default="whitened"
        Coordinates in which the adapter is trained, as in :class:`IsotropyLayer`. The fitted map
        applies to the original embeddings in either case.
    ridge : float or "auto", default="auto"
        Weight, in the task loss, of the mean squared change of the head's outputs, as in
        :class:`IsotropyLayer`. 0, as in the papers, allows any change, "auto" estimates it.
    lr : float or "auto", default="auto"
        Learning rate of AdamW. "auto" is 0.001, with one exception: if one linear layer is trained
        in whitened coordinates with a frozen head, it is 0.01 for the outputs outside the row space
        of the head.
    lr_schedule : {"linear", "constant"}, default="linear"
        "linear" lowers the learning rate from epoch to epoch, from `lr` in the first epoch to
        ``lr / max_epochs`` in the last. "constant" keeps it.
    batch_size : int, default=64
        Maximum number of rows in a mini-batch.
    max_epochs : int, default=30
        Maximum number of passes over the training rows.
    weight_decay : float, default=0.0
        Weight decay of AdamW.
    validation_fraction : float or None, default=0.3
        Fraction of the distinct rows, in [0, 1), that is held out to choose the epoch, as in
        :class:`IsotropyLayer`. If 0 or None, the last epoch is kept.
    patience : int or None, default=10
        Training stops after this many epochs in a row that did not replace the epoch to be kept.
        None never stops early.
    scoring : str, callable or None, default=None
        Metric that chooses the epoch, as in :class:`IsotropyLayer`. None is accuracy or R².
    device : str, default="auto"
        Device to train on, such as "cpu" or "cuda"; "auto" is the GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of the validation split, the shuffling, the bootstrap and the initial weights of the
        hidden layer. With None, every fit draws a new seed.
    verbose : int, default=0
        If above 0, a progress bar is shown on a terminal.
    bias_corrected : bool, default=False
        Whether to correct most of the bias of the penalty in small batches. With zeta=0 this
        replaces the shrinkage. The penalty then needs batches of at least 4 rows; otherwise it
        needs 3, or 2 with zeta above 0.
    solver : {"minibatch", "exact"}, default="minibatch"
        "minibatch" is the training of the paper. "exact" computes the limit of that training
        directly, see :class:`IsotropyLayer`. It requires lam >= 0 and zeta=0, because neither the
        size of lam nor Σ_S has an effect there.
    lam : float, default=1.0
        Weight λ of the penalty. A positive weight raises isotropy. A negative weight lowers it,
        which gives the best scores in the paper. 0 is the control without a penalty.
    zeta : float, default=0.2
        Weight ζ of Σ_S, in [0, 1].
    shrinkage : {"exact", "detached"}, default="exact"
        "exact" uses Σ_S of the current weights in each step, with its gradient. For a linear
        network this is AΣAᵀ and needs no pass over the rows. Only ‖Σ_S‖² is estimated in most
        steps, see Notes. "detached" computes Σ_S without gradient at the start of each epoch, as in
        the paper; only the validation uses Σ_S of the current weights. The network "mlp" always
        uses Σ_S of the start of the epoch, in the validation too.
    n_shrinkage : int, default=250_000
        Maximum number of rows from which Σ_S is computed for the network "mlp".

    Attributes
    ----------
    map_ : Affine or ResidualMLP
        The fitted map.
    head_ : LinearHead or None
        The head that is applied to the adapted embeddings. It differs from the initial one only if
        `head_training` is not "frozen".
    classes_ : ndarray of shape (n_classes,)
        Sorted class labels; only if the head is a classifier.
    history_ : list of dict
        One entry for each epoch of the fit that chose the epoch, as in :class:`IsotropyLayer`.
    ridge_ : float
        The ridge used; that of the second fit if there was one.
    n_iter_ : int
        Number of epochs or iterations run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1; not with the exact solver.
    n_features_in_ : int
        Number of features of the embeddings.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features; only if X has feature names that are all strings.

    Notes
    -----
    With ``shrinkage="exact"``, the products that give ‖Σ_S‖² and its gradient G would take longer
    than the rest of a training step. They are computed at the start of each epoch and then every n
    steps, where n is the smallest of 16, 6 (1 - ζ²) / ζ² and 0.032 / (lr ζ), rounded down, but at
    least 1. With the default lr, which is 0.01 for most outputs, n is 16 for ζ = 0.2, 8 for 0.4, 5
    for 0.6, 3 for 0.8 and 1 from 0.87 on. In between, ‖Σ_S‖² is estimated as f (⟨G, A⟩ / 4f)⁴,
    where f and G are its last exact value and gradient, and A are the current weights. The estimate
    is exact for a change of scale and never too large. The trace of Σ_S and its product with the
    covariance of the batch are exact in each step, as are all values without gradient.

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
            self._check_exact_condition("lam", self.lam >= 0, "0 or more")
            self._check_exact_condition("zeta", self.zeta == 0, "0")

    def _fewest_rows(self) -> int:
        return fewest_points(self.zeta, self.bias_corrected)

    def _batch_key(self) -> tuple[Any, ...] | None:
        key = super()._batch_key()
        return None if key is None else (*key, bool(self.zeta))

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        loss = IsoScoreLoss(self.zeta, "linear", self.bias_corrected)
        if not self.zeta:
            return IsoScorePenalty(loss)
        if self.network == "mlp":
            return _SampledShrinkage(loss, self.n_shrinkage)
        cov = None if self.bias_corrected else problem.validation_cov
        return _ExactShrinkage(
            loss,
            to_tensor(problem.inputs_root, device)[None],
            [_steps_between(self.zeta, self._rates(problem.coordinates).lr)],
            self.shrinkage == "detached",
            None if cov is None else to_tensor(cov, device)[None],
        )

    def _penalty_weight(self) -> float:
        return self.lam


def _steps_between(zeta: float, lr: float) -> int:
    """Steps from one exact computation of ‖Σ_S‖² to the next.

    The error of the estimate grows as the weights move. Of the squared norm of the mixture, it
    concerns the share ζ²; if the rest, which is exact, is small, training exploits the error.
    """
    zeta, lr = max(zeta, 1e-3), max(lr, 1e-6)
    limit = min(_STEPS, _SHARE * (1 / zeta**2 - 1), _MOVE / (lr * zeta))
    return max(1, int(limit + 1e-6))


class _Shrinkage(IsoScorePenalty):
    """Base class of penalties with Σ_S, in which the members of one training may differ in ζ."""

    loss: IsoScoreLoss

    def _joint_loss(self, others: Sequence["_Shrinkage"]) -> IsoScoreLoss:
        if not others:
            return self.loss
        zetas = [member.loss.zeta for member in (self, *others)]
        device = self.loss.n_degenerate.device
        return IsoScoreLoss(torch.tensor(zetas, device=device), "linear", self.loss.bias_corrected)


class _ExactShrinkage(_Shrinkage):
    """IsoScore* with Σ_S of a linear network, from a root of the covariance of its inputs.

    The root is (K or 1, d, d), or its diagonal (K or 1, d), for K members, and `validation_cov`, of
    shape (K or 1, d, d), the inputs' covariance on the validation rows. In training, ‖Σ_S‖² and
    its gradient are computed exactly every `steps[k]` steps and estimated in between, because they
    take longer than all other operations of a step; everything else is exact.
    """

    def __init__(
        self,
        loss: IsoScoreLoss,
        inputs_root: Tensor,
        steps: Sequence[int],
        detached: bool,
        validation_cov: Tensor | None = None,
    ) -> None:
        super().__init__(loss)
        self.inputs_root, self.steps, self.detached = inputs_root, list(steps), detached
        self.validation_cov = validation_cov
        self._n_steps = 0  # in this epoch
        self._squared_norm: SquaredNorm | None = None  # the last exact one of each member

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what each epoch computes again: a training is saved between two epochs."""
        return {**vars(self), "_squared_norm": None}

    def join(self, others: Sequence["_ExactShrinkage"]) -> "_ExactShrinkage":
        members = (self, *others)
        root = _joined([member.inputs_root for member in members])
        steps = [own for member in members for own in member.steps]
        covs = [each.validation_cov for each in members if each.validation_cov is not None]
        cov = _joined(covs) if covs else None  # all members have one, or none
        return _ExactShrinkage(self._joint_loss(others), root, steps, self.detached, cov)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        self._n_steps = 0
        if self.detached:
            self.prior_cov = self._outputs_covariance(network).detach()

    def on_validation(self, network: LinearNetwork) -> Tensor | None:
        if self.validation_cov is None:
            return None
        root, weight = self.inputs_root, network.weight
        zeta = torch.as_tensor(self.loss.zeta).to(root).reshape(-1, 1, 1)
        training_cov = root.square().diag_embed() if root.ndim == 2 else root @ root.mT
        cov = weight @ self.validation_cov.lerp(training_cov, zeta) @ weight.mT
        return 1 - isoscore_from_covariance(cov).clamp(0, 1)

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        if self.detached and torch.is_grad_enabled():
            return self.loss(points, self.prior_cov)
        if not torch.is_grad_enabled():
            return self.loss(points, self._outputs_covariance(network))
        root = self._outputs_root(network)
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

    def _outputs_covariance(self, network: LinearNetwork) -> Tensor:
        """Return the outputs' covariance Σ_S (K, d, d)."""
        root = self._outputs_root(network)
        return root @ root.mT

    def _outputs_root(self, network: LinearNetwork) -> Tensor:
        """Return a root B (K, d, d) of the outputs' covariance BBᵀ."""
        if self.inputs_root.ndim == 2:
            return network.weight * self.inputs_root[:, None]
        return network.weight @ self.inputs_root


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the tensor (1, ...) that all members share, or else those of all members (K, ...)."""
    same = all(torch.equal(tensor, tensors[0]) for tensor in tensors)
    return tensors[0] if same else torch.cat(list(tensors))


class _SampledShrinkage(_Shrinkage):
    """IsoScore* with Σ_S of any network, from at most `n_rows` evenly spaced training rows."""

    def __init__(self, loss: IsoScoreLoss, n_rows: int) -> None:
        super().__init__(loss)
        self.n_rows = n_rows

    def join(self, others: Sequence["_SampledShrinkage"]) -> "_SampledShrinkage":
        return _SampledShrinkage(self._joint_loss(others), self.n_rows)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        self.prior_cov = outputs_covariance(network, batches, self.n_rows)

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        return self.loss(points, self.prior_cov)

"""Adapter with a user-defined penalty."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import Batches, to_tensor
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._problem import Penalty, Problem, outputs_covariance

_OPTIONAL = ("labels", "prior_cov")
_MAX_COVARIANCE_ROWS = 250_000  # from which the covariance of the outputs is computed


@dataclass(eq=False, repr=False)
class _WithPenalty:
    """The first parameter of PenaltyAdapter: fields of the last base class come first."""

    penalty: Callable[..., Tensor]


@dataclass(eq=False, repr=False, kw_only=True)
class PenaltyAdapter(WeightedPenaltyAdapter, _WithPenalty):
    """Adapter trained on the task loss plus lam times a user-defined penalty.

    The penalty is called in each step with the adapted rows Z of a mini-batch, a float tensor of
    shape (n_rows, n_features). Z is divided by one number, so that the embeddings are of unit size.
    The penalty returns one number as a tensor that has a gradient; smaller is better.

    - If it has a parameter `labels`, it is also given the class numbers (n_rows,), the indicator
      matrix of several labels (n_rows, n_labels), or the target values (n_rows, n_outputs), rounded
      to float32, under this name.
    - If it has a parameter `prior_cov`, it is also given the covariance (n_features, n_features) of
      all adapted training rows at the start of the epoch.
    - It must not change Z in place, and must not keep state between calls.
    - Parameters of a module are not trained. Random numbers that a penalty draws come from the
      global generator of torch.

    A penalty with a true attribute ``member_axis`` is evaluated for several fits of a search at
    once. It is given Z of shape (n_members, n_rows, n_features), and `labels` and `prior_cov` with
    the same leading axis, and returns a tensor of shape (n_members,).

    Parameters
    ----------
    penalty : nn.Module or callable
        The penalty, as described above.
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
    lam : float, default=1.0
        Weight of the penalty. 0 is the control without a penalty.

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
        Number of epochs run.
    best_epoch_ : int
        Epoch whose weights were kept, from 1.
    n_features_in_ : int
        Number of features of the embeddings.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features; only if X has feature names that are all strings.

    Examples
    --------
    >>> from sklearn.datasets import make_classification
    >>> from isoadapt import PenaltyAdapter
    >>> def variance(Z):
    ...     return Z.var(dim=0).sum()
    >>> X, y = make_classification(500, 10, random_state=0)
    >>> adapter = PenaltyAdapter(variance, lam=0.1, random_state=0).fit(X, y)
    >>> bool(adapter.transform(X).var() < X.var())
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **WeightedPenaltyAdapter._parameter_constraints,
        "penalty": [callable],
    }

    coordinates: str = "whitened"
    ridge: float | str = "auto"
    lr_schedule: str = "linear"

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        penalty = self.penalty
        if isinstance(penalty, nn.Module):
            penalty = copy.deepcopy(penalty)
        rotation = None
        if self.coordinates == "whitened":  # the outputs are rotated to the row space of the head
            rotation = to_tensor(problem.coordinates.out, device)
        units = problem.units
        values = (to_tensor(units.center, device), to_tensor(units.scale, device))
        return _CallablePenalty(penalty, rotation, values)


class _CallablePenalty(Penalty):
    """A callable as a penalty, called with the optional arguments that its signature has."""

    def __init__(
        self, penalty: Callable[..., Tensor], rotation: Tensor | None, units: tuple[Tensor, Tensor]
    ) -> None:
        super().__init__(penalty)
        self.rotation = rotation
        self.member_axis = bool(getattr(penalty, "member_axis", False))
        called = penalty.forward if isinstance(penalty, nn.Module) else penalty
        try:
            known = set(inspect.signature(called).parameters)
        except (TypeError, ValueError):  # built-in functions of torch have no signature
            known = set()
        self.options = tuple(name for name in _OPTIONAL if name in known)
        self.units = units if "labels" in self.options else None

    def join(self, others: Sequence["_CallablePenalty"]) -> Penalty | None:
        same = all(all(map(torch.equal, self._tensors(), each._tensors())) for each in others)
        return self if same else None

    def _tensors(self) -> list[Tensor]:
        """Return what may differ between members."""
        rotation = [] if self.rotation is None else [self.rotation]
        return [*rotation, *(self.units or ())]

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        if "prior_cov" in self.options:
            cov = outputs_covariance(network, batches, _MAX_COVARIANCE_ROWS)
            if self.rotation is not None:
                cov = self.rotation @ cov @ self.rotation.mT
            self.prior_cov = cov

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        if self.rotation is not None:
            points = points @ self.rotation.mT
        options: dict[str, Tensor | None] = {}
        if "labels" in self.options:
            options["labels"] = None if targets is None else self._labels(targets, points)
        if "prior_cov" in self.options:
            options["prior_cov"] = self.prior_cov
        if self.member_axis:
            return self._checked(self.loss(points, **options), points)
        values = []
        for place, Z in enumerate(points):
            own = {name: each if each is None else each[place] for name, each in options.items()}
            values.append(self._checked(self.loss(Z, **own), Z))
        return torch.stack(values)

    def _labels(self, targets: Tensor, points: Tensor) -> Tensor:
        """Return class numbers (K, n) or the user's values (K, n, n_outputs), as a copy."""
        if targets.is_floating_point() and self.units is not None:
            center, scale = self.units
            targets = targets * scale + center
        targets = targets.long() if targets.dtype == torch.bool else targets
        if len(targets) == len(points) and targets.shape[1:2] == points.shape[1:2]:
            return targets.clone()
        return targets.expand(len(points), *targets.shape).clone()

    def _checked(self, value: Any, points: Tensor) -> Tensor:
        """Validate what the penalty returned, and return it in float32."""
        shape = points.shape[:-2]
        if not isinstance(value, Tensor) or value.shape != shape:
            given = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
            )
            wanted = "one number for each member" if shape else "one number"
            raise ValueError(
                f"penalty={self.loss!r} returns {given}, but must return {wanted} as a tensor of "
                f"shape {tuple(shape)}: take a sum or a mean over rows and features"
            )
        if torch.is_grad_enabled() and points.requires_grad and not value.requires_grad:
            raise ValueError(
                f"penalty={self.loss!r} returns a number without a gradient: compute it from Z by "
                "operations of torch in floating point, without detach() or item()"
            )
        # In a step on a GPU this would wait for it, so that only validation rows are checked there.
        checked = value.device.type == "cpu" or not torch.is_grad_enabled()
        if checked and not bool(value.isfinite().all()):
            raise ValueError(
                f"penalty={self.loss!r} is {value.tolist()} on a batch, but must be finite: check "
                "for divisions by 0, and for classes that are missing in a batch"
            )
        return value.to(torch.float32)

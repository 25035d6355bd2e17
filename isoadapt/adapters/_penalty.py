"""Adapter with a user-defined penalty."""

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from isoadapt.adapters._engine._network import Layer
from isoadapt.adapters._engine._task import Penalty, Problem, stacked
from isoadapt.adapters._penalised import WeightedPenaltyAdapter
from isoadapt.adapters._rows import to_tensor

_OPTIONAL = ("labels", "prior_cov")


@dataclass(eq=False, repr=False)
class _WithPenalty:
    """The first parameter of PenaltyAdapter: fields of the last base class come first."""

    penalty: Callable[..., Tensor]


@dataclass(eq=False, repr=False, kw_only=True)
class PenaltyAdapter(WeightedPenaltyAdapter, _WithPenalty):
    """Adapter trained on the task loss plus lam times a user-defined penalty.

    The penalty is called in each step with the adapted rows Z of a mini-batch, a float tensor of
    shape (n_rows, n_features). Z is divided by one number, so that the embeddings are of unit size.
    The penalty returns one number as a tensor that has a gradient; smaller is better. It must not
    change Z in place, and must not keep state between calls. Parameters of a module are not
    trained, and random numbers come from the global generator of torch.

    - A parameter `labels` is given the class numbers (n_rows,), the indicator matrix of several
      labels (n_rows, n_labels), or the target values (n_rows, n_outputs), rounded to float32.
    - A parameter `prior_cov` is given the covariance (n_features, n_features) of all adapted
      training rows at the start of the epoch.
    - With a true attribute ``member_axis``, the penalty is evaluated for several fits of a search
      at once. All arguments then have a leading axis (n_members,), and it returns a tensor of this
      shape.

    Parameters
    ----------
    penalty : nn.Module or callable
        The penalty, as described above.
    <linear head>
    lam : float, default=1.0
        Weight of the penalty. 0 is the control without a penalty.

    <attributes and training>

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"penalty": [callable]}

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        penalty = self.penalty
        if isinstance(penalty, nn.Module):
            penalty = copy.deepcopy(penalty)
        rotation = None
        if self.coordinates == "whitened":  # the outputs are rotated to the row space of the head
            rotation = to_tensor(problem.coordinates.out, device)[None]
        units = problem.units
        values = [to_tensor(part, device)[None] for part in (units.center, units.scale)]
        root = to_tensor(problem.inputs_root, device)
        cov = root.diag() if root.ndim == 1 else root
        return _CallablePenalty(penalty, rotation, values, (cov @ cov.mT)[None])


class _CallablePenalty(Penalty):
    """A callable as a penalty, called with the optional arguments that its signature has."""

    def __init__(
        self,
        penalty: Callable[..., Tensor],
        rotation: Tensor | None,
        units: Sequence[Tensor],
        inputs_cov: Tensor,
    ) -> None:
        super().__init__(penalty)
        self.rotation, self.units, self.inputs_cov = rotation, units, inputs_cov
        self.member_axis = bool(getattr(penalty, "member_axis", False))
        called = penalty.forward if isinstance(penalty, nn.Module) else penalty
        try:
            known = set(inspect.signature(called).parameters)
        except (TypeError, ValueError):  # built-in functions of torch have no signature
            known = set()
        self.options = tuple(name for name in _OPTIONAL if name in known)

    def join(self, others: Sequence["_CallablePenalty"]) -> Penalty:
        """Join penalties with a member axis; others are called one after the other."""
        if not self.member_axis:
            return super().join(others)
        members = (self, *others)
        rotations = [each.rotation for each in members if each.rotation is not None]
        return _CallablePenalty(
            self.loss,
            stacked(rotations) if rotations else None,
            [stacked(parts) for parts in zip(*(each.units for each in members), strict=True)],
            stacked([each.inputs_cov for each in members]),
        )

    def refresh(self, layer: Layer) -> None:
        if "prior_cov" in self.options:
            rotation = layer.weight if self.rotation is None else self.rotation @ layer.weight
            self.prior_cov = rotation @ self.inputs_cov @ rotation.mT

    def __call__(self, points: Tensor, targets: Tensor | None, layer: Layer) -> Tensor:
        if self.rotation is not None:
            points = points @ self.rotation.mT
        options: dict[str, Tensor | None] = {}
        if "labels" in self.options:
            options["labels"] = None if targets is None else self._labels(targets, len(points))
        if "prior_cov" in self.options:
            options["prior_cov"] = self.prior_cov
        if self.member_axis:
            return self._checked(self.loss(points, **options), points)
        (Z,) = points
        own = {name: each if each is None else each[0] for name, each in options.items()}
        return self._checked(self.loss(Z, **own), Z)[None]

    def _labels(self, targets: Tensor, n_members: int) -> Tensor:
        """Return class numbers (K, n) or the user's values (K, n, n_outputs), as a copy."""
        if targets.ndim == (1 if targets.dtype == torch.int64 else 2):
            targets = targets.expand(n_members, *targets.shape)
        if targets.is_floating_point():
            center, scale = self.units
            return targets * scale[:, None] + center[:, None]
        return targets.long() if targets.dtype == torch.bool else targets.clone()

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

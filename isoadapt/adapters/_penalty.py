"""Adapters trained under a penalty of one's own."""

import copy
import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from isoadapt._utils.devices import to_tensor
from isoadapt.adapters._penalised import PenalisedAdapter
from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._prior_cov import outputs_covariance
from isoadapt.adapters._training._problem import Problem

_OPTIONAL = ("labels", "prior_cov")
_N_ROWS = 250_000  # from which the covariance of the outputs is taken, at most


class PenaltyAdapter(PenalisedAdapter):
    """An adapter trained on the task's loss plus lam times a penalty of one's own.

    The penalty is called in each step with the adapted rows Z of a mini-batch, a float tensor of
    shape (n_rows, n_features), divided by one number so that the embeddings are of unit size. It
    returns one number as a tensor, of which the gradient is taken: smaller is better. If it has a
    parameter `labels`, it also gets the class numbers (n_rows,) or values (n_rows, n_outputs) by
    that name; if it has a parameter `prior_cov`, the covariance (n_features, n_features) of all
    adapted training rows at the start of the epoch. It must neither change Z in place nor keep
    anything between calls. Parameters of a module are not trained; what it draws at random comes
    from torch's global generator.

    A penalty with a true attribute ``member_axis`` serves several fits of a search at once: it
    gets Z of shape (n_members, n_rows, n_features), `labels` and `prior_cov` with the same leading
    axis, and returns (n_members,).

    Parameters
    ----------
    penalty : nn.Module or callable
        What is penalised.
    lam : float, default=1.0
        Weight of the penalty; 0 is the control without it.

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
        **PenalisedAdapter._parameter_constraints,
        "penalty": [callable],
        "lam": [Interval(Real, None, None, closed="neither")],
    }
    _batchable_params: ClassVar[frozenset[str]] = PenalisedAdapter._batchable_params | {"lam"}

    def __init__(
        self,
        penalty: Callable[..., Tensor],
        head: Any = "logistic",
        *,
        lam: float = 1.0,
        balance: str | None = None,
        smoothing: float = 0.15,
        network: str = "linear",
        head_training: str = "frozen",
        coordinates: str = "whitened",
        ridge: float | str = "auto",
        lr: float | str = "auto",
        lr_schedule: str = "linear",
        batch_size: int = 64,
        max_epochs: int = 30,
        weight_decay: float = 0.0,
        validation_fraction: float | None = 0.3,
        patience: int | None = 10,
        scoring: Any = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            head,
            balance=balance,
            smoothing=smoothing,
            network=network,
            head_training=head_training,
            coordinates=coordinates,
            ridge=ridge,
            lr=lr,
            lr_schedule=lr_schedule,
            batch_size=batch_size,
            max_epochs=max_epochs,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            patience=patience,
            scoring=scoring,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.penalty = penalty
        self.lam = lam

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        penalty = self.penalty
        if isinstance(penalty, nn.Module):
            penalty = copy.deepcopy(penalty).to(device)
        turn = None
        if self.coordinates == "whitened":  # where outputs are turned towards the head's rows
            turn = to_tensor(problem.coordinates.out, device)
        return _OwnPenalty(penalty, turn)

    def _penalty_weight(self) -> float:
        return self.lam


class _OwnPenalty(Penalty):
    """A callable as a penalty of members, called with what its signature names."""

    def __init__(self, penalty: Callable[..., Tensor], turn: Tensor | None) -> None:
        super().__init__(penalty)
        self.turn = turn
        self.member_axis = bool(getattr(penalty, "member_axis", False))
        called = penalty.forward if isinstance(penalty, nn.Module) else penalty
        try:
            known = set(inspect.signature(called).parameters)
        except (TypeError, ValueError):  # such as torch's own functions
            known = set()
        self.options = tuple(name for name in _OPTIONAL if name in known)

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        if "prior_cov" in self.options:
            cov = outputs_covariance(network, batches, _N_ROWS)
            self.prior_cov = cov if self.turn is None else self.turn @ cov @ self.turn.mT

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        if self.turn is not None:
            points = points @ self.turn.mT
        options: dict[str, Tensor | None] = {}
        if "labels" in self.options:
            options["labels"] = None if targets is None else self._by_member(targets, points)
        if "prior_cov" in self.options:
            options["prior_cov"] = self.prior_cov
        if self.member_axis:
            return self._checked(self.loss(points, **options), points.shape[:1])
        values = [
            self._checked(self.loss(Z, **{k: _at(v, place) for k, v in options.items()}), ())
            for place, Z in enumerate(points)
        ]
        return torch.stack(values)

    def _by_member(self, targets: Tensor, points: Tensor) -> Tensor:
        """Give the targets a leading axis of members if all members share them."""
        if len(targets) == len(points) and targets.shape[1:2] == points.shape[1:2]:
            return targets.clone()
        return targets.expand(len(points), *targets.shape).clone()

    def _checked(self, value: Any, shape: tuple[int, ...]) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != shape:
            given = (
                f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else value
            )
            wanted = "one number for each member" if shape else "one number"
            raise ValueError(
                f"penalty={self.loss!r} returns {given}, but must return {wanted} as a tensor of "
                f"shape {tuple(shape)}: take a sum or a mean over rows and features"
            )
        if torch.is_grad_enabled() and not value.requires_grad:
            raise ValueError(
                f"penalty={self.loss!r} returns a number without a gradient: compute it from Z by "
                "operations of torch in floating point, without detach() or item()"
            )
        if not bool(value.isfinite().all()):
            raise ValueError(
                f"penalty={self.loss!r} is {value.tolist()} on a batch, but must be finite: look "
                "for divisions by 0, and for classes that a batch lacks"
            )
        return value.to(torch.float32)


def _at(value: Tensor | None, place: int) -> Tensor | None:
    return None if value is None else value[place]

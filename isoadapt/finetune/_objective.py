"""The joint loss of a fine-tuning run: task loss plus penalties, with its saved state."""

import copy
import inspect
import math
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from isoadapt._utils.files import atomic_path
from isoadapt._utils.warn import warn
from isoadapt.finetune._where import OUTPUT_EMBEDDINGS, Where, check_where
from isoadapt.losses import JointLoss

_PRIOR_COV, _WEIGHT = "prior_cov.", "joint.weight"


class Objective(nn.Module):
    """Copies of the penalties, the points each is computed on, and the joint loss.

    The penalties P_i with weights w_i enter the joint loss as one penalty,
    ``sum_i w_i P_i / sum_i |w_i|`` with the weight ``sum_i |w_i|``. Without balancing this is the
    weighted sum. `places` has one entry per penalty; without a penalty, it has one entry, the
    place whose figures are logged. `prior_covs` holds Σ_S of each penalty or None.
    """

    def __init__(
        self, penalty: Any, lam: Any, balance: str | None, smoothing: float, where: Any, model: Any
    ) -> None:
        super().__init__()
        losses = _as_list(penalty)
        if not losses and (lam != 1.0 or balance is not None):
            raise ValueError(
                f"lam={lam!r} and balance={balance!r} have no effect without a penalty: pass "
                "penalty=, or leave them out"
            )
        self.penalties = nn.ModuleList(copy.deepcopy(losses))
        self.places: list[Where] = _places(where, len(losses), model)
        weights = _weights(lam, len(losses))
        total = sum(map(abs, weights))
        self.shares = [w / total if total else 1 / len(weights) for w in weights]
        self.joint = JointLoss(total, balance, smoothing)
        self.prior_covs: list[Tensor | None] = [None] * len(losses)

    def needs_prior_cov(self) -> list[int]:
        """Return the indices of the penalties that take `prior_cov` and have a nonzero zeta."""
        return [
            i
            for i, (penalty, place) in enumerate(zip(self.penalties, self.places, strict=False))
            if _takes(penalty, "prior_cov")
            and place != OUTPUT_EMBEDDINGS
            and bool(torch.as_tensor(getattr(penalty, "zeta", 1.0) != 0).any())
        ]

    def values(self, clouds: Sequence[Tensor], labels: Sequence[Tensor | None]) -> list[Tensor]:
        """Compute each penalty, a tensor of shape (), from its points (n, d) and classes (n,)."""
        found = []
        for penalty, share, place, cloud, classes, prior_cov in zip(
            self.penalties, self.shares, self.places, clouds, labels, self.prior_covs, strict=True
        ):
            options: dict[str, Any] = {}
            if _takes(penalty, "prior_cov"):
                options["prior_cov"] = prior_cov
            if _takes(penalty, "labels"):
                options["labels"] = classes
            value = penalty(cloud, **options)
            _check_value(value, penalty)
            is_constant = torch.is_grad_enabled() and not value.requires_grad and value != 0
            if is_constant and share * self.joint.weight != 0:
                _report_constant(value, penalty, place, cloud)
            found.append(value)
        return found

    def forward(self, task_loss: Tensor, penalties: Sequence[Tensor]) -> Tensor:
        """Compute the joint loss from the task loss and the output of :meth:`values`."""
        mixed = torch.stack(
            [share * value for share, value in zip(self.shares, penalties, strict=True)]
        )
        return self.joint(task_loss, mixed.sum())

    def save(self, path: Path) -> None:
        """Write the state that training changes to a safetensors file, atomically.

        Parameters that the user sets, such as the weight of the penalty, are not saved.
        """
        prior_covs = {f"{_PRIOR_COV}{i}": p for i, p in enumerate(self.prior_covs) if p is not None}
        kept = {**self.state_dict(), **prior_covs}
        del kept[_WEIGHT]
        state = {name: value.detach().cpu().clone() for name, value in kept.items()}
        with atomic_path(path) as temporary:
            save_file(state, temporary, self._metadata())

    def load(self, path: Path) -> bool:
        """Load the state from :meth:`save`; return whether this includes Σ_S.

        Σ_S is not loaded if it was computed for another `where`.
        """
        with safe_open(path, "pt") as file:
            same_places = file.metadata() == self._metadata()
        state = load_file(path)
        prior_covs = {name: state.pop(name) for name in list(state) if name.startswith(_PRIOR_COV)}
        try:
            self.load_state_dict({**state, _WEIGHT: self.joint.weight})
        except RuntimeError as error:
            raise ValueError(
                f"{path} belongs to other penalties; resume with the penalties of that run"
            ) from error
        if same_places:
            for name, prior_cov in prior_covs.items():
                place = int(name.removeprefix(_PRIOR_COV))
                self.prior_covs[place] = prior_cov.to(self.joint.weight.device)
        return same_places

    def _metadata(self) -> dict[str, str]:
        return {"where": repr(self.places)}


def _check_value(value: Any, penalty: nn.Module) -> None:
    """Raise unless the value of a penalty is one floating point number."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"the penalty {penalty} returned a {kind}; it must return a tensor of one floating "
            "point number, computed from the points with torch operations"
        )
    if value.ndim:
        raise ValueError(
            f"the penalty {penalty} returned a tensor of shape {tuple(value.shape)}; it must "
            "return one number, of shape (): reduce it, for example with .mean() or .sum()"
        )


def _report_constant(value: Tensor, penalty: nn.Module, place: Where, points: Tensor) -> None:
    """Raise if a penalty drops the gradient of its points; warn if its points have none."""
    if points.requires_grad:
        raise ValueError(
            f"the penalty {penalty} returned {float(value):.4g}, which has no gradient and so no "
            "effect on training: compute it from the points with torch operations only, without "
            "detach(), item() or NumPy"
        )
    warn(
        f"the penalty {penalty} has no effect, because no parameter that is trained changes the "
        f"points of where={place!r}: train a layer before them (requires_grad_), or choose a later "
        "where"
    )


def _takes(penalty: nn.Module, name: str) -> bool:
    return name in inspect.signature(penalty.forward).parameters


def _as_list(penalty: Any) -> list[nn.Module]:
    if penalty is None:
        return []
    losses = list(penalty) if isinstance(penalty, list | tuple | nn.ModuleList) else [penalty]
    for loss in losses:
        if not isinstance(loss, nn.Module):
            raise TypeError(
                f"penalty holds {loss!r} ({type(loss).__name__}); it must be a loss such as those "
                "of isoadapt.losses, a list of losses, or None. The loss of I-STAR is "
                "IsoScoreLoss(zeta=0.2, form='linear')"
            )
    return losses


def _weights(lam: Any, n: int) -> list[float]:
    weights = list(lam) if isinstance(lam, list | tuple) else [lam] * n
    if len(weights) != n:
        raise ValueError(
            f"lam={lam!r} has {len(weights)} weights for {n} penalties; pass one weight for all, "
            "or one for each"
        )
    for weight in weights:
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise ValueError(f"lam={lam!r} must be finite: one number, or one for each penalty")
    return [float(weight) for weight in weights]


def _places(where: Any, n: int, model: Any) -> list[Where]:
    several = isinstance(where, list | tuple) and any(not isinstance(w, Integral) for w in where)
    if several and len(where) != max(n, 1):
        raise ValueError(
            f"where={where!r} names {len(where)} places for {n} penalties; pass one place for all, "
            "or one for each"
        )
    return [check_where(place, model) for place in (where if several else [where] * max(n, 1))]

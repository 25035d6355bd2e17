"""Task loss and penalties as one loss, with the state that a checkpoint has to keep."""

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
from isoadapt.finetune._where import OUTPUT_EMBEDDINGS, Where, check_where
from isoadapt.losses import JointLoss

_PRIOR_COV, _WEIGHT = "prior_cov.", "joint.weight"


class Objective(nn.Module):
    """Penalties, where each of them looks, and how they join the task's loss.

    With weights w_i the penalties enter as one, ``sum_i w_i P_i / sum_i |w_i|``, whose weight is
    ``sum_i |w_i|``: unbalanced that is the plain weighted sum.

    Parameters
    ----------
    penalty : Module, sequence of Module or None
        Losses of points; copied, so that several runs may be given the same.
    lam : float or sequence of float
        Their weights.
    balance, smoothing : {"ema", "cumulative"} or None, float
        As for :class:`~isoadapt.losses.JointLoss`.
    where : str, sequence of int or a sequence of these
        One place for all, or one for each.
    model : PreTrainedModel
        The model.

    Attributes
    ----------
    penalties : ModuleList
        The copies.
    places : list
        One for each penalty; without a penalty the one whose figures are logged.
    prior_covs : list of Tensor or None
        Σ_S of each penalty.
    """

    def __init__(
        self, penalty: Any, lam: Any, balance: str | None, smoothing: float, where: Any, model: Any
    ) -> None:
        super().__init__()
        losses = _as_list(penalty)
        if not losses and (lam != 1.0 or balance is not None):
            raise ValueError(
                f"lam={lam!r} and balance={balance!r} have no penalty to weigh: give penalty=, or "
                "leave them out"
            )
        self.penalties = nn.ModuleList(copy.deepcopy(losses))
        self.places: list[Where] = _places(where, len(losses), model)
        weights = _weights(lam, len(losses))
        total = sum(map(abs, weights))
        self.shares = [w / total if total else 1 / len(weights) for w in weights]
        self.joint = JointLoss(total, balance, smoothing)
        self.prior_covs: list[Tensor | None] = [None] * len(losses)

    def needs_prior_cov(self) -> list[int]:
        """Tell which penalties look at Σ_S: those that take `prior_cov` and give it some weight.

        Returns
        -------
        list of int
            Their numbers.
        """
        return [
            i
            for i, (penalty, place) in enumerate(zip(self.penalties, self.places, strict=False))
            if _takes(penalty, "prior_cov")
            and place != OUTPUT_EMBEDDINGS
            and bool(torch.as_tensor(getattr(penalty, "zeta", 1.0) != 0).any())
        ]

    def values(self, clouds: Sequence[Tensor], labels: Sequence[Tensor | None]) -> list[Tensor]:
        """Compute the penalties.

        Parameters
        ----------
        clouds : sequence of Tensor of shape (n, d)
            Points of each penalty.
        labels : sequence of Tensor of shape (n,) or None
            Their classes.

        Returns
        -------
        list of Tensor of shape ()
            One for each penalty.

        Raises
        ------
        TypeError
            If a penalty does not return a tensor of floating point numbers.
        ValueError
            If a penalty returns more than one number, or a number without a gradient.
        """
        found = []
        for penalty, cloud, classes, prior_cov in zip(
            self.penalties, clouds, labels, self.prior_covs, strict=True
        ):
            options: dict[str, Any] = {}
            if _takes(penalty, "prior_cov"):
                options["prior_cov"] = prior_cov
            if _takes(penalty, "labels"):
                options["labels"] = classes
            value = penalty(cloud, **options)
            _check_value(value, penalty, cloud)
            found.append(value)
        return found

    def forward(self, task_loss: Tensor, penalties: Sequence[Tensor]) -> Tensor:
        """Join the task's loss and the penalties.

        Parameters
        ----------
        task_loss : Tensor of shape ()
            The task's loss.
        penalties : sequence of Tensor of shape ()
            What :meth:`values` gave.

        Returns
        -------
        Tensor of shape ()
            The joint loss.
        """
        mixed = torch.stack(
            [share * value for share, value in zip(self.shares, penalties, strict=True)]
        )
        return self.joint(task_loss, mixed.sum())

    def save(self, path: Path) -> None:
        """Write everything that training changes, and nothing that the user sets.

        Parameters
        ----------
        path : Path
            A safetensors file; it is whole or not there.
        """
        prior_covs = {f"{_PRIOR_COV}{i}": p for i, p in enumerate(self.prior_covs) if p is not None}
        kept = {**self.state_dict(), **prior_covs}
        del kept[_WEIGHT]
        state = {name: value.detach().cpu().clone() for name, value in kept.items()}
        with atomic_path(path) as temporary:
            save_file(state, temporary, self._metadata())

    def load(self, path: Path) -> bool:
        """Take over what :meth:`save` wrote.

        Parameters
        ----------
        path : Path
            The file.

        Returns
        -------
        bool
            Whether Σ_S is there too: not where it was that of other places.

        Raises
        ------
        ValueError
            If the file belongs to other penalties.
        """
        with safe_open(path, "pt") as file:
            same_places = file.metadata() == self._metadata()
        state = load_file(path)
        prior_covs = {name: state.pop(name) for name in list(state) if name.startswith(_PRIOR_COV)}
        try:
            self.load_state_dict({**state, _WEIGHT: self.joint.weight})
        except RuntimeError as error:
            raise ValueError(
                f"{path} belongs to other penalties; resume with those it was trained with"
            ) from error
        if same_places:
            for name, prior_cov in prior_covs.items():
                place = int(name.removeprefix(_PRIOR_COV))
                self.prior_covs[place] = prior_cov.to(self.joint.weight.device)
        return same_places

    def _metadata(self) -> dict[str, str]:
        return {"where": repr(self.places)}


def _check_value(value: Any, penalty: nn.Module, points: Tensor) -> None:
    """Refuse a penalty's value that cannot be minimised: it must be one number with a gradient."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = f"tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"the penalty {penalty} returned a {kind}; it must return a tensor of one floating "
            "point number, computed from the points with torch operations"
        )
    if value.ndim:
        raise ValueError(
            f"the penalty {penalty} returned a tensor of shape {tuple(value.shape)}; it must "
            "return one number, of shape (): reduce it, as by .mean() or .sum()"
        )
    if torch.is_grad_enabled() and points.requires_grad and not value.requires_grad and value != 0:
        raise ValueError(
            f"the penalty {penalty} returned {float(value):.4g}, which has no gradient, so that "
            "training cannot change it: compute it from the points with torch operations alone, "
            "without detach(), item() or NumPy"
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
                f"penalty holds {loss!r} ({type(loss).__name__}); losses of isoadapt.losses are "
                "needed, one or a list of them, or None. I-STAR's is IsoScoreLoss(zeta=0.2, "
                "form='linear')"
            )
    return losses


def _weights(lam: Any, n: int) -> list[float]:
    weights = list(lam) if isinstance(lam, list | tuple) else [lam] * n
    if len(weights) != n:
        raise ValueError(f"lam={lam!r} has {len(weights)} weights for {n} penalties; give as many")
    for weight in weights:
        if not isinstance(weight, Real) or not math.isfinite(weight):
            raise ValueError(f"lam={lam!r} must be finite: a number, or one for each penalty")
    return [float(weight) for weight in weights]


def _places(where: Any, n: int, model: Any) -> list[Where]:
    several = isinstance(where, list | tuple) and any(not isinstance(w, Integral) for w in where)
    if several and len(where) != max(n, 1):
        raise ValueError(
            f"where={where!r} names {len(where)} places for {n} penalties; give one for all, or as "
            "many"
        )
    return [check_where(place, model) for place in (where if several else [where] * max(n, 1))]

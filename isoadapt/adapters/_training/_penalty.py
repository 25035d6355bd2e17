"""The penalty of a mini-batch, for one or several members."""

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._rows import Batches
from isoadapt.geometry import Moments

_CHUNK = 8192


class UnequalPenaltiesError(ValueError):
    """Members cannot be trained together, because one penalty does not serve all of them."""


class Penalty:
    """Penalty of adapted points: `loss` maps points (K, n, d) to one value per member (K,)."""

    depends_on_shifts: ClassVar[bool] = True
    """Whether the penalty changes when all points are shifted."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        self.loss = loss

    def join(self, others: Sequence[Self]) -> "Penalty":
        """Return one penalty for the members of this and the other penalties, in this order.

        This default requires that all are equal, and raises UnequalPenaltiesError if they differ in
        any attribute or cannot be compared. Override it for a penalty that depends on a parameter
        with different values in the members; otherwise AdapterSearchCV trains such members one at a
        time.
        """
        if all(_known_to_be_equal(self, other) for other in others):
            return self
        name = type(self).__name__
        raise UnequalPenaltiesError(
            f"the penalties of the candidates ({name}) differ or cannot be compared, and "
            f"{name}.join does not combine them: override join, or remove the parameters that "
            "change the penalty from the adapter's _batchable_params"
        )

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        """Prepare for an epoch with the present network; the default does nothing."""

    def on_validation(self, network: LinearNetwork) -> Tensor | None:
        """Return the penalties (K,) of the validation rows; None if these must be adapted first."""
        return None

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        """Return the penalties (K,) of adapted points (K, n, d).

        Targets are class numbers (n,) or values (n, n_outputs), with a leading axis K if the
        members have different rows. `network` is the network that adapted the points.
        """
        return self.loss(points)


@torch.no_grad()
def outputs_covariance(network: LinearNetwork, batches: Batches, n_rows: int) -> Tensor:
    """Return the covariance (K, d, d) of the outputs, from at most `n_rows` evenly spaced rows."""
    n = batches.index.shape[-1]
    index = batches.index[..., :: -(-n // n_rows)]
    moments = [Moments() for _ in network.weight]
    for chunk in index.split(_CHUNK, dim=-1):
        rows = batches.rows.take(chunk)
        weights = None if rows.weights is None else rows.weights.expand(len(moments), -1)
        for k, points in enumerate(network(rows.X)):
            moments[k].update(points, None if weights is None else weights[k])
    return torch.stack([member.covariance() for member in moments]).to(network.weight)


def _known_to_be_equal(first: Any, second: Any) -> bool:
    """Whether two values are known to have equal content; False if they cannot be compared."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    if isinstance(first, Tensor):
        parts = [(each.dtype, each.device, each.shape) for each in (first, second)]
        return parts[0] == parts[1] and torch.allclose(first, second, 0, 0, equal_nan=True)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(
            _known_to_be_equal(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_known_to_be_equal, first, second))
    if type(first).__eq__ is not object.__eq__:
        return (first == second) is True
    try:
        return _known_to_be_equal(_parts(first), _parts(second))
    except TypeError:  # there is no state to compare
        return False


def _parts(value: Any) -> Any:
    """Return what determines the behaviour of a function, or the state of another object."""
    if not isinstance(value, FunctionType):
        return value.__reduce_ex__(4)
    closure = tuple(cell.cell_contents for cell in value.__closure__ or ())
    state = (value.__defaults__, value.__kwdefaults__, closure, vars(value))
    return value.__code__, id(value.__globals__), *state

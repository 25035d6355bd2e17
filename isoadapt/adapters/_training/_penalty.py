"""The penalty of a mini-batch, for one or several members."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

from torch import Tensor

from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._equality import known_to_be_equal
from isoadapt.adapters._training._networks import LinearNetwork


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
        if all(known_to_be_equal(self, other) for other in others):
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

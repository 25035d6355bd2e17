"""The penalty of a mini-batch, for one member or several."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

from torch import Tensor

from isoadapt.adapters._training._batches import Batches
from isoadapt.adapters._training._equality import known_to_be_equal
from isoadapt.adapters._training._networks import LinearNetwork


class UnequalPenaltiesError(ValueError):
    """Members cannot be trained together: one penalty does not serve all of them."""


class Penalty:
    """Penalty of adapted points.

    Parameters
    ----------
    loss : callable
        From points (K, n, d) to one penalty for each member (K,).
    """

    sees_shifts: ClassVar[bool] = True
    """Whether it changes where all points are shifted."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        self.loss = loss

    def join(self, others: Sequence[Self]) -> "Penalty":
        """Give one penalty for several members, whose adapters differ in numbers only.

        A penalty that depends on one of these numbers must override this method. Without it, such
        members are trained one at a time by :class:`~isoadapt.model_selection.AdapterSearchCV`.

        Parameters
        ----------
        others : sequence of Penalty
            Those of the members after the first, which is this one's.

        Returns
        -------
        Penalty
            Of all of them; here this one, to which all others must be equal.

        Raises
        ------
        UnequalPenaltiesError
            If another one differs in its loss or in any other attribute, or cannot be compared.
        """
        if all(known_to_be_equal(self, other) for other in others):
            return self
        name = type(self).__name__
        raise UnequalPenaltiesError(
            f"the candidates' penalties ({name}) differ, or cannot be compared, and {name}.join "
            "does not combine them: override join, or remove the parameters that change the "
            "penalty from the adapter's _batchable_params"
        )

    def refresh(self, network: LinearNetwork, batches: Batches) -> None:
        """Look at the network before an epoch; here nothing is to be seen.

        Parameters
        ----------
        network : LinearNetwork
            As it is now.
        batches : Batches
            What is trained on.
        """

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        """Compute the penalty of a batch.

        Parameters
        ----------
        points : Tensor of shape (K, n, d)
            Adapted points.
        targets : Tensor of shape (n,) or (n, n_outputs), or None
            Class numbers, or values; (K, n) or (K, n, n_outputs) where members have rows of
            their own.
        network : LinearNetwork
            That adapted them.

        Returns
        -------
        Tensor of shape (K,)
            One penalty for each member.
        """
        return self.loss(points)

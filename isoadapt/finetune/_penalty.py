"""Penalties by name."""

import inspect
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from isoadapt.finetune._places import ALL, HEAD_INPUT, LAST

if TYPE_CHECKING:
    from torch import nn

PLACES = (HEAD_INPUT, LAST, ALL)


class Method(NamedTuple):
    """A loss as its paper uses it, by name so that it is imported on use; and where."""

    loss_name: str
    where: str
    settings: dict[str, Any]

    @property
    def loss(self) -> "Callable[..., nn.Module]":
        """Make the loss; the keywords are its parameters."""
        from isoadapt import losses

        return partial(getattr(losses, self.loss_name), **self.settings)

    @property
    def parameters(self) -> dict[str, Any]:
        """Give the defaults of the loss' parameters by name."""
        known = inspect.signature(self.loss).parameters.values()
        return {p.name: p.default for p in known if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


PENALTIES = {
    "istar": Method("IsoScoreLoss", ALL, {"zeta": 0.2, "form": "linear"}),
    "cosreg": Method("CosRegLoss", LAST, {}),
    "spectrum-control": Method("SpectrumControlLoss", HEAD_INPUT, {}),
    "topological-entropy": Method("PersistentEntropyLoss", HEAD_INPUT, {}),
    "isotropy-layer": Method("IsoScoreLoss", HEAD_INPUT, {}),
}
"""Penalties by the names that the methods have everywhere, ``isoadapt.adapters.METHODS``."""


def penalty_options(
    penalty: "str | nn.Module | None", lam: float, balance: str | None, where: Any
) -> dict[str, Any]:
    """Give what the trainer is told of the penalty, its name and place resolved.

    Parameters
    ----------
    penalty : str, Module or None
        A name, or a loss as it is.
    lam : float
        Its weight.
    balance : str or None
        How it is brought to the size of the task's loss.
    where : str, int, sequence of int or None
        None is the method's own place, and the head's input for a loss as it is.

    Returns
    -------
    dict of str to object
        Arguments of :class:`~isoadapt.finetune.IsotropyTrainer`.

    Raises
    ------
    ValueError
        If something is said of a penalty, and there is none.
    """
    if penalty is None and (lam != 1.0 or balance is not None or where is not None):
        raise ValueError(
            f"lam={lam!r}, balance={balance!r} and where={where!r} have no penalty to weigh or to "
            "place: give penalty=, or leave them out"
        )
    place = HEAD_INPUT
    if isinstance(penalty, str):
        method = PENALTIES[penalty]
        penalty, place = method.loss(), method.where
    if where is None:
        where = place
    elif isinstance(where, Integral):
        where = [where]
    return {"penalty": penalty, "lam": lam, "balance": balance, "where": where}

"""The penalties that can be chosen by name, and where each of them is computed."""

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
    """A loss with the parameters and the place of its paper; it is imported when it is used."""

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
        """Parameters of the loss by name, with their defaults."""
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
    """Return the keyword arguments of the IsotropyTrainer for a penalty given by name or as a loss.

    With `where` None, a named method uses the place of its paper and a loss the head's input.
    """
    if penalty is None and (lam != 1.0 or balance is not None or where is not None):
        raise ValueError(
            f"lam={lam!r}, balance={balance!r} and where={where!r} have no effect without a "
            "penalty: pass penalty=, or leave them out"
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

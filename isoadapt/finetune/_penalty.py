"""Penalties by name."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from isoadapt.losses import (
    CosRegLoss,
    IsoScoreLoss,
    PersistentEntropyLoss,
    SpectrumControlLoss,
)


class Method(NamedTuple):
    """A loss as its paper uses it, and where.

    Attributes
    ----------
    loss : callable
        Makes the loss; its keywords are the parameters.
    where : str
        Which vectors it is computed on.
    """

    loss: Callable[..., nn.Module]
    where: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Give the names of the loss' parameters.

        Returns
        -------
        tuple of str
        """
        known = inspect.signature(self.loss).parameters.values()
        return tuple(p.name for p in known if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))


METHODS = {
    "istar": Method(partial(IsoScoreLoss, zeta=0.2, reduction="linear"), "all"),
    "cosreg": Method(CosRegLoss, "last"),
    "spectrum": Method(SpectrumControlLoss, "head_input"),
    "persistent-entropy": Method(PersistentEntropyLoss, "head_input"),
    "isotropy": Method(IsoScoreLoss, "head_input"),
}


def make_penalty(penalty: str | nn.Module | None, where: Any) -> tuple[nn.Module | None, Any]:
    """Give the loss that a name stands for, and its place.

    Parameters
    ----------
    penalty : str, Module or None
        A name, or a loss as it is.
    where : str, list of int or None
        None is the method's own place, and the head's input for a loss as it is.

    Returns
    -------
    loss : Module or None
        The loss.
    where : str or list of int
        The place.
    """
    if isinstance(penalty, str):
        method = METHODS[penalty]
        return method.loss(), method.where if where is None else where
    return penalty, "head_input" if where is None else where

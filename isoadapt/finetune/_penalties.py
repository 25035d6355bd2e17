"""Penalties that can be chosen by name, and the places where a penalty can act."""

from numbers import Integral
from typing import TYPE_CHECKING, Any

from isoadapt.adapters._registry import REGISTRY

if TYPE_CHECKING:
    from torch import nn

HEAD_INPUT, LAST, ALL, OUTPUT_EMBEDDINGS = "head_input", "last", "all", "output_embeddings"
PLACES = (HEAD_INPUT, LAST, ALL)

PENALTIES = {name: method.loss for name, method in REGISTRY.items() if method.loss is not None}
"""Penalties by the names that the methods have everywhere, ``isoadapt.adapters.METHODS``."""


def penalty_options(
    penalty: "str | nn.Module | None", lam: float, balance: str | None, where: Any
) -> dict[str, Any]:
    """Return arguments of the IsotropyTrainer; `where` None is the place of the penalty's paper."""
    if penalty is None and where is not None:
        raise ValueError(f"where={where!r} has no effect without a penalty: pass penalty= too")
    place = HEAD_INPUT
    if isinstance(penalty, str):
        method = PENALTIES[penalty]
        penalty, place = method.make(), method.where
    if where is None:
        where = place
    elif isinstance(where, Integral):
        where = [where]
    return {"penalty": penalty, "lam": lam, "balance": balance, "where": where}

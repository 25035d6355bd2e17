"""Penalties that can be chosen by name, and the places where a penalty can act."""

from typing import Any

from isoadapt.adapters._registry import REGISTRY, PaperLoss

HEAD_INPUT, MEAN, LAST, ALL = PLACES = ("head_input", "mean", "last", "all")
OUTPUT_EMBEDDINGS = "output_embeddings"

PENALTIES = {name: method.loss for name, method in REGISTRY.items() if method.loss is not None}
PENALTIES["anchor"] = PaperLoss("Anchor", MEAN, lam=0.1, module="isoadapt.finetune._anchor")
"""Penalties by name: those of the methods, ``isoadapt.adapters.METHODS``, and the anchor."""


def with_defaults(penalty: Any, lam: Any, where: Any) -> tuple[Any, Any, Any]:
    """Return the loss for the name of a penalty, and its weight and place where they are None."""
    weight, place = 1.0, HEAD_INPUT
    if isinstance(penalty, str) and penalty in PENALTIES:
        method = PENALTIES[penalty]
        penalty, weight, place = method.make(), method.lam, method.where
    return penalty, weight if lam is None else lam, place if where is None else where

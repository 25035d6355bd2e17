"""Taking a model apart without touching it: shallow copies, the head, the length limit."""

import copy
import re
from typing import Any

from torch import nn

_MODULE_DICTS = [key for key, value in nn.Module().__dict__.items() if isinstance(value, dict)]
_POSITION_TABLE = re.compile(r"(^|_)(wpe|pos|position|positions)(_|$)")


def eval_copy(model: Any, replace: dict[nn.Module, nn.Module] | None = None) -> Any:
    """Copy a model shallowly, in evaluation mode: new modules around the same weights.

    The original keeps its mode, its hooks and its buffers whatever the copy does, so any number
    of threads may use copies while the original is being trained.

    Parameters
    ----------
    model : nn.Module
        The model.
    replace : dict of Module to Module, default=None
        Modules to put in place of others.

    Returns
    -------
    nn.Module
        The copy.
    """
    twins: dict[nn.Module, nn.Module] = dict(replace or {})

    def twin(module: nn.Module) -> nn.Module:
        if module not in twins:
            new = module.__class__.__new__(module.__class__)
            new.__dict__.update(module.__dict__)
            new.__dict__.update({key: module.__dict__[key].copy() for key in _MODULE_DICTS})
            new.__dict__["training"] = False
            twins[module] = new
            for name, child in module._modules.items():
                new._modules[name] = None if child is None else twin(child)
        return twins[module]

    return twin(model)


def find_last_linear(model: Any) -> nn.Linear:
    """Find the last Linear on the way to the logits of a model for sequence classification.

    Parameters
    ----------
    model : PreTrainedModel
        The model.

    Returns
    -------
    nn.Linear
        Outside the base model, with ``config.num_labels`` outputs, and the last such.

    Raises
    ------
    ValueError
        If there is none, or the model is PEFT's.
    """
    if hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"{type(model).__name__} wraps a model in layers of PEFT; pass "
            "copy.deepcopy(model).merge_and_unload(), a model without them"
        )
    base = set() if model.base_model is model else set(model.base_model.modules())
    heads = [
        module
        for module in model.modules()
        if isinstance(module, nn.Linear)
        and module not in base
        and module.out_features == model.config.num_labels
    ]
    if not heads or not base:
        raise ValueError(
            f"{type(model).__name__} has no linear classifier head with {model.config.num_labels} "
            "outputs; pass a checkpoint saved from an AutoModelForSequenceClassification"
        )
    return heads[-1]


def is_classifier(model: Any) -> bool:
    """Say whether a model is one for sequence classification.

    Parameters
    ----------
    model : PreTrainedModel
        The model.

    Returns
    -------
    bool
        Whether its class, or one that it derives from, is.
    """
    return any("ForSequenceClassification" in cls.__name__ for cls in type(model).__mro__)


def without_head(model: Any) -> Any:
    """Copy a classifier with Identity for its head: its "logits" are what enters the head.

    A decoder without a padding token refuses batches, for it could not tell padding from text.
    The copy reads the last position of each row, which is right for rows of one length.

    Parameters
    ----------
    model : PreTrainedModel
        A model for sequence classification.

    Returns
    -------
    PreTrainedModel
        The copy, in evaluation mode.
    """
    network = eval_copy(model, {find_last_linear(model): nn.Identity()})
    if network.config.pad_token_id is None:
        network.config = copy.copy(network.config)
        network.config.pad_token_id = -1
    return network


def position_limit(model: Any) -> int | None:
    """Give how many positions the model has a learned vector for; None if it needs none.

    RoBERTa and its kin begin to count after the padding index, so 514 rows serve 512 tokens.

    Parameters
    ----------
    model : PreTrainedModel
        The model.

    Returns
    -------
    int or None
        Tokens.
    """
    limits = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and _POSITION_TABLE.search(name.rpartition(".")[2]):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
            own_offset = getattr(module, "offset", None)
            limits.append(
                module.num_embeddings - (own_offset if isinstance(own_offset, int) else offset)
            )
    return min(limits, default=None)

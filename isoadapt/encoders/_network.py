"""Shallow copies of models, the classifier head, and the length limit."""

import copy
import re
from typing import Any

from torch import nn

_MODULE_DICTS = [key for key, value in nn.Module().__dict__.items() if isinstance(value, dict)]
_POSITION_TABLE = re.compile(r"(^|_)(wpe|pos|position|positions)(_|$)")


def eval_copy(model: Any, replace: dict[nn.Module, nn.Module] | None = None) -> Any:
    """Copy a model shallowly in evaluation mode: new modules with the same weights.

    The copy does not change mode, hooks or buffers of the original. Any number of threads may use
    copies while the original is being trained. `replace` maps modules to their replacements.
    """
    copies: dict[nn.Module, nn.Module] = dict(replace or {})

    def copied(module: nn.Module) -> nn.Module:
        """Copy a module and its children, each once."""
        if module not in copies:
            new = module.__class__.__new__(module.__class__)
            new.__dict__.update(module.__dict__)
            new.__dict__.update({key: module.__dict__[key].copy() for key in _MODULE_DICTS})
            new.__dict__["training"] = False
            copies[module] = new
            for name, child in module._modules.items():
                new._modules[name] = None if child is None else copied(child)
        return copies[module]

    return copied(model)


def find_last_linear(model: Any) -> nn.Linear:
    """Find the classifier head: the last Linear outside the base model with num_labels outputs.

    ValueError is raised if there is none, or if the model is wrapped by PEFT.
    """
    if hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"{type(model).__name__} wraps a model in PEFT layers; pass the merged model, "
            "copy.deepcopy(model).merge_and_unload()"
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
    """Return whether the class of a model, or one of its bases, is for sequence classification."""
    return any("ForSequenceClassification" in cls.__name__ for cls in type(model).__mro__)


def without_head(model: Any) -> Any:
    """Copy a classifier in evaluation mode with its head replaced by Identity.

    The "logits" of the copy are the input of the head. A decoder without a padding token refuses
    batches, because it cannot distinguish padding from text. The copy therefore has the padding
    token -1 and reads the last position of each row, which is correct if all rows have the same
    length.
    """
    network = eval_copy(model, {find_last_linear(model): nn.Identity()})
    if network.config.pad_token_id is None:
        network.config = copy.copy(network.config)
        network.config.pad_token_id = -1
    return network


def position_limit(model: Any) -> int | None:
    """Return the number of tokens that the model has learned positions for, or None.

    Some models, such as RoBERTa, count from the padding index, so 514 rows are enough for 512
    tokens.
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

"""Live models: wrappers that are removed, and models that are refused."""

import re
from typing import Any

from torch import nn

_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
_LIBRARIES = r"quantized|bitsandbytes|torchao|\w*gptq\w*|awq|hqq|quanto"
_QUANTISED = re.compile(rf"\.({_LIBRARIES}|\w*Linear(8bitLt|4bit)|\w*QuantLinear|FP8Linear)\.")
WHOLE = (
    "pass a model that is not quantised: the one before quantisation or, where the package that "
    "quantised it is installed, model.dequantize(), saved with save_pretrained"
)


def unwrapped(module: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    while type(module).__module__.startswith("torch.") and type(module).__name__ in _WRAPPERS:
        module = getattr(module, "_orig_mod", None) or module.module
    return module


def refuse_peft(model: Any) -> None:
    """Raise ValueError for a live PeftModel."""
    if hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"{type(model).__name__} wraps a model in PEFT layers; pass the merged model, "
            "copy.deepcopy(model).merge_and_unload()"
        )


def check_live(model: Any, tokenizer: Any) -> None:
    """Raise TypeError or ValueError for a live model or tokenizer that cannot be used."""
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    refuse_peft(model)
    modules, weights = [], []
    if isinstance(model, nn.Module):
        modules, weights = [*model.modules()], [*model.parameters()]
    kinds = {type(part) for part in (*modules, *weights)}
    paths = " ".join(f".{kind.__module__}.{kind.__qualname__}." for kind in kinds)
    problem = None
    if _QUANTISED.search(paths) or getattr(model, "is_quantized", False):
        problem = f"is quantised; {WHOLE}"
    elif ".torch.distributed." in paths or any(weight.is_meta for weight in weights):
        problem = "is sharded or offloaded; save it with save_pretrained, and pass the folder"
    elif any(_replaces_forward(module) for module in modules):
        problem = "has modules whose forward was replaced; pass the original model (hooks of "
        problem += "accelerate: accelerate.hooks.remove_hook_from_module(model, recurse=True))"
    if problem is not None:
        raise ValueError(f"the live {type(model).__name__} {problem}")
    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"model=({type(model).__name__}, {type(tokenizer).__name__}) must be a PreTrainedModel "
            "and a PreTrainedTokenizer of transformers; take the model out of a wrapper, and load "
            "the tokenizer with AutoTokenizer.from_pretrained, or wrap a tokenizers.Tokenizer as "
            "PreTrainedTokenizerFast(tokenizer_object=tokenizer)"
        )


def _replaces_forward(module: nn.Module) -> bool:
    """Return whether a copy of a module would call another module's forward."""
    own = vars(module).get("forward") if module is unwrapped(module) else None
    return own is not None and getattr(own, "__self__", None) is not module

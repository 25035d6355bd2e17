"""Live models: wrappers that are removed, and models that are refused."""

import re
import types
from typing import Any

from torch import nn

_INNER = {  # attribute of each wrapper that holds a module with the same outputs
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
}
_LIBRARIES = r"quantized|bitsandbytes|torchao|\w*gptq\w*|awq|hqq|quanto"
_QUANTISED = re.compile(rf"\.({_LIBRARIES}|\w*Linear(8bitLt|4bit)|\w*QuantLinear|FP8Linear)\.")
WHOLE = (
    "pass a model that is not quantised: the one before quantisation or, where the package that "
    "quantised it is installed, model.dequantize(), saved with save_pretrained"
)


def unwrapped(module: Any) -> Any:
    """Return the module inside torch.compile, DataParallel and DistributedDataParallel."""
    while type(module).__module__.startswith("torch.") and type(module).__name__ in _INNER:
        module = getattr(module, _INNER[type(module).__name__])
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

    name = f"the live {type(model).__name__}"
    refuse_peft(model)
    modules, weights = [], []
    if isinstance(model, nn.Module):
        modules, weights = [*model.modules()], [*model.parameters()]
    kinds = {type(part) for part in (*modules, *weights)}
    paths = " ".join(f".{kind.__module__}.{kind.__qualname__}." for kind in kinds)
    if _QUANTISED.search(paths) or getattr(model, "is_quantized", False):
        raise ValueError(f"{name} is quantised; {WHOLE}")
    if ".torch.distributed." in paths or any(weight.is_meta for weight in weights):
        raise ValueError(
            f"{name} has weights that are not in this process's memory (sharded by FSDP, or "
            "offloaded to the device meta); save it with save_pretrained, and pass the folder"
        )
    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"model holds a {type(model).__name__} and a {type(tokenizer).__name__}, but must be a "
            "tuple of a PreTrainedModel and a PreTrainedTokenizer of transformers; take the model "
            "out of a wrapper, and load the tokenizer with AutoTokenizer.from_pretrained, or wrap "
            "it as PreTrainedTokenizerFast(tokenizer_object=tokenizer)"
        )
    for module in modules:
        own = vars(module).get("forward") if module is unwrapped(module) else None
        if own is not None and getattr(own, "__self__", None) is not module:
            raise ValueError(
                f"{name} has a {type(module).__name__} whose forward was replaced; pass the model "
                "as it was (accelerate.hooks.remove_hook_from_module(model, recurse=True) removes "
                "hooks of accelerate)"
            )


def bind_forward(module: nn.Module) -> None:
    """Let a copy of a module call its own forward, without torch.compile."""
    module.__dict__.pop("_compiled_call_impl", None)
    if "forward" in vars(module):
        module.__dict__["forward"] = types.MethodType(vars(module)["forward"].__func__, module)

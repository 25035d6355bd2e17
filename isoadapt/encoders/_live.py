"""Live models: wrappers that are removed, and models that are refused."""

import re
from types import FunctionType, MethodType
from typing import Any

from torch import nn

_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
_LIBRARIES = r"quantized|bitsandbytes|torchao|\w*gptq\w*|awq|hqq|quanto"
_QUANTISED = re.compile(rf"\.({_LIBRARIES}|\w*Linear(8bitLt|4bit)|\w*QuantLinear|FP8Linear)\.")
# Hooks that record outputs, that compute weights, and that scale what enters a head.
_KNOWN_HOOKS = ("transformers.", "torch.nn.utils.", "isoadapt.")
_ORIGINAL = (
    "pass the original model, without hooks that were registered: handle.remove(); of accelerate: "
    "Accelerator.unwrap_model(model, keep_fp32_wrapper=False), or "
    "accelerate.hooks.remove_hook_from_module(model, recurse=True)"
)
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
    # The quantised layers of I-BERT compute in float unless quant_mode is set.
    kinds = {type(part) for part in (*modules, *weights) if getattr(part, "quant_mode", True)}
    paths = " ".join(f".{kind.__module__}.{kind.__qualname__}." for kind in kinds)
    problem = None
    if _QUANTISED.search(paths) or getattr(model, "is_quantized", False):
        problem = f"is quantised; {WHOLE}"
    elif ".torch.distributed." in paths or any(weight.is_meta for weight in weights):
        problem = "is sharded or offloaded; save it with save_pretrained, and pass the folder"
    elif names := _changed_modules(model):
        problem = f"has a hook or a replaced function in its module {names[0]!r}; {_ORIGINAL}"
    if problem is not None:
        raise ValueError(f"the live {type(model).__name__} {problem}")
    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"model=({type(model).__name__}, {type(tokenizer).__name__}) must be a PreTrainedModel "
            "and a PreTrainedTokenizer of transformers; take the model out of a wrapper (pass a "
            "SentenceTransformer alone), and load the tokenizer by AutoTokenizer.from_pretrained, "
            "or wrap a tokenizers.Tokenizer as PreTrainedTokenizerFast(tokenizer_object=tokenizer)"
        )


def _changed_modules(model: Any) -> list[str]:
    """Return the names of modules with replaced functions, or hooks that would not be run.

    Hooks inside the base model are run: its copies have them. What surrounds it is replaced.
    """
    base = getattr(model, "base_model", None)
    inside = {*base.modules()} - {base} if isinstance(base, nn.Module) else set()
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return [name for name, module in named if is_changed(module, hooks=module not in inside)]


def is_changed(module: Any, hooks: bool = True) -> bool:
    """Return whether a module has replaced functions or, if `hooks` count, forward hooks."""
    if module is not unwrapped(module):
        return False
    kinds = ("_forward_hooks", "_forward_pre_hooks") if hooks else ()
    found = [hook for kind in kinds for hook in getattr(module, kind, {}).values()]
    foreign = [hook for hook in found if not str(hook.__module__).startswith(_KNOWN_HOOKS)]
    return bool(foreign) or any(
        _is_replaced(module, name) for name in getattr(module, "__dict__", ())
    )


def _is_replaced(module: Any, name: str) -> bool:
    """Return whether an attribute of a module hides a function of its class, even undecorated."""
    own, given = getattr(type(module), name, None), vars(module)[name]
    if not isinstance(own, FunctionType):
        return False
    while own is not None and given != MethodType(own, module):
        own = getattr(own, "__wrapped__", None)
    return own is None

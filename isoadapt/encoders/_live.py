"""Live models: wrappers that are removed, and models that are refused."""

import re
from typing import Any

_WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
_LIBRARIES = r"quantized|bitsandbytes|torchao|\w*gptq\w*|awq|hqq|quanto"
_QUANTISED = re.compile(rf"\.({_LIBRARIES}|\w*Linear(8bitLt|4bit)|\w*QuantLinear|FP8Linear)\.")
WHOLE = "pass the model before quantisation, or model.dequantize() saved with save_pretrained"


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
    kind = type(model).__name__
    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"model=({kind}, {type(tokenizer).__name__}) must be a PreTrainedModel and a "
            "PreTrainedTokenizer of transformers"
        )
    weights = [*model.parameters()]
    # The quantised layers of I-BERT compute in float unless quant_mode is set.
    parts = [part for part in (*model.modules(), *weights) if getattr(part, "quant_mode", True)]
    paths = " ".join(f".{type(part).__module__}.{type(part).__qualname__}." for part in parts)
    if _QUANTISED.search(paths) or getattr(model, "is_quantized", False):
        raise ValueError(f"the live {kind} is quantised; {WHOLE}")
    if ".torch.distributed." in paths or any(weight.is_meta for weight in weights):
        raise ValueError(
            f"the live {kind} is sharded or offloaded; pass the folder of its save_pretrained"
        )

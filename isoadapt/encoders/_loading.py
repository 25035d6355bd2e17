"""Why a checkpoint cannot be loaded or used: every cause has its own message."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any

from isoadapt.encoders._backbone import Backbone, refuse_peft
from isoadapt.encoders._folder import fault_in, read_object

_LIBRARIES = r"quantized|bitsandbytes|torchao|\w*gptq\w*|awq|hqq|quanto"
_QUANTISED = re.compile(rf"\.({_LIBRARIES}|\w*Linear(8bitLt|4bit)|\w*QuantLinear|FP8Linear)\.")
_WHOLE = "pass the model before quantisation, or model.dequantize() saved with save_pretrained"
_SCALES = re.compile(r"\.(SCB|absmax|quant_map|weight_scale\w*|qweight|qzeros|_packed_params)$")


def checked_read(folder: Path, part: str, read: Callable[[], Any]) -> Any:
    """Call `read`; turn its errors into errors that name the folder and the part that was read."""
    try:
        return read()
    except Exception as error:  # a damaged file can cause any exception
        told = f"{type(error).__name__}: {shorten(str(error), 800, placeholder='…')}"
        raise ValueError(
            f"model={str(folder)!r} cannot be loaded: "
            + (fault_in(folder) or f"its {part} cannot be read ({told})")
        ) from error


def read_config(folder: Path, **options: Any) -> Any:
    """Read the configuration of a model that is not quantised, with the default attention."""
    import transformers

    file = folder / "config.json"
    if read_object(file).get("quantization_config"):
        raise ValueError(f"{file} has a quantization_config; {_WHOLE}")
    read = transformers.AutoConfig.from_pretrained
    config = checked_read(folder, "configuration", lambda: read(folder, **options))
    if config._attn_implementation not in (None, "eager", "sdpa"):
        config._attn_implementation = None  # the default gives the same vectors without a package
    return config


def use_options(code: bool) -> dict[str, Any]:
    """Options of from_pretrained of a folder, whose code may be in another repository."""
    return {"local_files_only": not code, "trust_remote_code": code}


def use_code(folder: Path, kind: str) -> None:
    """Register a checkpoint's own class with transformers, which would keep the first one."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    name = (read_object(folder / "config.json").get("auto_map") or {}).get(kind)
    if name is None:
        return
    config = type(transformers.AutoConfig.from_pretrained(folder, **use_options(True)))
    if not config.__module__.startswith("transformers."):  # those are never registered
        found = get_class_from_dynamic_module(name, folder)
        getattr(transformers, kind).register(config, found, exist_ok=True)


def check_weights(
    folder: Path, model: Any, report: dict[str, Any], merged: Iterable[str], head: bool
) -> None:
    """Raise ValueError unless all weights were read; `merged` come from a PEFT adapter."""
    names, problem = sorted(report["unexpected_keys"]), ""

    def needed(name: str) -> bool:
        """Return whether a weight matters; hidden states do not depend on a pooler."""
        return name not in merged and (head or "pooler" not in name.split("."))

    wrong = sorted(entry for entry in report["mismatched_keys"] if needed(entry[0]))
    missing = sorted(filter(needed, report["missing_keys"]))
    if found := next(filter(_SCALES.search, names), None):
        problem = f" has quantised weights ({found}); {_WHOLE}"
    elif wrong:
        name, saved, built = wrong[0]
        problem = (
            f": the weights {name} have the shape {tuple(saved)}, but config.json asks for "
            f"{tuple(built)} (by its sizes, or its number of names in id2label)"
        )
    elif missing:
        others = f", but for {', '.join(names[:2])}" if names else ""
        kind = "of a fine-tuned classifier" if head else "of a whole model"
        problem = (
            f" has no weights for {', '.join(missing[:2])}{others}; the missing ones would be "
            f"random numbers: pass the checkpoint {kind}, saved from the model itself"
        )
    if problem:
        raise ValueError(f"model={str(folder)!r}{problem}")


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
        raise ValueError(f"the live {kind} is quantised; {_WHOLE}")
    if ".torch.distributed." in paths or any(weight.is_meta for weight in weights):
        raise ValueError(
            f"the live {kind} is sharded or offloaded; pass the folder of its save_pretrained"
        )


def check_use(backbone: Backbone) -> Backbone:
    """Return a model after checking its weights, and that tokenizer and configuration fit it."""
    model, tokenizer = backbone.model, backbone.tokenizer
    _check_finite(backbone)
    try:
        n_rows = model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):  # as in models that read characters
        return backbone
    key = ("tokens", id(tokenizer), len(tokenizer), n_rows)
    if key in backbone.probes:
        return backbone
    ids = tokenizer.get_vocab()
    if set(ids.values()) <= set(tokenizer.all_special_ids):
        raise FileNotFoundError(
            f"{backbone.shown}: the tokenizer has only its special tokens, because the file of its "
            "vocabulary is missing"
        )
    if beyond := sorted((i, token) for token, i in ids.items() if i >= n_rows):
        raise ValueError(
            f"{backbone.shown}: the model has embeddings for {n_rows} tokens, but the tokenizer "
            f"has {beyond[0][1]!r} with id {beyond[0][0]}; remove it, or call "
            f"model.resize_token_embeddings({beyond[-1][0] + 1}) and train the new embeddings"
        )
    backbone.probes[key] = True
    return backbone


def _check_finite(backbone: Backbone) -> None:
    """Raise ValueError for weights that are NaN or infinite, once for each state of a model."""
    weights = dict(backbone.model.named_parameters())
    key = ("finite", sum(w._version for w in weights.values() if not w.is_inference()))
    if key not in backbone.probes:
        if bad := [name for name, w in weights.items() if not w.isfinite().all()]:
            raise ValueError(
                f"{backbone.shown}: {len(bad)} of its tensors hold NaN or infinite values in "
                f"{backbone.model.dtype} ({bad[0]}); use an earlier checkpoint, or dtype='float32'"
            )
        backbone.probes[key] = True

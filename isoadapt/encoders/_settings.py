"""Checks of encoder parameters that depend on each other or on a live model."""

import os
import sys
from typing import Any

import torch

from isoadapt._utils.devices import resolve_device
from isoadapt.encoders._backbone import Backbone, live_backbone

DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,  # data type of the parts that torch computes
}


def check_backend(backend: str, model: Any, device: str | torch.device, dtype: str) -> None:
    """Raise ValueError if the backend does not support the model, the device or the dtype."""
    if backend == "torch":
        if dtype == "int8":
            raise ValueError(
                "dtype='int8' needs backend='onnx'; choose this backend, or dtype='float32' or "
                "'bfloat16'"
            )
        return
    if not isinstance(model, str | os.PathLike):
        raise ValueError(
            "backend='onnx' exports a checkpoint, but model is a live model; save it and its "
            "tokenizer to a folder with save_pretrained and pass model=folder, or choose "
            "backend='torch'"
        )
    if device != "auto" and resolve_device(device).type != "cpu":
        raise ValueError(
            f"device={str(device)!r}, but backend='onnx' runs on the CPU; choose device='auto' or "
            "'cpu', or backend='torch'"
        )
    if dtype not in ("auto", "float32", "int8"):
        raise ValueError(
            f"dtype={dtype!r}, but backend='onnx' computes in 'float32' or 'int8'; choose one of "
            "them, or backend='torch'"
        )


def is_sentence_transformer(model: Any) -> bool:
    """Return whether a model is a SentenceTransformer, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def live_parts(model: Any) -> tuple[Any, Any]:
    """Return the transformer and the tokenizer of a live model; raise TypeError if it has none."""
    if is_sentence_transformer(model):
        first: Any = next(iter(model), None)
        if type(first).__name__ == "Transformer" and first.tokenizer is not None:
            return first.auto_model, first.tokenizer
        raise TypeError(
            f"model is a SentenceTransformer that begins with {type(first).__name__}; pass one "
            "that begins with a Transformer module"
        )
    if isinstance(model, tuple) and len(model) == 2 and isinstance(model[0], torch.nn.Module):
        if not is_sentence_transformer(model[0]):
            return model
        raise TypeError(
            "model is a tuple with a SentenceTransformer, which has its own tokenizer; pass the "
            "SentenceTransformer alone"
        )
    hint = "; a live model needs its tokenizer" if isinstance(model, torch.nn.Module) else ""
    raise TypeError(
        f"model is a {type(model).__name__}{hint}; pass a folder, a name on the Hugging Face Hub, "
        "a SentenceTransformer, or a tuple (model, tokenizer)"
    )


def checked_live(model: Any, device: str | torch.device, dtype: str) -> Backbone:
    """Wrap a live model after checking its device and dtype.

    Another device or dtype than asked for raises ValueError, and an object of another kind
    TypeError.
    """
    backbone = live_backbone(*live_parts(model), model if is_sentence_transformer(model) else None)
    if device != "auto" and resolve_device(device).type != backbone.model.device.type:
        raise ValueError(
            f"device={str(device)!r}, but the live model is on {backbone.model.device}; move it, "
            "or choose device='auto'"
        )
    if dtype != "auto" and DTYPES[dtype] != backbone.model.dtype:
        raise ValueError(
            f"dtype={dtype!r}, but the live model is in {backbone.model.dtype}; convert it, or "
            "choose dtype='auto'"
        )
    return backbone

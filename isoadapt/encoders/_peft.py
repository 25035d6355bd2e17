"""PEFT checkpoints: folders with the weights of an adapter, to be merged into a base model."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch

from isoadapt.encoders._backbone import find_last_linear
from isoadapt.encoders._folder import read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of the names in PEFT's files
MERGE = (
    "merge the adapter with peft.PeftModel.from_pretrained(base, folder).merge_and_unload(), save "
    "the result and its tokenizer with save_pretrained, and pass this folder"
)


def read_adapter(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of a PEFT adapter; return None if the folder holds none.

    A configuration that is damaged or names no base model raises ValueError.
    """
    config = read_json(folder / CONFIG)
    if config is None:
        return None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"{folder / CONFIG} names no base model (base_model_name_or_path={base!r}); set it to "
            f"a folder or a model on the Hugging Face Hub, or {MERGE}"
        )
    return config


def is_classifier_adapter(adapter: dict[str, Any]) -> bool:
    """Return whether an adapter's configuration is for sequence classification."""
    return adapter.get("task_type") == "SEQ_CLS"


def check_base(folder: Path, base: Path) -> None:
    """Check that the base model of an adapter is not an adapter itself.

    Two adapters could name each other, and loading them would not end.
    """
    if read_adapter(base) is not None:
        raise ValueError(
            f"model={str(folder)!r} is a PEFT adapter of {str(base)!r}, which is one itself: "
            f"merge that one first, by merge_and_unload; or {MERGE}"
        )


def check_adapter(folder: Path) -> None:
    """Check that peft and an adapter's weights exist, before the base model is loaded."""
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"model={str(folder)!r} is a PEFT adapter without {WEIGHTS} (other formats can run "
            "code and are not read); save it again with a recent peft, or copy it again"
        )
    try:
        importlib.import_module("peft")
    except ImportError as error:
        raise ImportError(
            f"model={str(folder)!r} is a PEFT adapter, which needs peft: pip install "
            f'"isoadapt[peft]"; or {MERGE}'
        ) from error


def saved_weights(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an adapter's weights by their names in the base model.

    Modules that were trained as a whole, such as a classifier, are included.
    """
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, "pt") as file:
        names = list(file.keys())
        shapes = [tuple(file.get_slice(name).get_shape()) for name in names]
    return {name.removeprefix(_PREFIX): shape for name, shape in zip(names, shapes, strict=True)}


def label_options(folder: Path, model: Any) -> dict[str, int]:
    """Return the options of ``from_pretrained`` for the number of labels of an adapter's head.

    PEFT saves the head without this number. `model` is the base model with any number of labels,
    without weights. The options are empty if the adapter has no head, or if the number is correct.
    """
    head = find_last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    shape = saved_weights(folder).get(f"{name}.weight")
    if shape is None or shape[0] == model.config.num_labels:
        return {}
    return {"num_labels": shape[0]}


def merged(model: Any, folder: Path) -> Any:
    """Merge an adapter into its base model, which is changed, and keep class and data type.

    Weights that do not fit the base model, or cannot be merged, raise ValueError.
    """
    import peft

    dtype, names = model.dtype, set(model.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the reasons for them are checked here
            wrapped = peft.PeftModel.from_pretrained(
                model, str(folder), torch_device="cpu", autocast_adapter_dtype=False
            )
            if not hasattr(wrapped.base_model, "merge_and_unload"):
                kind = wrapped.active_peft_config.peft_type.value
                raise ValueError(f"a {kind} adapter does not change weights and cannot be merged")
            _check_names(wrapped, folder, names)
            plain = wrapped.merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"model={str(folder)!r}: the PEFT adapter cannot be merged into its base model "
            f"({str(error).strip() or type(error).__name__}); check that it was trained on "
            f"this base model, or {MERGE}"
        ) from error
    for weights in plain.parameters():
        weights.data = weights.data.to(dtype)
    return plain


def _check_names(wrapped: torch.nn.Module, folder: Path, base_names: set[str]) -> None:
    """Raise ValueError for weights that PEFT skips or leaves random with only a warning."""
    import peft

    state = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    expected = {name.removeprefix(_PREFIX) for name in state}
    saved = set(saved_weights(folder))
    if not expected <= saved or not saved <= expected | base_names:
        different = sorted((expected - saved) | (saved - expected - base_names))[:3]
        raise ValueError(
            f"its weights do not fit: {', '.join(different)} occur in one of the two only"
        )

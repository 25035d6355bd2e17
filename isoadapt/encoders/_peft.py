"""Checkpoints of PEFT: a folder with an adapter's weights, which are merged into a base model."""

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch

from isoadapt.encoders._folder import read_json
from isoadapt.encoders._network import find_last_linear

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # of names in PEFT's files
MERGE = (
    "merge it where it was trained, by peft.PeftModel.from_pretrained(base, folder)"
    ".merge_and_unload(), and pass the folder that save_pretrained makes of the result and of "
    "its tokenizer"
)


def read_adapter(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of a PEFT adapter.

    Parameters
    ----------
    folder : Path
        Where a checkpoint lies.

    Returns
    -------
    dict or None
        With the name of the base model in it; None if the folder holds no PEFT adapter.

    Raises
    ------
    ValueError
        If the configuration is damaged or names no base model.
    """
    config = read_json(folder / CONFIG)
    if config is None:
        return None
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"{folder / CONFIG} names no base model (base_model_name_or_path={base!r}): name a "
            f"folder or a model on the Hugging Face Hub there, or {MERGE}"
        )
    return config


def is_classifier_adapter(adapter: dict[str, Any]) -> bool:
    """Say whether an adapter was trained for sequence classification.

    Parameters
    ----------
    adapter : dict
        Its configuration.

    Returns
    -------
    bool
        What its task type says.
    """
    return adapter.get("task_type") == "SEQ_CLS"


def check_base(folder: Path, base: Path) -> None:
    """Check that the base model of an adapter is not an adapter, which could name the first one.

    Parameters
    ----------
    folder : Path
        Where the adapter lies.
    base : Path
        Where its base model lies.

    Raises
    ------
    ValueError
        If the base model is an adapter itself.
    """
    if read_adapter(base) is not None:
        raise ValueError(
            f"model={str(folder)!r} is a PEFT adapter of {str(base)!r}, which is one itself: "
            f"merge that one first, by merge_and_unload; or {MERGE}"
        )


def check_adapter(folder: Path) -> None:
    """Check, before the base model is loaded, that an adapter can be read.

    Parameters
    ----------
    folder : Path
        Where the adapter lies.

    Raises
    ------
    ImportError
        If peft is not installed.
    OSError
        If there are no safetensors weights.
    """
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
    """Give the shapes of an adapter's weights by their names in the base model.

    Parameters
    ----------
    folder : Path
        Where the adapter lies.

    Returns
    -------
    dict of str to tuple of int
        Among them the modules that were trained as a whole, such as a classifier.
    """
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, "pt") as file:
        names = list(file.keys())
        shapes = [tuple(file.get_slice(name).get_shape()) for name in names]
    return {name.removeprefix(_PREFIX): shape for name, shape in zip(names, shapes, strict=True)}


def label_options(folder: Path, model: Any) -> dict[str, int]:
    """Give the number of labels that an adapter's own head was trained for.

    PEFT saves the head, but not how many labels it has.

    Parameters
    ----------
    folder : Path
        Where the adapter lies.
    model : PreTrainedModel
        The base model with any number of labels, without weights.

    Returns
    -------
    dict of str to int
        Options of ``from_pretrained``; empty if the adapter has no head, or the number is right.
    """
    head = find_last_linear(model)
    name = next(name for name, module in model.named_modules() if module is head)
    shape = saved_weights(folder).get(f"{name}.weight")
    if shape is None or shape[0] == model.config.num_labels:
        return {}
    return {"num_labels": shape[0]}


def merged(model: Any, folder: Path) -> Any:
    """Merge an adapter into its base model.

    Parameters
    ----------
    model : PreTrainedModel
        The base model, which is changed.
    folder : Path
        Where the adapter lies.

    Returns
    -------
    PreTrainedModel
        A model of the same class, in the same type, without PEFT's layers.

    Raises
    ------
    ValueError
        If the weights do not fit the base model, or cannot be merged.
    """
    import peft

    dtype, names = model.dtype, set(model.state_dict())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of is checked here
            wrapped = peft.PeftModel.from_pretrained(
                model, str(folder), torch_device="cpu", autocast_adapter_dtype=False
            )
            if not hasattr(wrapped.base_model, "merge_and_unload"):
                kind = wrapped.active_peft_config.peft_type.value
                raise ValueError(f"a {kind} adapter is no change of weights and cannot be merged")
            _check_names(wrapped, folder, names)
            plain = wrapped.merge_and_unload(safe_merge=True)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"model={str(folder)!r}: the PEFT adapter cannot be merged into its base model "
            f"({str(error).strip() or type(error).__name__}); check that the base model is the one "
            f"that it was trained on, or {MERGE}"
        ) from error
    for weights in plain.parameters():
        weights.data = weights.data.to(dtype)
    return plain


def _check_names(wrapped: torch.nn.Module, folder: Path, base_names: set[str]) -> None:
    """Refuse weights that PEFT leaves out, or left as random numbers, with a warning only."""
    import peft

    state = peft.get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    expected = {name.removeprefix(_PREFIX) for name in state}
    saved = set(saved_weights(folder))
    if not expected <= saved or not saved <= expected | base_names:
        odd = sorted((expected - saved) | (saved - expected - base_names))[:3]
        raise ValueError(f"its weights do not fit: {', '.join(odd)} are on one side only")

"""The modules and settings of sentence-transformers, in folders and in live models, as a Pooling.

A model of Transformer, Pooling and simple layers with known settings is computed here. Any other is
encoded by sentence-transformers itself, which the pooling LIBRARY says.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from isoadapt._utils.messages import reason
from isoadapt.encoders._folder import (
    fault,
    module_kind,
    read_object,
    sentence_modules,
    transformer_folder,
)
from isoadapt.encoders._kinds import encoder_class
from isoadapt.encoders._pooling import HEAD_INPUT, LIBRARY, MODES, Columns, Normalize, Pooling

ACTIVATIONS: Final = (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
MODE_OF_KEY: Final = {  # in the configuration of Pooling
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
MODEL_FILE = "config_sentence_transformers.json"
UNLIMITED = 2**31  # a maximum length of this size or more means that there is no limit
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_FILES = {"Pooling": (_CONFIG,), "Dense": (_CONFIG, _WEIGHTS), "LayerNorm": (_CONFIG, _WEIGHTS)}
_LAYERS = {"Normalize", "Dense", "LayerNorm", "Dropout"}  # that may follow Transformer and Pooling
_ACTIVATION_OF = {f"{cls.__module__}.{cls.__name__}": cls for cls in ACTIVATIONS}
_ACTIVATION_OF |= {f"torch.nn.{cls.__name__}": cls for cls in ACTIVATIONS}
_APPLIED = {"max_seq_length", "truncate_dim", "pooling_mode", *MODE_OF_KEY}
_APPLIED |= {"in_features", "out_features", "bias", "dimension", "default_prompt_name"}
_WITHOUT_EFFECT = {"__version__", "requirements", "similarity_fn_name", "prompts", "dropout"}
_WITHOUT_EFFECT |= {"include_prompt", "embedding_dimension", "word_embedding_dimension"}
_WITHOUT_EFFECT |= {"activation_fn", "keep_in_fp32_modules", "model_type", "unpad_inputs"}
_EMPTY = "{% set text = messages | map(attribute='content') | join %}{{ text if text"
_OFF: tuple[Any, ...] = (None, False, {})
_DEFAULTS: dict[str, tuple[Any, ...]] = {  # values of other settings that are those assumed here
    "transformer_task": ("feature-extraction", "sequence-classification"),
    "modality_config": tuple(
        {"text": {"method": "forward", "method_output_name": name}}
        for name in ("last_hidden_state", "logits")
    ),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("token_embeddings", "scores", "sentence_embedding"),
}


class _Part(NamedTuple):
    """A module: its kind, its settings with the place that they come from, and its weights."""

    kind: str
    settings: dict[str, Any]
    where: str
    weights: Callable[[], Mapping[str, Tensor]] = dict


def sentence_pooling(folder: Path, head: bool = False) -> Pooling | None:
    """Read the pooling of a folder, or the length of a CrossEncoder with a `head`, or None."""
    listed, settings = folder / "modules.json", read_object(folder / MODEL_FILE)
    if head and not (listed.is_file() and settings.get("model_type") == "CrossEncoder"):
        return None
    if not listed.is_file():
        if (folder / MODEL_FILE).is_file() or (folder / "1_Pooling" / _CONFIG).is_file():
            raise _missing(listed)
        return None
    modules, config = sentence_modules(folder), read_object(transformer_folder(folder) / _CONFIG)
    known = _are_known([kind for kind, _ in modules], head) and (head or not _has_decoder(config))
    pooling = _pooling(settings, _parts(modules)) if known else None
    if head and pooling is None:
        raise ValueError(
            f"{folder} is a CrossEncoder with modules or settings other than a length, which may "
            "change its logits: choose pooling='cls', 'mean' or 'max'"
        )
    if settings.get("model_type") not in (None, "SentenceTransformer", "CrossEncoder"):
        raise ValueError(
            f"{folder / MODEL_FILE} has model_type={settings['model_type']!r}, whose vectors are "
            "not dense: choose pooling='cls', 'mean' or 'max' of its transformer"
        )
    return pooling or Pooling((LIBRARY,))


def _parts(modules: list[tuple[str, Path]]) -> list[_Part]:
    """Read the settings of known modules."""
    files = sorted(modules[0][1].glob("sentence_*_config.json"))  # one for each class of models
    parts = [_Part("Transformer", next(filter(None, map(read_object, files)), {}), "")]
    for kind, place in modules[1:]:
        for each in [place / name for name in _FILES.get(kind, ())]:
            if not each.is_file():
                raise _missing(each)
            if found := fault(each):
                raise ValueError(found)
        file, weights = place / _CONFIG, place / _WEIGHTS
        parts.append(_Part(kind, read_object(file), str(file), partial(load_file, weights)))
    return parts


def settings_for_empty_texts(token: str, blank: bool = False) -> dict[str, Any]:
    """Return settings by which the library reads a token for an empty, or any `blank`, text."""
    how = {"method": "forward", "method_output_name": "last_hidden_state"}
    template = f"{_EMPTY}{' | trim' if blank else ''} else {token!r} }}}}"
    return {
        "modality_config": {"text": how, "message": how | {"format": "flat"}},
        "module_output_name": "token_embeddings",
        "processing_kwargs": {"chat_template": {"chat_template": template}},
    }


def live_pooling(model: Any) -> Pooling:
    """Return the pooling of a SentenceTransformer object."""
    kinds = [live_kind(each) for each in model]
    own = type(model).__module__.startswith("sentence_transformers.")
    if not own or not _are_known(kinds) or _has_decoder(model[0].auto_model.config.to_dict()):
        return Pooling((LIBRARY,))
    names = ("activation_function", "max_seq_length", "do_lower_case")
    parts = []
    for kind, each in zip(kinds, model, strict=True):
        settings = {name: getattr(each, name) for name in names if hasattr(each, name)}
        settings = each.get_config_dict() | settings
        parts.append(_Part(kind, settings, f"the {kind} module of model", each.state_dict))
    names = ("prompts", "default_prompt_name", "truncate_dim")
    return _pooling({name: getattr(model, name) for name in names}, parts) or Pooling((LIBRARY,))


def live_kind(module: Any) -> str:
    """Return the kind of a module."""
    return module_kind(f"{type(module).__module__}.{type(module).__qualname__}")


def _are_known(kinds: list[str], head: bool = False) -> bool:
    """Return whether the modules are those that are computed here."""
    if head:
        return kinds == ["Transformer"]
    return kinds[:2] == ["Transformer", "Pooling"] and set(kinds[2:]) <= _LAYERS


def _has_decoder(config: dict[str, Any]) -> bool:
    """Return whether the library pools states of a decoder, unlike the other poolings here."""
    return bool(config.get("is_encoder_decoder")) and not encoder_class(config.get("model_type"))


def _pooling(model: dict[str, Any], parts: list[_Part]) -> Pooling | None:
    """Return the pooling that the settings of a model describe, or None if one is not known."""
    first = parts[0].settings
    if _EMPTY in str(first.get("processing_kwargs")):  # an encoder reads such texts alike
        first = {name: first[name] for name in first if name not in settings_for_empty_texts("")}
    settings = [model, first, *(part.settings for part in parts[1:])]
    if not all(_is_known(name, value) for each in settings for name, value in each.items()):
        return None
    prompt = model.get("default_prompt_name")
    if prompt is not None and (model.get("prompts") or {}).get(prompt) != "":
        return None
    pooling = parts[1].settings if parts[1:] else {"pooling_mode": HEAD_INPUT}
    legacy = [mode for key, mode in MODE_OF_KEY.items() if pooling.get(key)]
    modes = pooling.get("pooling_mode") or legacy or "mean"
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not {*modes} <= {*MODES, HEAD_INPUT}:
        return None
    length = parts[0].settings.get("max_seq_length")
    steps = [step for part in parts[2:] for step in _steps(part)]
    if model.get("truncate_dim") is not None:
        steps.append(Columns(model["truncate_dim"]))
    return Pooling(
        modes=modes,
        steps=tuple(steps),
        max_length=None if length is None or length >= UNLIMITED else length,
    )


def _is_known(name: str, value: Any) -> bool:
    """Return whether a setting is applied, is off or has no effect."""
    if name == "activation_function":
        return type(value) in ACTIVATIONS or value in _ACTIVATION_OF
    return name in _APPLIED | _WITHOUT_EFFECT or value in _OFF + _DEFAULTS.get(name, ())


def _steps(part: _Part) -> tuple[nn.Module, ...]:
    """Return what a module after the pooling computes, in float32."""
    if part.kind not in ("Dense", "LayerNorm"):
        return (Normalize(),) if part.kind == "Normalize" else ()
    settings = part.settings
    try:
        with torch.device("meta"):  # no random numbers are drawn
            if part.kind == "Dense":
                sizes = settings["in_features"], settings["out_features"]
                layer: nn.Module = nn.Linear(*sizes, bias=settings.get("bias", True))
            else:
                layer = nn.LayerNorm(settings["dimension"])
        state = {
            name.removeprefix("linear.").removeprefix("norm."): values.detach().float().clone()
            for name, values in part.weights().items()
        }
        if bad := [name for name, values in state.items() if not values.isfinite().all()]:
            raise ValueError(f"the weights {bad[0]} hold NaN or infinite values")
        layer.load_state_dict(state, assign=True)
    except (KeyError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise ValueError(
            f"{part.where} and the weights of this {part.kind} module are damaged or do not fit "
            f"each other ({reason(error)})"
        ) from error
    default = "torch.nn.Tanh" if part.kind == "Dense" else "torch.nn.Identity"
    activation = settings.get("activation_function", default)
    return layer, activation if isinstance(activation, nn.Module) else _ACTIVATION_OF[activation]()


def _missing(file: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{file} is missing: copy the whole folder (only safetensors weights are read), or choose "
        "pooling='cls', 'mean' or 'max'"
    )

"""The modules and settings of sentence-transformers, in folders and in live models.

Only modules and settings that are applied, or known not to affect vectors, are accepted.
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
from isoadapt.encoders._folder import ENCODE, module_kind, read_object, sentence_modules
from isoadapt.encoders._live import is_changed
from isoadapt.encoders._pooling import HEAD_INPUT, MODES, Columns, Normalize, Pooling

ACTIVATIONS: Final = (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
MODE_OF_KEY: Final = {  # in the configuration of Pooling
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ANOTHER = f"choose pooling='cls', 'mean' or 'max'; or {ENCODE}"
MODEL_FILE = "config_sentence_transformers.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_FILES = {"Pooling": (_CONFIG,), "Dense": (_CONFIG, _WEIGHTS), "LayerNorm": (_CONFIG, _WEIGHTS)}
# Of the files with the settings of the transformer, the first that is not empty is read.
_TRANSFORMER = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
UNLIMITED = 2**31  # a maximum length of this size or more means that there is no limit
_ACTIVATION_OF = {f"{cls.__module__}.{cls.__name__}": cls for cls in ACTIVATIONS}
_ACTIVATION_OF |= {f"torch.nn.{cls.__name__}": cls for cls in ACTIVATIONS}
# Arguments that say where a model is loaded and how exactly it computes.
_LOADING = {"add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage"}
_LOADING |= {"revision", "torch_dtype", "trust_remote_code", "use_cache", "use_safetensors"}
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_SCORES = {"text": {"method": "forward", "method_output_name": "logits"}}
_PLACES = dict.fromkeys(("module_input_name", "module_output_name"), ("sentence_embedding",))
_FLAG = (False, True)  # also 0 and 1
# Supported settings: None, values of a type (int: positive) or one of some values.
_SETTINGS: dict[str, dict[str, Any]] = {
    "SentenceTransformer": {"prompts": dict, "default_prompt_name": str, "truncate_dim": int}
    | dict.fromkeys(("__version__", "requirements", "similarity_fn_name"), object)
    | {"model_type": ("SentenceTransformer",)},
    "Transformer": {"max_seq_length": int, "do_lower_case": _FLAG, "unpad_inputs": _FLAG}
    | {"transformer_task": ("feature-extraction",), "module_output_name": ("token_embeddings",)}
    | {"modality_config": (_TEXT,), "processing_kwargs": ({},), "tokenizer_name_or_path": ()}
    | dict.fromkeys(("query_length", "document_length", "query_expansion"), ())
    | dict.fromkeys(("model_args", "config_args", "tokenizer_args"), _LOADING)
    | dict.fromkeys(("model_kwargs", "config_kwargs", "processor_kwargs"), _LOADING),
    "Pooling": {"pooling_mode": MODES, "include_prompt": _FLAG}  # prompts are refused
    | dict.fromkeys(("embedding_dimension", "word_embedding_dimension"), object)
    | dict.fromkeys(MODE_OF_KEY, _FLAG),
    "Normalize": _PLACES,
    "Dropout": {"dropout": object},
    "LayerNorm": {"dimension": int},
    "Dense": {"in_features": int, "out_features": int, "bias": _FLAG, "use_residual": (False,)}
    | {"activation_function": (*_ACTIVATION_OF, *ACTIVATIONS)}
    | _PLACES,
}
_SETTINGS["CrossEncoder"] = _SETTINGS["SentenceTransformer"] | {"model_type": ("CrossEncoder",)}
_SETTINGS["CrossEncoder"] |= dict.fromkeys(("activation_fn", "keep_in_fp32_modules"), object)
_SETTINGS["CrossEncoder"] |= {"truncate_dim": ()}
_SETTINGS["Classifier"] = _SETTINGS["Transformer"] | {"modality_config": (_SCORES,)}
_SETTINGS["Classifier"] |= {"transformer_task": ("sequence-classification",)}
_SETTINGS["Classifier"] |= {"module_output_name": ("scores",)}


class _Part(NamedTuple):
    """A module: its kind, its settings with the place that they come from, and its weights."""

    kind: str
    settings: dict[str, Any]
    where: str
    weights: Callable[[], Mapping[str, Tensor]] = dict


def sentence_pooling(folder: Path, head: bool = False) -> Pooling | None:
    """Read the pooling of a sentence-transformers folder; return None if `folder` is not one.

    With a `head`, it is that of a CrossEncoder folder, which states length and case of texts.
    """
    listed, settings = folder / "modules.json", read_object(folder / MODEL_FILE)
    if head and not (listed.is_file() and settings.get("model_type") == "CrossEncoder"):
        return None
    if not listed.is_file():
        for file in (folder / MODEL_FILE, folder / "1_Pooling" / _CONFIG):
            if file.is_file():
                raise _missing(listed, file)
        return None
    modules = sentence_modules(folder)
    _check_kinds([kind for kind, _ in modules], str(listed), head)
    files = [modules[0][1] / f"sentence_{name}_config.json" for name in _TRANSFORMER]
    file = next(filter(read_object, files), files[0])
    parts = [_Part("Classifier" if head else "Transformer", read_object(file), str(file))]
    for kind, place in modules[1:]:
        for name in _FILES.get(kind, ()):
            if not (place / name).is_file():
                raise _missing(place / name, listed)
        file, weights = place / _CONFIG, place / _WEIGHTS
        parts.append(_Part(kind, read_object(file), str(file), partial(load_file, weights)))
    kind = "CrossEncoder" if head else "SentenceTransformer"
    return _pooling(_Part(kind, settings, str(folder / MODEL_FILE)), parts)


def live_pooling(model: Any) -> Pooling:
    """Return the pooling of a SentenceTransformer object; raise ValueError as for a folder."""
    own, kinds = live_kind(model), [live_kind(each) for each in model]
    if not own.startswith("sentence_transformers.") or " " in own:
        raise ValueError(
            f"model is a SentenceTransformer of another class or with other functions ({own}), "
            f"which may give other vectors; {_ANOTHER}"
        )
    _check_kinds(kinds, "model is a SentenceTransformer that")
    names = ("activation_function", "max_seq_length", "do_lower_case")
    parts = []
    for kind, each in zip(kinds, model, strict=True):
        settings = {name: getattr(each, name) for name in names if hasattr(each, name)}
        settings = each.get_config_dict() | settings
        parts.append(_Part(kind, settings, f"the {kind} module of model", each.state_dict))
    names = ("prompts", "default_prompt_name", "truncate_dim")
    settings = {name: getattr(model, name) for name in names}
    return _pooling(_Part("SentenceTransformer", settings, "model"), parts)


def live_kind(module: Any) -> str:
    """Return the kind of a module, with a note if it has hooks or replaced functions."""
    kind = module_kind(f"{type(module).__module__}.{type(module).__qualname__}")
    own = isinstance(module, nn.Module) and not hasattr(module, "auto_model")
    parts = module.modules() if own and not isinstance(module, nn.Sequential) else [module]
    return f"{kind} with a hook or a replaced function" if any(map(is_changed, parts)) else kind


def _pooling(model: _Part, parts: list[_Part]) -> Pooling:
    """Return the pooling that the settings and modules of a model describe."""
    for part in (model, *parts):
        _check_settings(part)
    name, prompts = model.settings.get("default_prompt_name"), model.settings.get("prompts") or {}
    if name is not None and prompts.get(name) != "":
        raise ValueError(
            f"{model.where} puts a prompt before each text (default_prompt_name={name!r}), which "
            "is not supported; remove this entry and pass texts that begin with the prompt, or "
            f"{_ANOTHER}"
        )
    length = parts[0].settings.get("max_seq_length")
    steps = [step for part in parts[2:] for step in _steps(part)]
    if model.settings.get("truncate_dim") is not None:
        steps.append(Columns(model.settings["truncate_dim"]))
    pooling = parts[1].settings if parts[1:] else {"pooling_mode": HEAD_INPUT}
    legacy = [mode for key, mode in MODE_OF_KEY.items() if pooling.get(key)]
    modes = pooling.get("pooling_mode") or legacy or "mean"
    return Pooling(
        modes=(modes,) if isinstance(modes, str) else tuple(modes),
        steps=tuple(steps),
        max_length=None if length is None or length >= UNLIMITED else length,
        lowercase=bool(parts[0].settings.get("do_lower_case")),
    )


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
            raise ValueError(f"{part.where}: the weights {bad[0]} hold NaN or infinite values")
        layer.load_state_dict(state, assign=True)
        default = "torch.nn.Tanh" if part.kind == "Dense" else "torch.nn.Identity"
        activation = settings.get("activation_function", default)
        if not isinstance(activation, nn.Module):
            activation = _ACTIVATION_OF[activation]()
    except (KeyError, RuntimeError, SafetensorError, TypeError) as error:
        raise ValueError(
            f"{part.where} and the weights of this {part.kind} module are damaged or do not fit "
            f"each other ({reason(error)}); copy both again, or {_ANOTHER}"
        ) from error
    return layer, activation


def _missing(file: Path, named_by: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{file} is missing, but {named_by} needs it: copy the whole folder (weights in other "
        f"formats than safetensors can run code and are not read), or {_ANOTHER}"
    )


def _check_kinds(kinds: list[str], where: str, head: bool = False) -> None:
    """Raise ValueError if the modules are not those that are supported, with or without a head."""
    known = ("Normalize", "Dense", "LayerNorm", "Dropout")
    supported = "Transformer and Pooling of sentence-transformers, followed by any number of "
    supported += ", ".join(known)
    wrong = kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(known)
    if head:
        supported, wrong = "a CrossEncoder of Transformer alone", kinds != ["Transformer"]
    if wrong:
        raise ValueError(
            f"{where} lists {', '.join(kinds) or 'no modules'}; pooling='auto' only supports "
            f"{supported}; {_ANOTHER}"
        )


def _check_settings(part: _Part) -> None:
    """Raise ValueError for a setting that is neither applied nor known to have no effect."""
    for name, value in part.settings.items():
        known = _SETTINGS[part.kind]
        if name not in known or not (value is None or _supports(known[name], value)):
            raise ValueError(
                f"{part.where} sets {name}={value!r}, which is not supported and may "
                f"change the vectors; remove it if it does not, or {_ANOTHER}"
            )


def _supports(allowed: Any, value: Any) -> bool:
    """Return whether a value is one of those that are allowed."""
    if allowed is _LOADING:
        return isinstance(value, dict) and value.keys() <= allowed
    if allowed is MODES and isinstance(value, list | tuple):
        return len(value) > 0 and all(mode in list(MODES) for mode in value)
    if isinstance(allowed, type):
        return type(value) is int and value > 0 if allowed is int else isinstance(value, allowed)
    return value in list(allowed) or type(value) in allowed

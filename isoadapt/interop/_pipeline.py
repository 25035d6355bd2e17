"""The content of an adapter folder: one adapter, or a pipeline of adapters, as data for JSON."""

import inspect
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import Affine, PenaltyAdapter
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._closed_form import MomentsAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.encoders import TransformerEncoder
from isoadapt.heads import LinearHead
from isoadapt.interop._state import Tensors, decode, encode

_ENCODER, _HEAD = TransformerEncoder.__name__, LinearHead.__name__
_ENTRIES = {_ENCODER: ("parameters",), _HEAD: ("head",)}  # of a step; those of adapters differ
# The parameters that determine the vectors. trust_remote_code and cache are never saved.
_VECTOR_PARAMETERS = ("model", "pooling", "layer", "max_length", "dtype", "revision", "backend")
_DERIVED = {"classes_", "_n_features_out"}  # computed from the map and the head
_SETTINGS = {"_sklearn_output_config", "_metadata_request"}  # of set_output and set_fit_request
SOURCE = "_vector_source"  # attribute of a loaded adapter: its VectorSource, if one was saved
_FITTED = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]_")
_PROBE = 3  # number of random rows that a map is tested on


class Parts(NamedTuple):
    """The steps of a model with their names: encoder, adapters and final linear model."""

    encoder: tuple[str, TransformerEncoder] | None
    adapters: list[tuple[str, BaseAdapter]]
    head: tuple[str, LinearHead] | None

    def first(self) -> BaseAdapter:
        """Return the adapter that reads the embeddings."""
        return self.adapters[0][1]

    def last_head(self) -> LinearHead | None:
        """Return the head that reads the adapted embeddings."""
        return self.adapters[-1][1].head_ if self.head is None else self.head[1]

    def without_encoder(self) -> Any:
        """Return the adapter, or a pipeline of the adapters if there are several."""
        return self.first() if len(self.adapters) == 1 else Pipeline(list(self.adapters))


def take_apart(model: Any) -> Parts:
    """Split an adapter, a Pipeline or an AdaptedEncoder into its parts, and check their types."""
    steps = _named_steps(model)
    encoder = head = None
    if steps and isinstance(steps[0][1], TransformerEncoder):
        encoder = steps.pop(0)
    if len(steps) > 1 and not isinstance(steps[-1][1], BaseAdapter):
        name, last = steps.pop()
        head = name, last if isinstance(last, LinearHead) else LinearHead.from_estimator(last)
    for _, step in steps:
        if not isinstance(step, BaseAdapter):
            if hasattr(step, "best_estimator_"):
                raise TypeError(
                    f"adapter is a search, {type(step).__name__}: pass its best_estimator_"
                )
            raise TypeError(
                f"adapter: {step!r} is not an adapter of isoadapt; pass an adapter, a Pipeline of "
                "adapters or an AdaptedEncoder, and use joblib.dump for other estimators"
            )
        check_is_fitted(step)
    if not steps:
        raise TypeError(
            "adapter is a Pipeline without an adapter; pass an adapter, or a Pipeline with one"
        )
    return Parts(encoder, steps, head)


def pack(model: Any, tensors: Tensors) -> dict[str, Any]:
    """Convert a model to values for JSON, and add its arrays to `tensors`."""
    parts = take_apart(model)
    for _, adapter in parts.adapters:
        _check_class(adapter)
    if isinstance(model, BaseAdapter):
        return pack_adapter(model, tensors)
    steps = []
    if parts.encoder is not None:
        name, encoder = parts.encoder
        steps.append({"name": name, "class": _ENCODER, "parameters": _pack_encoder(encoder)})
    for name, adapter in parts.adapters:
        packed = pack_adapter(adapter, tensors, f"steps.{len(steps)}.")
        steps.append({"name": name, **packed})
    if parts.head is not None:
        name, head = parts.head
        packed_head = encode(head, f"steps.{len(steps)}.head", tensors)
        steps.append({"name": name, "class": _HEAD, "head": packed_head})
    return {"steps": steps}


def unpack(config: dict[str, Any], tensors: Tensors) -> Any:
    """Rebuild a model from the result of :func:`pack`, and check it."""
    if "steps" not in config:
        model = unpack_adapter(config, tensors)
    else:
        steps = [_unpack_step(step, i, tensors) for i, step in enumerate(config["steps"])]
        if len({name for name, _ in steps}) < len(steps):
            raise ValueError("two steps have the same name")
        model = Pipeline(steps)
        _check_widths(take_apart(model))
    if tensors:
        raise ValueError(f"there are arrays that no part refers to: {sorted(tensors)[:3]}")
    return model


def _named_steps(model: Any) -> list[tuple[str, Any]]:
    """List the steps, also those of nested pipelines, without passthrough steps."""
    if isinstance(model, AdaptedEncoder):
        check_is_fitted(model)
        model = model.pipeline_
    if not isinstance(model, Pipeline):
        return [("adapter", model)]
    found = []
    for name, step in model.steps:
        if isinstance(step, Pipeline | AdaptedEncoder):
            found += [(f"{name}-{inner}", each) for inner, each in _named_steps(step)]
        elif step not in (None, "passthrough"):
            found.append((name, step))
    return found


def _check_class(adapter: BaseAdapter) -> None:
    if isinstance(adapter, PenaltyAdapter):
        raise TypeError(
            "a PenaltyAdapter cannot be saved in an adapter folder, because its penalty is code: "
            "define the penalty in a module and save the adapter with joblib.dump"
        )
    if ADAPTERS.get(type(adapter).__name__) is not type(adapter):
        raise TypeError(
            f"adapter={adapter!r} is not an adapter of isoadapt ({', '.join(ADAPTERS)}); use "
            "joblib.dump for other estimators"
        )


def _pack_encoder(encoder: TransformerEncoder) -> dict[str, Any]:
    if not isinstance(encoder.model, str | os.PathLike):
        raise TypeError(
            "the encoder of the pipeline holds a model in memory, which has no name to save: pass "
            "the folder or name of a checkpoint to the encoder, or save the other steps, "
            "pipeline[1:], with base_model=pipeline[0]"
        )
    values = {name: getattr(encoder, name) for name in _VECTOR_PARAMETERS}
    return values | {"model": os.fspath(encoder.model)}


def _unpack_step(step: dict[str, Any], place: int, tensors: Tensors) -> tuple[str, Any]:
    name = step["name"]
    if not isinstance(name, str):
        raise ValueError(f"the name of steps.{place} is not a string")
    wrong = set(step) ^ {"name", "class", *_ENTRIES.get(step["class"], ("parameters", "state"))}
    if wrong:
        raise ValueError(f"keys of steps.{place} are missing or unknown: {sorted(wrong)}")
    if step["class"] == _ENCODER:
        return name, _unpack_encoder(step["parameters"])
    if step["class"] == _HEAD:
        head = decode(step["head"], f"steps.{place}.head", tensors)
        if not isinstance(head, LinearHead):
            raise ValueError(f"steps.{place}.head is a {type(head).__name__}")
        return name, head
    return name, unpack_adapter(step, tensors, f"steps.{place}.")


def _unpack_encoder(parameters: dict[str, Any]) -> TransformerEncoder:
    if set(parameters) != set(_VECTOR_PARAMETERS) or not isinstance(parameters["model"], str):
        raise ValueError(f"the encoder's parameters are {sorted(parameters)}")
    encoder = TransformerEncoder(**parameters)
    encoder._validate_params()
    return encoder


def _check_widths(parts: Parts) -> None:
    """Check that the width of each step equals the output width of the step before."""
    width = parts.first().n_features_in_
    for name, adapter in parts.adapters:
        if adapter.n_features_in_ != width:
            raise ValueError(
                f"{name} takes {adapter.n_features_in_} features, but receives {width}"
            )
        width = adapter.map_.n_features_out
    if parts.head is not None:
        parts.head[1]._check_width(width)


def pack_adapter(adapter: BaseAdapter, tensors: Tensors, prefix: str = "") -> dict[str, Any]:
    """Convert a fitted adapter to a dict for JSON; its arrays are added under `prefix` + path."""
    parameters = adapter.get_params(deep=False)
    head = parameters.get("head")
    if head is not None and not isinstance(head, str | LinearHead):
        parameters["head"] = adapter.head_ if needs_fit(head) else LinearHead.from_estimator(head)
    left_out = {*parameters, *_DERIVED, *_SETTINGS, SOURCE}
    state = {name: value for name, value in vars(adapter).items() if name not in left_out}
    return {
        "class": type(adapter).__name__,
        "parameters": _encode_all(parameters, f"{prefix}parameters", tensors),
        "state": _encode_all(state, f"{prefix}state", tensors),
    }


def unpack_adapter(config: dict[str, Any], tensors: Tensors, prefix: str = "") -> BaseAdapter:
    """Create the fitted adapter that :func:`pack_adapter` converted, and check it."""
    if config["class"] not in ADAPTERS:
        raise ValueError(f"class={config['class']!r} must be one of {', '.join(ADAPTERS)}")
    cls = ADAPTERS[config["class"]]
    parameters = _decode_all(config["parameters"], f"{prefix}parameters", tensors)
    state = _decode_all(config["state"], f"{prefix}state", tensors)
    signature = inspect.signature(cls).parameters  # parameters of later versions have defaults
    needed = [name for name, each in signature.items() if each.default is each.empty]
    _check_names(parameters, needed, cls._get_param_names(), "parameters")
    adapter = cls(**parameters)
    adapter._validate_params()
    _set_state(adapter, state)
    _check_map(adapter)
    _check_head(adapter)
    return adapter


def _encode_all(values: dict[str, Any], path: str, tensors: Tensors) -> dict[str, Any]:
    return {name: encode(value, f"{path}.{name}", tensors) for name, value in values.items()}


def _decode_all(trees: Any, path: str, tensors: Tensors) -> dict[str, Any]:
    if not isinstance(trees, dict):
        raise ValueError(f"{path} is not a JSON object")
    return {name: decode(tree, f"{path}.{name}", tensors) for name, tree in trees.items()}


def _check_names(
    found: Iterable[str], needed: Iterable[str], admitted: Iterable[str], what: str
) -> None:
    """Raise unless `found` includes all names in `needed` and only names in `admitted`."""
    missing, unknown = sorted(set(needed) - set(found)), sorted(set(found) - set(admitted))
    if missing or unknown:
        raise ValueError(f"{what}: missing {missing}, unknown {unknown}")


def _set_state(adapter: BaseAdapter, state: dict[str, Any]) -> None:
    """Check the names of the fitted attributes, and set them."""
    cls = type(adapter)
    needed = {"map_", "head_", "n_features_in_"}
    if isinstance(adapter, MomentsAdapter):
        needed.add("moments_")
    admitted = [name for name in state if _FITTED.fullmatch(name) and not hasattr(cls, name)]
    _check_names(state, needed, [*admitted, "_fitted_rows"], "state")
    map_, head = state.pop("map_"), state.pop("head_")
    for name, value in state.items():
        setattr(adapter, name, value)
    adapter._set_fitted(map_, head)


def _check_map(adapter: BaseAdapter) -> None:
    """Check the kind of the map, and test it on a few random rows."""
    map_, width = adapter.map_, adapter.n_features_in_
    if adapter._maps_affinely() and not isinstance(map_, Affine):
        raise ValueError(
            "state.map_ is not affine, but the parameters are those of an affine adapter: fit the "
            "adapter again"
        )
    rows = np.random.default_rng(0).normal(size=(_PROBE, width))
    with np.errstate(all="ignore"):
        adapted = map_(rows)
    if adapted.shape != (_PROBE, map_.n_features_out) or not np.isfinite(adapted).all():
        raise ValueError(
            f"state.map_ does not map rows of width {width} to {map_.n_features_out} finite numbers"
        )


def _check_head(adapter: BaseAdapter) -> None:
    """Check that the head fits the map and the kind that the parameters ask for."""
    head = adapter.head_
    if head is None:
        return
    adapter._check_head_width(head)
    kind = adapter._head_kind()
    if kind is not None and (kind == "classifier") != (head.classes_ is not None):
        raise ValueError(
            f"state.head_ is not a {kind}, but the parameters ask for one: fit the adapter again"
        )

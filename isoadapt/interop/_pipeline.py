"""The content of an adapter folder: one adapter, or a pipeline of adapters."""

import os
from typing import Any, NamedTuple

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import PenaltyAdapter
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.encoders import TransformerEncoder
from isoadapt.heads import LinearHead
from isoadapt.interop._adapter import pack_adapter, unpack_adapter
from isoadapt.interop._state import Tensors, decode, encode

_ENCODER, _HEAD = TransformerEncoder.__name__, LinearHead.__name__
_ENTRIES = {_ENCODER: ("parameters",), _HEAD: ("head",)}  # of a step; those of adapters differ
# The parameters that determine the vectors. trust_remote_code and cache are never saved.
_VECTOR_PARAMETERS = ("model", "pooling", "layer", "max_length", "dtype", "revision", "backend")


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

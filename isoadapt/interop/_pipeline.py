"""The content of an adapter folder: one adapter, or a pipeline of adapters, as data for JSON.

Values are encoded as JSON and arrays, for a fixed set of types and without code.
"""

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from isoadapt._utils.messages import shortened
from isoadapt.adapted import AdaptedEncoder
from isoadapt.adapters import Affine, PenaltyAdapter
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._closed_form import MomentsAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._maps import STORABLE_MAPS, map_class, map_name
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.adapters._ridge_path import Folds
from isoadapt.encoders import TransformerEncoder
from isoadapt.geometry import Moments
from isoadapt.heads import LinearHead
from isoadapt.interop._reference import Reference

Tensors = dict[str, NDArray[Any]]
_PLAIN = (type(None), bool, int, str)
_SIGNED, _UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
_NUMERIC = frozenset(("bool", *_SIGNED, *_UNSIGNED, "float16", "float32", "float64"))
_ENCODER, _HEAD = TransformerEncoder.__name__, LinearHead.__name__
_ENTRIES = {_ENCODER: ("parameters",), _HEAD: ("head",)}  # of a step; those of adapters differ
# The parameters that determine the vectors. trust_remote_code and cache are never saved.
_VECTOR_PARAMETERS = ("model", "pooling", "layer", "max_length", "dtype", "revision", "backend")
_DERIVED = {"classes_", "_n_features_out"}  # computed from the map and the head
_SETTINGS = {"_sklearn_output_config", "_metadata_request"}  # of set_output and set_fit_request
RECORD = "_reference"  # attribute of a loaded adapter: of its vectors, if one was saved
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

    @property
    def recorded(self) -> Reference | None:
        """The reference of the encoder that the adapter was fitted with, if it was saved."""
        return vars(self.first()).get(RECORD)

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
            raise TypeError(
                f"adapter: {step!r} is not an adapter of isoadapt; pass an adapter, a Pipeline of "
                "adapters, an AdaptedEncoder or the best_estimator_ of a search, and use "
                "joblib.dump for other estimators"
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
    return values | {"model": os.fspath(encoder._at("model"))}


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
    left_out = {*parameters, *_DERIVED, *_SETTINGS, RECORD}
    state = {name: value for name, value in vars(adapter).items() if name not in left_out}
    return {
        "class": type(adapter).__name__,
        "parameters": encode(parameters, f"{prefix}parameters", tensors)["items"],
        "state": encode(state, f"{prefix}state", tensors)["items"],
    }


def unpack_adapter(config: dict[str, Any], tensors: Tensors, prefix: str = "") -> BaseAdapter:
    """Create the fitted adapter that :func:`pack_adapter` converted, and check it."""
    if config["class"] not in ADAPTERS:
        raise ValueError(f"class={config['class']!r} must be one of {', '.join(ADAPTERS)}")
    cls = ADAPTERS[config["class"]]
    parameters, state = (
        decode({"type": "dict", "items": config[name]}, f"{prefix}{name}", tensors)
        for name in ("parameters", "state")
    )
    signature = inspect.signature(cls).parameters  # parameters of later versions have defaults
    needed = [name for name, each in signature.items() if each.default is each.empty]
    _check_names(parameters, needed, cls._get_param_names(), "parameters")
    adapter = cls(**parameters)
    adapter._validate_params()
    _set_state(adapter, state)
    _check_map(adapter)
    _check_head(adapter)
    return adapter


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
    _check_names(state, needed, admitted, "state")
    map_, head = state.pop("map_"), state.pop("head_")
    for name, value in state.items():
        setattr(adapter, name, value)
    adapter._set_fitted(map_, head)


def _check_map(adapter: BaseAdapter) -> None:
    """Check the kind of the map, and test it on a few random rows."""
    map_, width = adapter.map_, adapter.n_features_in_
    if adapter._affine and not isinstance(map_, Affine):
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
    head._check_width(adapter.head_map_(np.zeros((1, adapter.n_features_in_))).shape[1])
    kind = adapter._head_kind()
    if kind is not None and (kind == "classifier") != (head.classes_ is not None):
        raise ValueError(
            f"state.head_ is not a {kind}, but the parameters ask for one: fit the adapter again"
        )


class _Kind(NamedTuple):
    """The two conversions of one type."""

    pack: Callable[[Any], dict[str, Any]]  # from a value to its fields
    unpack: Callable[..., Any]  # from the fields, as keyword arguments, to the value


def encode(value: Any, path: str, tensors: Tensors) -> Any:
    """Convert a value to JSON data; its numeric arrays are added to `tensors` under `path`.

    Supported are None, numbers, strings, arrays, heads, Moments, fitted maps, and lists, tuples
    and dicts of these. All that JSON cannot express becomes a dict with an entry "type".
    """
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [encode(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
    if kind is dict and all(type(key) is str for key in value):
        items = {key: encode(item, f"{path}.{key}", tensors) for key, item in value.items()}
        return {"type": "dict", "items": items}
    if kind is np.ndarray and value.dtype.name in _NUMERIC:
        return _encode_array(value, path, tensors)
    tag = _tag(value)
    if tag is None:
        raise _unsupported(value, path)
    fields = _kind(tag, path).pack(value)
    return {"type": tag} | {
        name: encode(item, f"{path}.{name}", tensors) for name, item in fields.items()
    }


def decode(tree: Any, path: str, tensors: Tensors) -> Any:
    """Convert JSON data from :func:`encode` back; arrays that are used leave `tensors`."""
    if isinstance(tree, list):
        return [decode(item, f"{path}.{i}", tensors) for i, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    fields = dict(tree)
    tag = fields.pop("type", None)
    if tag == "array":
        return _decode_array(path, tensors, **fields)
    if tag == "dict":
        items = fields["items"].items()
        return {key: decode(item, f"{path}.{key}", tensors) for key, item in items}
    kind = _kind(tag, path)
    values = {name: decode(item, f"{path}.{name}", tensors) for name, item in fields.items()}
    return kind.unpack(**values)


def _tag(value: Any) -> str | None:
    """Return the "type" entry for a value that JSON cannot express, or None if unsupported."""
    if isinstance(value, np.generic) and (value.dtype.name in _NUMERIC or value.dtype.kind == "U"):
        return "scalar"
    if isinstance(value, np.ndarray):
        texts = value.dtype.kind in "UO" and all(isinstance(item, str) for item in value.flat)
        return "strings" if texts else None
    if type(value) in (float, tuple, LinearHead, Moments, Folds):
        return type(value).__name__
    return map_name(value)


def _kind(tag: Any, path: str) -> _Kind:
    if tag in _KINDS:
        return _KINDS[tag]
    if tag not in STORABLE_MAPS:
        raise ValueError(f"{path} has the unknown type {tag!r}")
    return _Kind(lambda value: value._asdict(), map_class(tag))


def _unpack_moments(**arrays: NDArray[Any]) -> Moments:
    moments = Moments.from_arrays(arrays)
    names, higher = {"count", "mean", "scatter"}, {"third", "fourth"}  # absent in old folders
    whole = set(arrays) in (names, names | higher)
    if not whole or not all(np.isfinite(array).all() for array in arrays.values()):
        raise ValueError(
            "Moments must have a finite count, mean and scatter, and either both or neither of "
            "third and fourth"
        )
    if moments.count <= 0:
        raise ValueError(f"Moments have the count {moments.count:g}, which must be positive")
    return moments


def _pack_scalar(value: np.generic) -> dict[str, Any]:
    name = "str" if value.dtype.kind == "U" else value.dtype.name
    return {"dtype": name, "value": value.item()}


def _pack_strings(array: NDArray[Any]) -> dict[str, Any]:
    dtype = "object" if array.dtype.kind == "O" else "str"
    values = [str(value) for value in array.ravel().tolist()]
    return {"dtype": dtype, "shape": list(array.shape), "values": values}


_KINDS = {
    "float": _Kind(lambda value: {"value": repr(value)}, lambda value: float(value)),
    "tuple": _Kind(lambda value: {"items": list(value)}, lambda items: tuple(items)),
    "scalar": _Kind(_pack_scalar, lambda dtype, value: np.dtype(dtype).type(value)),
    "strings": _Kind(
        _pack_strings, lambda dtype, shape, values: np.array(values, dtype=dtype).reshape(shape)
    ),
    "LinearHead": _Kind(
        lambda head: (
            {"coef": head.coef_, "intercept": head.intercept_, "classes": head.classes_}
            | ({"multi_label": True} if head.multi_label_ else {})  # absent in old folders
        ),
        LinearHead,
    ),
    "MultiLabelHead": _Kind(vars, partial(LinearHead, multi_label=True)),  # in old folders
    "Moments": _Kind(lambda moments: dict(moments.to_arrays()), _unpack_moments),
    "Folds": _Kind(Folds._asdict, Folds),
}


def _encode_array(array: NDArray[Any], path: str, tensors: Tensors) -> dict[str, Any]:
    if path in tensors:
        raise TypeError(f"two arrays have the name {path}: rename a key of the dict")
    tensors[path] = np.array(array, dtype=array.dtype.name, order="C")
    by_columns = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
    return {
        "type": "array",
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "order": "F" if by_columns else "C",
    }


def _decode_array(
    path: str, tensors: Tensors, dtype: str, shape: list[int], order: str
) -> NDArray[Any]:
    if path not in tensors:
        raise ValueError(f"the array {path} is missing")
    array = tensors.pop(path)
    if dtype not in _NUMERIC or array.dtype.name != dtype or list(array.shape) != shape:
        raise ValueError(f"the array {path} is {array.dtype} {array.shape}, not {dtype} {shape}")
    return np.array(array, order=order)  # type: ignore[call-overload]


def _unsupported(value: Any, path: str) -> TypeError:
    """Return the error for a value that cannot be saved."""
    return TypeError(
        f"{path}={shortened(repr(value))} ({type(value).__name__}) cannot be saved: an adapter "
        "folder holds only numbers, strings, arrays and heads, not code; set an integer as "
        "random_state and the name of a scikit-learn scorer as scoring, or use joblib.dump"
    )

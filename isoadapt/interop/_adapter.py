"""Conversion of fitted adapters to data for JSON and safetensors, and back with checks."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from isoadapt.adapters import Affine
from isoadapt.adapters._base import BaseAdapter
from isoadapt.adapters._closed_form import MomentsAdapter
from isoadapt.adapters._heads import needs_fit
from isoadapt.adapters._maps import InvertibleMap
from isoadapt.adapters._registry import ADAPTERS
from isoadapt.heads import LinearHead
from isoadapt.interop._state import Tensors, decode, encode
from isoadapt.interop._types import is_map, matches

_DERIVED = {"classes_", "_n_features_out"}  # computed from the map and the head
_SETTINGS = {"_sklearn_output_config", "_metadata_request"}  # of set_output and set_fit_request
SOURCE = "_vector_source"  # attribute of a loaded adapter: its VectorSource, if one was saved
_FITTED = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]_")
_PROBE = 3  # number of random rows that a map is tested on


def pack_adapter(adapter: BaseAdapter, tensors: Tensors, prefix: str = "") -> dict[str, Any]:
    """Convert a fitted adapter to a dict for JSON; its arrays are added to `tensors`.

    The dict has the keys "class", "parameters" and "state". The names of the arrays begin with
    `prefix`.
    """
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
    """Create the fitted adapter that :func:`pack_adapter` converted, and check it.

    Its arrays are removed from `tensors`. ValueError, TypeError or KeyError is raised if the data
    do not describe a valid adapter.
    """
    cls = _adapter_class(config["class"])
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


def _adapter_class(name: Any) -> type[BaseAdapter]:
    if name not in ADAPTERS:
        raise ValueError(f"class={name!r} must be one of {', '.join(ADAPTERS)}")
    return ADAPTERS[name]


def _check_names(
    found: Iterable[str], needed: Iterable[str], admitted: Iterable[str], what: str
) -> None:
    """Raise unless `found` includes all names in `needed` and only names in `admitted`."""
    missing, unknown = sorted(set(needed) - set(found)), sorted(set(found) - set(admitted))
    if missing or unknown:
        raise ValueError(f"{what}: missing {missing}, unknown {unknown}")


def _set_state(adapter: BaseAdapter, state: dict[str, Any]) -> None:
    """Check the names and types of the fitted attributes, and set them."""
    cls = type(adapter)
    needed = {"map_", "head_", "n_features_in_"}
    if isinstance(adapter, MomentsAdapter):
        needed.add("moments_")
    admitted = [name for name in state if _FITTED.fullmatch(name) and not hasattr(cls, name)]
    _check_names(state, needed, admitted, "state")
    for owner in cls.__mro__:
        for name, hint in inspect.get_annotations(owner, eval_str=True).items():
            if name in state and name != "map_" and not matches(state[name], hint):
                raise ValueError(f"state.{name} is a {type(state[name]).__name__}")
    width, names = state["n_features_in_"], state.get("feature_names_in_")
    if names is not None and not _are_names(names, width):
        raise ValueError(f"state.feature_names_in_ is not an array of {width} names")
    map_, head = state.pop("map_"), state.pop("head_")
    if not is_map(type(map_)) or not callable(map_):
        raise ValueError(f"state.map_ is a {type(map_).__name__}, not a map")
    for name, value in state.items():
        setattr(adapter, name, value)
    adapter._set_fitted(map_, head)


def _are_names(names: Any, width: int) -> bool:
    return isinstance(names, np.ndarray) and names.dtype.kind == "O" and names.shape == (width,)


def _check_map(adapter: BaseAdapter) -> None:
    """Check the widths of the map, and test it and its inverse on a few random rows."""
    map_, width = adapter.map_, adapter.n_features_in_
    sizes = {size for array in _arrays(map_) for size in array.shape}
    moments = getattr(adapter, "moments_", None)
    if width not in sizes or (moments is not None and len(moments) != width):
        raise ValueError(f"state.n_features_in_={width} is not the width of map and moments")
    if adapter._maps_affinely() and not isinstance(map_, Affine):
        raise ValueError(
            "state.map_ is not affine, but the parameters are those of an affine adapter: fit the "
            "adapter again"
        )
    rows = np.random.default_rng(0).normal(size=(_PROBE, width))
    with np.errstate(all="ignore"):
        adapted = map_(rows)
        if adapted.shape != (_PROBE, map_.n_features_out) or adapted.dtype != np.float64:
            raise ValueError(
                f"state.map_ returns {adapted.dtype} of shape {adapted.shape} for float64 rows of "
                f"shape {rows.shape}"
            )
        if not np.isfinite(adapted).all():
            raise ValueError("state.map_ returns numbers that are not finite")
        if adapter._maps_back() and not isinstance(map_, Affine):
            back = cast(InvertibleMap, map_).inverted()(adapted)
            if back.shape != rows.shape or not np.allclose(back, rows, rtol=1e-2, atol=1e-2):
                raise ValueError("the inverse of state.map_ does not undo the map")


def _check_head(adapter: BaseAdapter) -> None:
    """Check that the head fits the map and the kind that the parameters ask for."""
    head = adapter.head_
    if head is None:
        return
    head._check_width(adapter.map_.n_features_out)
    kind = adapter._head_kind()
    if kind is not None and (kind == "classifier") != (head.classes_ is not None):
        raise ValueError(
            f"state.head_ is not a {kind}, but the parameters ask for one: fit the adapter again"
        )


def _arrays(value: Any) -> Iterator[NDArray[Any]]:
    """Iterate over the arrays in nested tuples."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _arrays(item)

"""Encoding of fitted state as JSON and arrays, for a fixed set of types and without code."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isoadapt.adapters._cross_moments import CrossMoments, Folds
from isoadapt.adapters._maps import STORABLE_MAPS, map_class, map_name
from isoadapt.geometry import Moments
from isoadapt.geometry._chunks import RowSketch
from isoadapt.heads import LinearHead, MultiLabelHead

Tensors = dict[str, NDArray[Any]]

_PLAIN = (type(None), bool, int, str)
_SIGNED, _UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
_NUMERIC = frozenset(("bool", *_SIGNED, *_UNSIGNED, "float16", "float32", "float64"))


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
    kind = type(value)
    name = map_name(value)
    if name is not None:
        return name
    if kind in (float, tuple, LinearHead, MultiLabelHead, Moments, RowSketch, CrossMoments, Folds):
        return kind.__name__
    return None


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
        _pack_strings,
        lambda dtype, shape, values: np.array(values, dtype=dtype).reshape(shape),
    ),
    "LinearHead": _Kind(
        lambda head: {"coef": head.coef_, "intercept": head.intercept_, "classes": head.classes_},
        LinearHead,
    ),
    "MultiLabelHead": _Kind(
        lambda head: {"coef": head.coef_, "intercept": head.intercept_}, MultiLabelHead
    ),
    "Moments": _Kind(lambda moments: dict(moments.to_arrays()), _unpack_moments),
    "CrossMoments": _Kind(CrossMoments._asdict, CrossMoments),
    "Folds": _Kind(Folds._asdict, Folds),
    "RowSketch": _Kind(lambda sketch: {"hashes": sketch.hashes}, RowSketch),
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
    way_out = "save the adapter with joblib.dump"
    if isinstance(value, np.random.RandomState | np.random.Generator):
        way_out = "set an integer before saving"
    elif callable(value) and path.endswith("scoring"):
        way_out = "set the name of a scikit-learn scorer, such as 'accuracy', before saving"
    shown = repr(value)
    shown = shown if len(shown) < 80 else shown[:80] + "…"
    return TypeError(
        f"{path}={shown} ({type(value).__name__}) cannot be saved: an adapter folder holds "
        f"only numbers, strings, arrays and heads, not code; {way_out}"
    )

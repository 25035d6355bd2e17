"""Run-time checks of values against type annotations."""

from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from isoadapt.adapters import Affine


def is_map(cls: Any) -> bool:
    """Return whether an object is a NamedTuple class, as all fitted maps are."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def matches(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type, including its items and fields.

    Arrays of numbers must be finite. A NamedTuple matches if all its fields do.
    """
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin is Any:
        return True
    if isinstance(origin, TypeVar):
        return any(matches(value, arg) for arg in origin.__constraints__ or (origin.__bound__,))
    if origin in (Union, UnionType):
        return any(matches(value, arg) for arg in args)
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and _is_array_of(value, args)
    if origin in (list, tuple, dict) and args:
        return type(value) is origin and _items_match(value, origin, args)
    if is_map(origin):
        return type(value) is origin and _fields_match(value)
    if origin in (int, float):
        return type(value) in (int, origin)
    return isinstance(value, origin)


def _is_array_of(array: np.ndarray[Any, Any], args: tuple[Any, ...]) -> bool:
    kind = (get_args(args[-1]) or (Any,))[0] if args else Any
    if kind is not Any and not np.issubdtype(array.dtype, kind):
        return False
    return array.dtype.kind in "UO" or bool(np.isfinite(array).all())


def _items_match(value: Any, origin: type, args: tuple[Any, ...]) -> bool:
    if origin is dict:
        return all(matches(k, args[0]) and matches(v, args[1]) for k, v in value.items())
    if origin is tuple and args[-1] is not Ellipsis:
        return len(value) == len(args) and all(map(matches, value, args))
    return all(matches(item, args[0]) for item in value)


def _fields_match(value: Any) -> bool:
    hints = get_type_hints(type(value))
    if not all(matches(getattr(value, name), hint) for name, hint in hints.items()):
        return False
    if isinstance(value, Affine):
        return value.matrix.ndim == 2 and value.offset.shape == value.matrix.shape[:1]
    return True

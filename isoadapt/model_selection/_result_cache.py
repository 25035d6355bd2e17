"""Results of fits in files, named by the content of everything that they depend on."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from dis import get_instructions
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import joblib
import numpy as np
import torch
from joblib.hashing import NumpyHasher

from isoadapt import __version__
from isoadapt._utils.files import atomic_path, writable_folder

_WRAPPERS = staticmethod, classmethod, property, cached_property, type(lru_cache(len))
_WRAPPED = "__wrapped__", "fget", "fset", "func"  # where these have their functions


class ResultCache:
    """Folder with a file for each result that depends on `problem`, in messages called `name`."""

    def __init__(self, folder: Path, problem: Any, name: str) -> None:
        self.shown = str(folder)
        self.folder = writable_folder(folder.expanduser())
        self.key = self._hash((__version__, problem), name)

    def file(self, kind: Any, value: Any, name: str) -> Path:
        """Return the file of a kind of result that depends on `value`, which `name` describes."""
        return self.folder / f"{joblib.hash((self.key, kind, self._hash(value, name)))}.joblib"

    def _hash(self, value: Any, name: str) -> str:
        try:
            joblib.hash(value)  # raises for a lambda too: some results hold what was fitted
            return str(_Hasher().hash(value))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cache={self.shown!r} needs adapters and scorers that can be pickled, but {name} "
                f"cannot ({error.args[0]}): use functions and values of modules that can be "
                "pickled, which a lambda cannot, or cache=None"
            ) from error


class _Hasher(NumpyHasher):
    """joblib's hash, but functions, classes and modules of the user count by their content."""

    def save(self, obj: Any) -> None:
        """Save an object; joblib would take a TypeError for keys that cannot be sorted."""
        try:
            super().save(obj)
        except TypeError as error:
            raise pickle.PicklingError(str(error)) from error

    def reducer_override(self, obj: Any) -> Any:
        """Return the content of an object as its state, which may refer to the object itself."""
        content: Any
        if isinstance(obj, FunctionType) and (_is_own(obj.__module__) or not _is_named(obj)):
            cells = [cell.cell_contents for cell in obj.__closure__ or ()]
            names = {name for code in _codes(obj.__code__) for name in code.co_names}
            read = {name: obj.__globals__[name] for name in names & obj.__globals__.keys()}
            read |= {module.__name__: module for module in _imported(obj)}
            content = obj.__code__, obj.__defaults__, obj.__kwdefaults__, cells, read, vars(obj)
        elif isinstance(obj, type) and _is_own(obj.__module__):
            content = obj.__bases__, _members(obj)
        elif isinstance(obj, ModuleType):
            content = obj.__name__, _members(obj) if _is_own(obj.__name__) else None
        elif isinstance(obj, CodeType):
            content = obj.co_code, obj.co_consts, obj.co_names
        elif isinstance(obj, _WRAPPERS):
            content = [getattr(obj, name, None) for name in _WRAPPED]
        elif isinstance(obj, torch.Tensor):  # its own pickle contains an address
            flat = obj.detach().cpu().to_dense().reshape(-1)
            content = obj.layout, obj.dtype, obj.shape, flat.view(torch.uint8).numpy()
        elif isinstance(obj, frozenset | MappingProxyType):
            content = set(obj) if isinstance(obj, frozenset) else dict(obj)  # which joblib sorts
        else:
            return NotImplemented
        return object, (), (type(obj).__name__, content)


def _is_own(module: str | None) -> bool:
    """Whether a module is the user's: not of Python, of an installed package or of this one."""
    package = str(module).partition(".")[0]
    file = str(getattr(sys.modules.get(str(module)), "__file__", ""))
    known = package == "isoadapt" or package in sys.stdlib_module_names
    return not (known or "site-packages" in file or "dist-packages" in file)


def _is_named(function: FunctionType) -> bool:
    """Whether a function is found by its name, unlike the methods of a namedtuple."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those of the functions inside."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _imported(function: FunctionType) -> list[ModuleType]:
    """Import the modules that a function imports when it is called."""
    package, found = function.__globals__.get("__package__"), []
    lines = (line for code in _codes(function.__code__) for line in get_instructions(code))
    names = {line.argval for line in lines if line.opname == "IMPORT_NAME"}
    for name in sorted(names | {f"{package}.{name}" for name in names if package}):
        with suppress(Exception):  # the function may be prepared for a missing one
            found.append(import_module(name))
    return found


def _members(space: Any) -> dict[str, Any]:
    """Return the functions and constants of a class or module, without what Python adds."""
    added = ("__", "_abc_")
    members = vars(space).items()
    return {k: v for k, v in members if isinstance(v, FunctionType) or not k.startswith(added)}


def read_result(file: Path, kind: type) -> Any:
    """Return the result in a file; None if there is none of this kind, or if it is damaged."""
    try:
        result = joblib.load(file)
    except Exception:  # a missing file, or a damaged pickle, which can raise anything
        return None
    return result if isinstance(result, kind) else None


def write_result(file: Path, result: Any) -> None:
    """Write a result atomically."""
    with atomic_path(file) as temporary:
        joblib.dump(result, temporary, compress=3)


def check_seed(cache: Any, random_state: Any, name: str = "random_state") -> None:
    """Raise ValueError unless a random state is an integer, as a cache requires."""
    if not isinstance(random_state, int | np.integer):
        raise ValueError(
            f"cache={str(cache)!r} needs an integer {name}, but {name}={random_state!r}: fits with "
            "other seeds are not found again"
        )

"""Results of fits in files, named by the content of everything that they depend on."""

import pickle
import sys
from inspect import getsource
from pathlib import Path
from types import FunctionType
from typing import Any

import joblib
import numpy as np
import torch
from joblib.hashing import NumpyHasher

from isoadapt import __version__
from isoadapt._utils.files import atomic_path, writable_folder
from isoadapt._utils.messages import warn


class ResultCache:
    """Folder with a file for each result that depends on `problem`, in messages called `name`."""

    def __init__(self, folder: Path, problem: Any, name: str) -> None:
        self.shown = str(folder)
        self.folder = writable_folder(folder.expanduser())
        self.key = self._hash((__version__, problem), name)

    def file(self, kind: Any, value: Any, name: str) -> Path | None:
        """File of a result that depends on `value`; None, with a warning, if code is not found."""
        key = self._hash(value, name)
        if self.key is None or key is None:
            return None
        return self.folder / f"{joblib.hash((self.key, kind, key))}.joblib"

    def _hash(self, value: Any, name: str) -> str | None:
        hasher = _Hasher()
        try:
            content = hasher.hash(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cache={self.shown!r} needs adapters and scorers that can be pickled, but {name} "
                f"cannot ({error.args[0]}): use functions and values of modules that can be "
                "pickled, which a lambda cannot, or cache=None"
            ) from error
        try:
            return str(joblib.hash((content, [*map(getsource, hasher.code)])))
        except (OSError, TypeError) as error:
            warn(
                f"cache={self.shown!r} does not keep the results of {name}, because the source of "
                f"a class or function is not found ({error}): define it in the file of a module"
            )
            return None


class _Hasher(NumpyHasher):
    """joblib's hash of a pickle; `code` has what defines the user's classes and functions in it."""

    def __init__(self) -> None:
        super().__init__("md5")
        self.code: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        """Note a function, or a class and its bases; hash a tensor by its content."""
        if isinstance(obj, type | FunctionType):
            for code in filter(_is_own, getattr(obj, "__mro__", [obj])):
                own = code if code.__module__ == "__main__" else sys.modules.get(code.__module__)
                self.code.append(own)
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        flat = obj.detach().cpu().reshape(-1)  # the pickle of a tensor contains an address
        return object, (), (obj.dtype, obj.shape, flat.view(torch.uint8).numpy())


def _is_own(code: Any) -> bool:
    """Whether a class or function is the user's: not of Python, a package or this one."""
    file = str(getattr(sys.modules.get(code.__module__), "__file__", ""))
    known = code.__module__.partition(".")[0] in {"isoadapt", *sys.stdlib_module_names}
    return not (known or "site-packages" in file or "dist-packages" in file)


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

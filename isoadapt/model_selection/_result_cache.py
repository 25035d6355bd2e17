"""Results of fits in files, named by the content of everything that they depend on."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from isoadapt import __version__
from isoadapt._utils.files import atomic_path, writable_folder


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
            return str(joblib.hash(value))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cache={self.shown!r} needs adapters and scorers that can be pickled, but {name} "
                f"cannot ({error}): use a function of a module instead of a lambda, or cache=None"
            ) from error


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

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
    """Folder with one file for each result; its parameter is named ``cache`` in messages."""

    def __init__(self, folder: Path) -> None:
        self.shown = str(folder)
        self.folder = writable_folder(folder.expanduser())

    def hash(self, value: Any, name: str) -> str:
        """Return a hash of the content of `value` and of the version; `name` is for the error."""
        try:
            return str(joblib.hash((__version__, value)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(
                f"cache={self.shown!r} needs adapters and scorers that can be pickled, but {name} "
                f"cannot ({error}): use a function of a module instead of a lambda, or cache=None"
            ) from error

    def file(self, *parts: Any, suffix: str = ".joblib") -> Path:
        """Return the file of a result that depends on `parts`, which are hashes and numbers."""
        return self.folder / f"{joblib.hash(parts)}{suffix}"


def read_result(file: Path | None, kind: type) -> Any:
    """Return the result in a file; None if there is none of this kind, or if it is damaged."""
    if file is None or not file.is_file():
        return None
    try:
        result = joblib.load(file)
    except Exception:  # a damaged pickle can raise anything
        return None
    return result if isinstance(result, kind) else None


def write_result(file: Path | None, result: Any) -> None:
    """Write a result atomically; nothing is done without a file."""
    if file is not None:
        with atomic_path(file) as temporary:
            joblib.dump(result, temporary, compress=3)


def check_seed(cache: Any, random_state: Any, name: str = "random_state") -> None:
    """Raise ValueError unless a random state is an integer, as a cache requires."""
    if not isinstance(random_state, int | np.integer):
        raise ValueError(
            f"cache={str(cache)!r} needs an integer {name}, but {name}={random_state!r}: fits with "
            "other seeds are not found again"
        )

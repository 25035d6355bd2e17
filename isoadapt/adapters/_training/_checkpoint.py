"""Saved states of a training, from which it goes on after an interrupt."""

import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isoadapt._utils.files import atomic_path

SECONDS = 5.0  # least time between two saved states
_LEAST_RATIO = 50  # of the time between two saved states to the time of saving one


class Checkpoint:
    """A file with the state of a training between two epochs, saved every few seconds.

    Saving does not change the training. `fixed` are objects of the training by name that are made
    in the same way before it goes on, such as its rows; only their names are saved.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.saved, self.wait = file, time.perf_counter(), SECONDS

    def stage(self, number: int) -> "Checkpoint":
        """Return the checkpoint of one of several trainings that follow each other."""
        return Checkpoint(self.file.with_name(f"{self.file.stem}-{number}{self.file.suffix}"))

    def remove(self) -> None:
        """Remove the files of all stages, and those that a killed process left unfinished."""
        for start in ("", "."):
            for file in self.file.parent.glob(f"{start}{self.file.stem}-*{self.file.suffix}"):
                file.unlink(missing_ok=True)

    def load(self, fixed: Mapping[str, Any]) -> Any:
        """Return the saved state; None if there is none, or if the file is damaged."""
        if not self.file.is_file():
            return None
        try:
            with self.file.open("rb") as stream:
                return _Unpickler(stream, fixed).load()
        except Exception:  # a damaged pickle can raise anything
            return None

    def offer(self, state: Any, fixed: Mapping[str, Any]) -> None:
        """Save a state if the last one is old enough; a state that cannot be pickled is skipped."""
        started = time.perf_counter()
        if started - self.saved < self.wait:
            return
        try:
            with atomic_path(self.file) as temporary, temporary.open("wb") as stream:
                _Pickler(stream, fixed).dump(state)
        except (pickle.PicklingError, AttributeError, TypeError):  # such as a lambda as penalty
            self.wait = float("inf")
            return
        self.saved = time.perf_counter()
        self.wait = max(SECONDS, _LEAST_RATIO * (self.saved - started))


class _Pickler(pickle.Pickler):
    """Pickler that stores the fixed objects by name."""

    def __init__(self, stream: Any, fixed: Mapping[str, Any]) -> None:
        super().__init__(stream, protocol=5)
        self.names = {id(value): name for name, value in fixed.items() if value is not None}

    def persistent_id(self, value: Any) -> str | None:
        return self.names.get(id(value))


class _Unpickler(pickle.Unpickler):
    """Unpickler that puts the fixed objects in the places of their names."""

    def __init__(self, stream: Any, fixed: Mapping[str, Any]) -> None:
        super().__init__(stream)
        self.fixed = fixed

    def persistent_load(self, name: str) -> Any:
        return self.fixed[name]

"""Results of a search in files, and the state of the training that is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isoadapt.adapters._training._checkpoint import Checkpoint
from isoadapt.model_selection._result_cache import ResultCache, read_result, write_result

Result = dict[str, Any]
"""Result of a fit as scikit-learn's searches store it: scores, times, the error."""


@dataclass(frozen=True)
class Fit:
    """A candidate on a fold, both given by their indices."""

    candidate: int
    fold: int


@dataclass(frozen=True)
class SavedBlock:
    """Results of fits that were trained together, and how many were done one at a time, and why."""

    results: list[Result]
    unbatched: Counter[str]


class SavedFits:
    """The files of one search. Nothing is read or written if `cache` is None.

    `problem` is everything that the fits depend on, except for the parameters of the candidates.
    """

    def __init__(self, cache: ResultCache | None, problem: Any) -> None:
        self.cache = cache
        self.key = "" if cache is None else cache.hash(problem, "the search")

    def file(
        self,
        kind: str,
        fits: Sequence[Fit],
        candidates: Mapping[int, Mapping[str, Any]],
        suffix: str = ".joblib",
    ) -> Path | None:
        """Return the file of fits that are done together or alone, as `kind` says."""
        if self.cache is None:
            return None
        own = [(sorted(candidates[fit.candidate].items()), fit.fold) for fit in fits]
        return self.cache.file(
            self.key, kind, self.cache.hash(own, "a value in param_grid"), suffix=suffix
        )

    def read(self, file: Path | None, n_fits: int) -> SavedBlock | None:
        """Return a block of as many fits; None if there is none."""
        block = read_result(file, SavedBlock)
        return block if block is not None and len(block.results) == n_fits else None

    def write(self, file: Path | None, block: SavedBlock) -> None:
        """Write a block, unless one of its fits failed or has no score."""
        if all(_is_complete(result) for result in block.results):
            write_result(file, block)

    def checkpoint(
        self, fits: Sequence[Fit], candidates: Mapping[int, Mapping[str, Any]]
    ) -> Checkpoint | None:
        """Return where the state of a training is kept until its results are written."""
        file = self.file(f"training, torch {torch.__version__}", fits, candidates, ".state")
        return None if file is None else Checkpoint(file)

    def limits(
        self,
        fits: Sequence[Fit],
        candidates: Mapping[int, Mapping[str, Any]],
        compute: Callable[[], tuple[int, int]],
    ) -> tuple[int, int]:
        """Return how many fits and folds to train together as before, whatever memory is free."""
        file = self.file("limits", fits, candidates)
        known: tuple[int, int] | None = read_result(file, tuple)
        if known is None:
            known = compute()
            write_result(file, known)
        return known


def _is_complete(result: Result) -> bool:
    """Whether a fit succeeded and all its scores are finite."""
    scores = result.get("test_scores")
    values = list(scores.values()) if isinstance(scores, dict) else [scores]
    return result["fit_error"] is None and bool(np.isfinite(np.asarray(values, float)).all())

"""Cross-validation of many candidates; those that differ only in numbers are trained together."""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples

from isoadapt.adapters._training._checkpoint import Checkpoint
from isoadapt.adapters._training._penalty import UnequalPenaltiesError
from isoadapt.model_selection._result_cache import ResultCache, read_result, write_result
from isoadapt.model_selection._search._group import Candidates, Fit, FitData, Group, group_key

Result = dict[str, Any]
"""Result of a fit as scikit-learn's searches store it: scores, times, the error."""


@dataclass
class Evaluation:
    """Fits candidates to folds and scores them; `run` fills `results` and `unbatched`."""

    data: FitData
    n_jobs: int | None
    pre_dispatch: int | str
    max_memory: int | None  # bytes for a training; None: 2 GiB, or half of the free GPU memory
    report_done: Callable[[int], Any]  # called with the number of fits that have ended
    cache: ResultCache | None = None
    results: dict[Fit, Result] = field(default_factory=dict)
    unbatched: Counter[str] = field(default_factory=Counter)  # fits done one at a time, by reason

    def run(self, candidates: Candidates) -> None:
        """Fit and score candidates on every fold."""
        separate: list[Fit] = []
        groups: dict[Hashable, dict[int, Any]] = {}
        for number, parameters in candidates.items():
            estimator = self.data.make_estimator(parameters)
            reason = self.data.reason_not_batched(estimator)
            if reason is None:
                groups.setdefault(group_key(estimator), {})[number] = parameters
            else:
                self.unbatched[reason] += len(self.data.folds)
                separate += self._fits([number])
        in_processes: list[tuple[Group, list[Fit]]] = []
        for own in groups.values():
            group = Group(self.data, own, self.max_memory)
            n_processes, blocks = self._blocks(group)
            if n_processes > 1:
                group.fitted_prefixes.clear()  # each process fits its own
                in_processes += [(group, fits) for fits in blocks if not self._restore(fits, own)]
            else:
                for fits in blocks:
                    self._run_block(group, fits)
        self._run_in_processes(in_processes)
        self._run_separately(separate, candidates)

    def _fits(self, numbers: Iterable[int]) -> list[Fit]:
        return [Fit(number, fold) for number in numbers for fold in range(len(self.data.folds))]

    def _blocks(self, group: Group) -> tuple[int, list[list[Fit]]]:
        """Number of processes, and the fits of a group in blocks that are trained together.

        A block has all candidates on several folds, or some of them on one. If there is an error,
        the fits are done one at a time, and no block remains.
        """
        candidates, n_folds = group.candidates, len(self.data.folds)
        fits = self._fits(candidates)
        try:
            n_processes = group.n_processes(self.n_jobs)
            most, most_folds = self._limits(group, fits)
        except Exception as failure:
            self._retry_separately(fits, failure, candidates)
            return 1, []
        most = min(most, math.ceil(len(fits) / n_processes))
        # Candidates come before folds, because those on the same fold share its rows.
        n_candidates = min(most, math.ceil(len(candidates) / n_processes))
        size = min(most_folds, most // n_candidates)
        folds = [range(n_folds)[start : start + size] for start in range(0, n_folds, size)]
        return n_processes, [
            [Fit(number, fold) for fold in block for number in numbers]
            for numbers in _split_evenly(list(candidates), n_candidates)
            for block in folds
        ]

    def _run_in_processes(self, blocks: Sequence[tuple[Group, Sequence[Fit]]]) -> None:
        """Run blocks in `n_jobs` processes; if there is only one block, run it here."""
        if len(blocks) < 2:
            for group, fits in blocks:
                self._run_block(group, fits)
            return
        jobs = self._parallel("generator_unordered")(
            delayed(_run_alone)(
                replace(self, n_jobs=1, report_done=_ignore, results={}, unbatched=Counter()),
                group.candidates,
                fits,
            )
            for group, fits in blocks
        )
        for results, unbatched in jobs:
            self.results.update(results)
            self.unbatched.update(unbatched)
            self.report_done(len(results))

    def _parallel(self, return_as: str) -> Parallel:
        return Parallel(self.n_jobs, pre_dispatch=self.pre_dispatch, return_as=return_as)

    def _run_block(self, group: Group, fits: Sequence[Fit]) -> None:
        """Train together; if that fails, run the parts."""
        if self._restore(fits, group.candidates):
            return
        state = self._file(f"training, torch {torch.__version__}", fits, group.candidates, ".state")
        checkpoint = None if state is None else Checkpoint(state)
        before = time.perf_counter()
        n_pending = len(fits)

        def on_finished(finished: int) -> None:
            nonlocal n_pending
            n_pending -= finished
            self.report_done(finished)

        try:
            estimators, errors = group.train(fits, on_finished, checkpoint)
        except Exception as failure:
            self.report_done(n_pending - len(fits))
            self._run_parts(group, fits, failure)
            return
        seconds = (time.perf_counter() - before) / len(fits)
        unbatched = self.unbatched.copy()
        stop = next((error for error in errors if isinstance(error, KeyboardInterrupt)), None)
        for fit, estimator, error in zip(fits, estimators, errors, strict=True):
            if error is None:
                self.results[fit] = self._score(estimator, fit, seconds)
            elif stop is None:
                self.report_done(-1)
                self._retry_separately([fit], error, group.candidates)
        if stop is not None:
            raise stop
        self._save("together", fits, group.candidates, self.unbatched - unbatched)
        if checkpoint is not None:
            checkpoint.remove()

    def _run_parts(self, group: Group, fits: Sequence[Fit], failure: Exception) -> None:
        """Train each half of a block whose training failed together, down to single fits.

        Members whose penalties cannot be joined are trained one at a time immediately.
        """
        if len(fits) == 1:
            self._retry_separately(fits, failure, group.candidates)
            return
        middle = len(fits) // 2
        parts = [fits[:middle], fits[middle:]]
        if isinstance(failure, UnequalPenaltiesError):
            self.unbatched[str(failure)] += len(fits)
            parts = [[fit] for fit in fits]
        for part in parts:
            self._run_block(group, part)

    def _retry_separately(
        self, fits: Sequence[Fit], failure: BaseException, candidates: Candidates
    ) -> None:
        """Fit again, one at a time, what failed; scikit-learn's rules apply if it fails again."""
        self.unbatched[f"training failed with {type(failure).__name__}"] += len(fits)
        self._run_separately(fits, candidates)

    def _score(self, estimator: Any, fit: Fit, seconds: float) -> Result:
        """Scores of a fitted estimator, which took `seconds` to fit, on a fold."""
        before = time.perf_counter()
        data, options = self.data, self.data.options
        train, test = data.folds[fit.fold]
        result: Result = {"fit_error": None, "fit_time": seconds}
        row_sets = {"test_scores": test}
        if options["return_train_score"]:
            row_sets["train_scores"] = train
        for name, rows in row_sets.items():
            X, y = _safe_split(estimator, data.X, data.y, rows, train)
            params = _check_method_params(data.X, options["score_params"], indices=rows)
            result[name] = _score(estimator, X, y, data.scorers, params, options["error_score"])
        seconds = time.perf_counter() - before
        return result | {"n_test_samples": _num_samples(test), "score_time": seconds}

    def _run_separately(self, fits: Sequence[Fit], candidates: Candidates) -> None:
        """Fit one at a time, in `n_jobs` processes."""
        data = self.data
        fits = [fit for fit in fits if not self._restore([fit], candidates, "alone")]
        jobs = self._parallel("generator")(
            delayed(_fit_and_score)(
                clone(data.estimator),
                data.X,
                data.y,
                scorer=data.scorers,
                train=data.folds[fit.fold][0],
                test=data.folds[fit.fold][1],
                parameters=candidates[fit.candidate],
                return_n_test_samples=True,
                return_times=True,
                **data.options,
            )
            for fit in fits
        )
        for fit, result in zip(fits, jobs, strict=True):
            self.results[fit] = result
            self._save("alone", [fit], candidates, Counter())
            self.report_done(1)

    # --- files of the cache --------------------------------------------------------------------

    def _file(
        self, kind: str, fits: Sequence[Fit], candidates: Candidates, suffix: str = ".joblib"
    ) -> Path | None:
        """File of fits that are done together or alone, as `kind` says; None without a cache."""
        if self.cache is None:
            return None
        own = [(sorted(candidates[fit.candidate].items()), fit.fold) for fit in fits]
        return self.cache.file(kind, own, "a value in param_grid", suffix=suffix)

    def _restore(self, fits: Sequence[Fit], candidates: Candidates, kind: str = "together") -> bool:
        """Take the results of fits from their file; False if it has none."""
        file = self._file(kind, fits, candidates)
        saved = None if file is None else read_result(file, tuple)
        if saved is None:
            return False
        results, unbatched = saved
        self.results.update(zip(fits, results, strict=True))
        self.unbatched.update(unbatched)
        self.report_done(len(fits))
        return True

    def _save(
        self, kind: str, fits: Sequence[Fit], candidates: Candidates, unbatched: Counter[str]
    ) -> None:
        """Write the results of fits, unless one of them failed or has no score."""
        file, results = self._file(kind, fits, candidates), [self.results[fit] for fit in fits]
        if file is not None and all(map(_is_complete, results)):
            write_result(file, (results, unbatched))

    def _limits(self, group: Group, fits: Sequence[Fit]) -> tuple[int, int]:
        """Limits of a group; those of an earlier search are kept, whatever memory is free now."""
        file = self._file("limits", fits, group.candidates)
        known: tuple[int, int] | None = None if file is None else read_result(file, tuple)
        if known is None:
            known = group.limits()
            if file is not None:
                write_result(file, known)
        return known


def _run_alone(
    evaluation: Evaluation, candidates: Candidates, fits: Sequence[Fit]
) -> tuple[dict[Fit, Result], Counter[str]]:
    """Run one block; return its results, and the fits done one at a time by reason."""
    evaluation._run_block(Group(evaluation.data, candidates, evaluation.max_memory), fits)
    return evaluation.results, evaluation.unbatched


def _is_complete(result: Result) -> bool:
    """Whether a fit succeeded and all its scores are finite."""
    scores = result.get("test_scores")
    values = list(scores.values()) if isinstance(scores, dict) else [scores]
    return result["fit_error"] is None and bool(np.isfinite(np.asarray(values, float)).all())


def _ignore(n_finished: int) -> None:
    """Report nothing."""


def _split_evenly(numbers: list[int], max_size: int) -> Iterator[list[int]]:
    """Split into parts of nearly equal size, at most `max_size` each."""
    n_parts = -(-len(numbers) // max_size)
    yield from (part.tolist() for part in np.array_split(numbers, n_parts))

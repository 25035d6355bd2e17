"""Cross-validation of many candidates; those that differ only in numbers are trained together."""

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection._validation import _fit_and_score, _score
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, _num_samples

from isoadapt.adapters._training._penalty import UnequalPenaltiesError
from isoadapt.model_selection._result_cache import ResultCache
from isoadapt.model_selection._search._group import Candidates, FitData, Group, group_key
from isoadapt.model_selection._search._saved_fits import Fit, Result, SavedBlock, SavedFits


@dataclass
class Evaluation:
    """Fits candidates to folds and scores them; `run` fills `results` and `unbatched`."""

    data: FitData
    scorers: Callable[..., Any]  # returns one score or a dict of scores
    options: Mapping[str, Any]  # further arguments of scikit-learn's _fit_and_score
    n_jobs: int | None
    pre_dispatch: int | str
    max_memory: int | None  # bytes for a training; None: 2 GiB, or half of the free GPU memory
    report_done: Callable[[int], Any]  # called with the number of fits that have ended
    results: dict[Fit, Result] = field(default_factory=dict)
    unbatched: Counter[str] = field(default_factory=Counter)  # fits done one at a time, by reason
    cache: ResultCache | None = None

    def __post_init__(self) -> None:
        options = {name: value for name, value in self.options.items() if name != "verbose"}
        data = self.data
        problem = (data.estimator, data.X, data.y, list(data.folds), self.scorers, options)
        self.saved = SavedFits(self.cache, problem)

    def run(self, candidates: Candidates) -> None:
        """Fit and score candidates on every fold."""
        separate: list[Fit] = []
        members: dict[Hashable, list[int]] = {}
        for number, parameters in candidates.items():
            estimator = self.data.make_estimator(parameters)
            reason = self.data.reason_not_batched(estimator)
            if reason is None:
                members.setdefault(group_key(estimator), []).append(number)
            else:
                self.unbatched[reason] += len(self.data.folds)
                separate += self._fits([number])
        in_processes: list[tuple[Group, list[Fit]]] = []
        for numbers in members.values():
            own = {number: candidates[number] for number in numbers}
            group = Group(self.data, own, self.max_memory)
            n_processes, chunks = self._chunks(group)
            if n_processes > 1:
                group.fitted_prefixes.clear()  # each process fits its own
                in_processes += [(group, chunk) for chunk in chunks]
            else:
                for chunk in chunks:
                    self._run_chunk(group, chunk)
        self._run_in_processes(in_processes)
        self._run_separately(separate, candidates)

    def _fits(self, numbers: Iterable[int]) -> list[Fit]:
        return [Fit(number, fold) for number in numbers for fold in range(len(self.data.folds))]

    def _chunks(self, group: Group) -> tuple[int, list[list[Fit]]]:
        """Number of processes, and those chunks of a group whose results are not saved.

        A chunk has all candidates on several folds, or some of them on one. If there is an error,
        the fits are done one at a time, and no chunk remains.
        """
        candidates, n_folds = group.candidates, len(self.data.folds)
        fits = self._fits(candidates)
        try:
            n_processes = group.n_processes(self.n_jobs)
            most, most_folds = self.saved.limits(fits, candidates, group.limits)
        except Exception as failure:
            self._retry_separately(fits, failure, candidates)
            return 1, []
        most = min(most, math.ceil(len(fits) / n_processes))
        # Candidates come before folds, because those on the same fold share its rows.
        n_candidates = min(most, math.ceil(len(candidates) / n_processes))
        size = min(most_folds, most // n_candidates)
        folds = [range(n_folds)[start : start + size] for start in range(0, n_folds, size)]
        chunks = [
            [Fit(number, fold) for fold in block for number in numbers]
            for numbers in _split_evenly(list(candidates), n_candidates)
            for block in folds
        ]
        left = [c for c in chunks if not self._restore(c, self._file(c, candidates))]
        return n_processes, left

    def _run_in_processes(self, chunks: Sequence[tuple[Group, Sequence[Fit]]]) -> None:
        """Run chunks in `n_jobs` processes; if there is only one chunk, run it here."""
        if len(chunks) < 2:
            for group, chunk in chunks:
                self._run_chunk(group, chunk)
            return
        own = copy.copy(self)
        own.n_jobs, own.report_done = 1, _ignore
        own.results, own.unbatched = {}, Counter()  # those of `self` change meanwhile
        jobs = self._parallel("generator_unordered")(
            delayed(_run_alone)(own, group.candidates, chunk) for group, chunk in chunks
        )
        for results, unbatched in jobs:
            self.results.update(results)
            self.unbatched += unbatched
            self.report_done(len(results))

    def _parallel(self, return_as: str) -> Parallel:
        return Parallel(self.n_jobs, pre_dispatch=self.pre_dispatch, return_as=return_as)

    def _run_chunk(self, group: Group, fits: Sequence[Fit]) -> None:
        """Train together; if that fails, run the parts."""
        file = self._file(fits, group.candidates)
        if self._restore(fits, file):
            return
        checkpoint = self.saved.checkpoint(fits, group.candidates)
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
        results = [self.results[fit] for fit in fits]
        self.saved.write(file, SavedBlock(results, self.unbatched - unbatched))
        if checkpoint is not None:
            checkpoint.remove()

    def _run_parts(self, group: Group, fits: Sequence[Fit], failure: Exception) -> None:
        """Train each half of a chunk whose training failed together, down to single fits.

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
            self._run_chunk(group, part)

    def _file(self, fits: Sequence[Fit], candidates: Candidates) -> Path | None:
        """File of the results of fits that are trained together; None without a cache."""
        return self.saved.file("together", fits, candidates)

    def _restore(self, fits: Sequence[Fit], file: Path | None) -> bool:
        """Take the results of fits from their file; False if it has none."""
        block = self.saved.read(file, len(fits))
        if block is None:
            return False
        self.results.update(zip(fits, block.results, strict=True))
        self.unbatched += block.unbatched
        self.report_done(len(fits))
        return True

    def _retry_separately(
        self,
        fits: Sequence[Fit],
        failure: BaseException,
        candidates: Candidates,
    ) -> None:
        """Fit again, one at a time, what failed; scikit-learn's rules apply if it fails again."""
        self.unbatched[f"training failed with {type(failure).__name__}"] += len(fits)
        self._run_separately(fits, candidates)

    def _score(self, estimator: Any, fit: Fit, seconds: float) -> Result:
        """Scores of a fitted estimator, which took `seconds` to fit, on a fold."""
        before = time.perf_counter()
        train, test = self.data.folds[fit.fold]
        result: Result = {"fit_error": None, "fit_time": seconds}
        row_sets = {"test_scores": test}
        if self.options["return_train_score"]:
            row_sets["train_scores"] = train
        for name, rows in row_sets.items():
            X, y = _safe_split(estimator, self.data.X, self.data.y, rows, train)
            params = _check_method_params(self.data.X, self.options["score_params"], indices=rows)
            error_score = self.options["error_score"]
            result[name] = _score(estimator, X, y, self.scorers, params, error_score)
        seconds = time.perf_counter() - before
        return result | {"n_test_samples": _num_samples(test), "score_time": seconds}

    def _run_separately(self, fits: Sequence[Fit], candidates: Candidates) -> None:
        """Fit one at a time, in `n_jobs` processes."""
        files = {fit: self.saved.file("alone", [fit], candidates) for fit in fits}
        fits = [fit for fit in fits if not self._restore([fit], files[fit])]
        jobs = self._parallel("generator")(
            delayed(_fit_and_score)(
                clone(self.data.estimator),
                self.data.X,
                self.data.y,
                scorer=self.scorers,
                train=self.data.folds[fit.fold][0],
                test=self.data.folds[fit.fold][1],
                parameters=candidates[fit.candidate],
                return_n_test_samples=True,
                return_times=True,
                **self.options,
            )
            for fit in fits
        )
        for fit, result in zip(fits, jobs, strict=True):
            self.results[fit] = result
            self.saved.write(files[fit], SavedBlock([result], Counter()))
            self.report_done(1)


def _run_alone(
    evaluation: Evaluation, candidates: Candidates, fits: Sequence[Fit]
) -> tuple[dict[Fit, Result], Counter[str]]:
    """Run one chunk; return its results, and the fits done one at a time by reason."""
    evaluation = copy.copy(evaluation)
    evaluation.results, evaluation.unbatched = {}, Counter()
    evaluation._run_chunk(Group(evaluation.data, candidates, evaluation.max_memory), fits)
    return evaluation.results, evaluation.unbatched


def _ignore(n_finished: int) -> None:
    """Report nothing."""


def _split_evenly(numbers: list[int], max_size: int) -> Iterator[list[int]]:
    """Split into parts of nearly equal size, at most `max_size` each."""
    n_parts = -(-len(numbers) // max_size)
    yield from (part.tolist() for part in np.array_split(numbers, n_parts))

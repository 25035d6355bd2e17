"""Run the fits of a comparison: in parallel, with progress, a cache and early stopping."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sklearn.utils.parallel import Parallel, delayed
from tqdm import tqdm

from isoadapt._utils.warn import warn
from isoadapt.model_selection._compare._measure import Data, Outcome, Split, measure
from isoadapt.model_selection._compare._methods import ADAPTER, Method
from isoadapt.model_selection._result_cache import ResultCache, read_result, write_result

Outcomes = dict[str, list[Outcome]]

INTERRUPTED = "the comparison was interrupted"  # beginning of the note on it


def run(
    methods: Sequence[Method],
    data: Data,
    splits: Sequence[Split],
    *,
    n_jobs: int | None,
    verbose: int,
    cache: Path | None,
) -> tuple[Outcomes, list[str]]:
    """Outcomes of each complete method on all splits, and notes about the others.

    After an interrupt, the methods that are complete are returned, if the baseline and the controls
    are among them.
    """
    keys = _keys(methods, data, splits, cache)
    found: dict[tuple[int, int], Outcome] = {}
    jobs = Parallel(n_jobs, return_as="generator_unordered")(
        delayed(_job)(numbers, method, data, split, keys.get(numbers))
        for number, method in enumerate(methods)
        for place, split in enumerate(splits)
        for numbers in [(number, place)]
    )
    total = len(methods) * len(splits)
    no_bar = not (verbose and sys.stderr.isatty())
    stopped = False
    try:
        with tqdm(total=total, unit=" fits", desc="Comparing", disable=no_bar) as bar:
            for numbers, outcome in jobs:
                found[numbers] = outcome
                bar.set_postfix_str(methods[numbers[0]].name, refresh=False)
                bar.update()
    except KeyboardInterrupt:
        stopped = True
        if not _has_references(methods, found, len(splits)):
            raise
    return _complete(methods, found, len(splits), stopped)


def _job(
    numbers: tuple[int, int], method: Method, data: Data, split: Split, file: Path | None
) -> tuple[tuple[int, int], Outcome]:
    """Read an outcome from the cache, or measure it and write it there."""
    outcome = None if file is None else read_result(file, Outcome)
    if outcome is None:
        outcome = measure(method, data, split)
        if file is not None and outcome.error is None:
            write_result(file, outcome)
    return numbers, outcome


def _keys(
    methods: Sequence[Method], data: Data, splits: Sequence[Split], cache: Path | None
) -> dict[tuple[int, int], Path]:
    """File of each fit in the cache, named by the content of everything that it depends on."""
    if cache is None:
        return {}
    results = ResultCache(cache, data, "the data")
    return {
        (number, place): results.file(tuple(split), method.estimator, repr(method.name))
        for number, method in enumerate(methods)
        for place, split in enumerate(splits)
    }


def _has_references(
    methods: Sequence[Method], found: dict[tuple[int, int], Outcome], n_splits: int
) -> bool:
    """Whether the baseline and all controls are complete."""
    return all(
        (number, place) in found
        for number, method in enumerate(methods)
        if method.kind != ADAPTER
        for place in range(n_splits)
    )


def _complete(
    methods: Sequence[Method],
    found: dict[tuple[int, int], Outcome],
    n_splits: int,
    stopped: bool,
) -> tuple[Outcomes, list[str]]:
    """Methods that are complete, and notes about failures, interrupts and warnings of fits."""
    outcomes: Outcomes = {}
    notes: list[str] = []
    missing = []
    for number, method in enumerate(methods):
        own = [found.get((number, place)) for place in range(n_splits)]
        done = [outcome for outcome in own if outcome is not None]
        if len(done) < n_splits:
            missing.append(method.name)
            continue
        errors = [outcome.error for outcome in done if outcome.error is not None]
        if errors:
            _refuse_failed_reference(method, errors[0])
            notes.append(
                f"{method.name} was left out: {len(errors)} of {n_splits} fits failed, the first "
                f"with {errors[0]}"
            )
            continue
        outcomes[method.name] = [replace(outcome, messages=()) for outcome in done]
        notes += _messages(method.name, done)
    if stopped:
        notes.append(f"{INTERRUPTED} before these were done: {', '.join(missing)}")
    for note in notes:
        warn(note)
    return outcomes, notes


def _refuse_failed_reference(method: Method, error: str) -> None:
    if method.kind != ADAPTER:
        raise ValueError(
            f"{method.name!r}, with which the adapters are compared, could not be fitted: {error}"
        )


def _messages(name: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Distinct warnings of the fits of a method, and in how many fits they came."""
    found: dict[str, int] = {}
    for outcome in outcomes:
        for message in outcome.messages:
            found[message] = found.get(message, 0) + 1
    several = len(outcomes) > 1
    times: Any = f" (in {{}} of {len(outcomes)} fits)" if several else ""
    return [f"{name}: {message}{times.format(count)}" for message, count in found.items()]

"""Fits and searches that are interrupted at random moments; prints counts as JSON.

The arguments of `python -m benchmarks.faults.interrupts` are the number of interrupts and a seed.
"""

import json
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV

from isoadapt import FlowAdapter, IsotropyLayer, IStarAdapter, LogitPreservingWhitening
from isoadapt.model_selection import AdapterSearchCV

ROWS, WIDTH = 400, 12


class Case(NamedTuple):
    """A fitted estimator, and its outputs for the data."""

    estimator: Any
    outputs: Callable[[Any], bytes]


def kept_state(X: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[object, ...]:
    """Return the data and the settings of the process that a fit must not change."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global generator
    return (
        X.tobytes(),
        y.tobytes(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_rng_state().numpy().tobytes(),
        (kind, np.asarray(keys).tobytes(), *rest),
        tuple(warnings.filters),
    )


def cases() -> list[Case]:
    """Return unfitted estimators, each with a function that computes its outputs."""
    layer = IsotropyLayer(max_epochs=5, random_state=0)
    small = IsotropyLayer(max_epochs=2, random_state=0)
    grid = {"alpha": [0.3, 0.6]}

    def adapted(estimator: Any) -> bytes:
        return estimator.transform(data()[0]).tobytes()

    def searched(search: Any) -> bytes:
        return search.best_estimator_.transform(data()[0]).tobytes()

    return [
        Case(layer, adapted),
        Case(IsotropyLayer(solver="exact"), adapted),
        Case(IStarAdapter(max_epochs=5, random_state=0), adapted),
        Case(FlowAdapter(max_epochs=2, random_state=0), adapted),
        Case(LogitPreservingWhitening("logistic"), adapted),
        Case(AdapterSearchCV(small, grid, cv=2), searched),
        Case(GridSearchCV(small, grid, cv=2), searched),
    ]


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return random rows (n, d) of two classes, and their labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=ROWS)
    return rng.normal(size=(ROWS, WIDTH)) * np.arange(1, WIDTH + 1) + y[:, None], y


def interrupt(n_interrupts: int, seed: int) -> dict[str, Any]:
    """Interrupt fits in turn until there were enough interrupts; count what has changed."""
    X, y = data()
    chance = random.Random(seed)
    prepared = [(*case, *_fitted(case, X, y)) for case in cases()]
    counts = dict.fromkeys(("interrupts", "fits", "estimators", "settings", "results"), 0)
    before = kept_state(X, y)
    while counts["interrupts"] < n_interrupts:
        for estimator, _, seconds, _ in prepared:
            own = estimator.estimator if isinstance(estimator, GridSearchCV) else estimator
            attributes = dict(vars(own))
            counts["fits"] += 1
            if _is_interrupted(estimator, X, y, chance.uniform(0, seconds)):
                counts["interrupts"] += 1
                counts["estimators"] += _changed(attributes, vars(own))
            counts["settings"] += kept_state(X, y) != before
    for estimator, outputs, _, expected in prepared:
        estimator.fit(X, y)
        counts["results"] += outputs(estimator) != expected
    return counts


def _fitted(case: Case, X: Any, y: Any) -> tuple[float, bytes]:
    """Fit an estimator twice; return the seconds of the second fit, and the outputs."""
    case.estimator.fit(X, y)
    started = time.perf_counter()
    case.estimator.fit(X, y)
    return time.perf_counter() - started, case.outputs(case.estimator)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether an attribute was added, removed or replaced."""
    return before.keys() != after.keys() or any(before[name] is not after[name] for name in before)


def _is_interrupted(estimator: Any, X: Any, y: Any, seconds: float) -> bool:
    """Fit with an interrupt after some seconds; return whether it has ended the fit."""
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        estimator.fit(X, y)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def _raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _raise_interrupt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps(interrupt(int(sys.argv[1]), int(sys.argv[2]))))

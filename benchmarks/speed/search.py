"""AdapterSearchCV against GridSearchCV on stored embeddings."""

from collections.abc import Iterator

import numpy as np
from sklearn.model_selection import GridSearchCV, ParameterGrid

from benchmarks._data import Embeddings, load_embeddings, narrow_cone
from benchmarks.speed._harness import Comparison, seconds_of
from isoadapt import IStarAdapter
from isoadapt.model_selection import AdapterSearchCV

GRID = {"lam": [-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], "zeta": [0.2, 0.4, 0.6, 0.8]}
SMALL = {"lam": [-1.0, 1.0], "zeta": [0.2, 0.8]}


def run(quick: bool) -> Iterator[Comparison]:
    """Compare searches of the same grid, in one process and in two."""
    small = narrow_cone(200, 16, seed=0)
    _compare(small, SMALL, 2, repeats=1)  # a warm-up
    if quick:
        yield _compare(narrow_cone(1000, 96, seed=0), SMALL, 2, repeats=1)
        return
    data = load_embeddings("cola")
    yield _compare(data, GRID, 5, repeats=1, target=2.5)
    _compare(small, SMALL, 2, repeats=1, n_jobs=2)  # both find the processes started
    yield _compare(data, GRID, 5, repeats=1, target=1.6, n_jobs=2)


def _compare(
    data: Embeddings,
    grid: dict[str, list[float]],
    folds: int,
    *,
    repeats: int,
    n_jobs: int | None = None,
    target: float | None = None,
) -> Comparison:
    """Compare the times of two searches of the same candidates, and check their scores."""
    adapter = IStarAdapter(data.head, max_epochs=3, device="cpu", random_state=0)
    seconds: dict[type, list[float]] = {AdapterSearchCV: [], GridSearchCV: []}
    scores = {}
    for repeat in range(repeats):
        for kind in list(seconds)[:: 1 if repeat % 2 == 0 else -1]:
            found = kind(adapter, grid, cv=folds, refit=False, n_jobs=n_jobs)
            seconds[kind].append(
                seconds_of(lambda found=found: found.fit(data.X_train, data.y_train))
            )
            scores[kind] = found.cv_results_["mean_test_score"]
    if np.abs(np.subtract(*scores.values())).max() > 0.003:
        raise ValueError(f"the searches give other scores: {scores}")
    jobs = f", both with n_jobs={n_jobs}" if n_jobs else ""
    return Comparison(
        f"AdapterSearchCV, {len(ParameterGrid(grid))} I-STAR candidates × {folds} folds, "
        f"against GridSearchCV{jobs}",
        *map(tuple, seconds.values()),
        target,
        {"n": len(data.X_train), "d": data.X_train.shape[1]},
    )

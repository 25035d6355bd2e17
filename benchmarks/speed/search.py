"""AdapterSearchCV against GridSearchCV on stored embeddings."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from sklearn.model_selection import GridSearchCV, ParameterGrid

from benchmarks._data import Embeddings, load_embeddings, narrow_cone
from benchmarks.speed._harness import Comparison, compare
from isoadapt import IStarAdapter
from isoadapt.model_selection import AdapterSearchCV

GRID = {"lam": [-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], "zeta": [0.2, 0.4, 0.6, 0.8]}
SMALL = {"lam": [-1.0, 1.0], "zeta": [0.2, 0.8]}
FEWER = 4000  # rows that two processes search on


def run(quick: bool) -> Iterator[Comparison]:
    """Compare searches of the same grid, in one process and in two."""
    small = narrow_cone(200, 16, seed=0)
    _compare(small, SMALL, 2)  # a warm-up
    if quick:
        yield _compare(narrow_cone(1000, 96, seed=0), SMALL, 2)
        return
    data = load_embeddings("cola")
    yield _compare(data, GRID, 5, target=2.5)
    _compare(small, SMALL, 2, n_jobs=2)  # both find the processes started
    data = data._replace(X_train=data.X_train[:FEWER], y_train=data.y_train[:FEWER])
    yield _compare(data, GRID, 5, target=1.6, n_jobs=2)


def _compare(
    data: Embeddings,
    grid: dict[str, list[float]],
    folds: int,
    n_jobs: int | None = None,
    target: float | None = None,
) -> Comparison:
    """Compare the times of two searches of the same candidates, and check their scores."""
    adapter = IStarAdapter(data.head, max_epochs=3, device="cpu", random_state=0)
    kinds = AdapterSearchCV, GridSearchCV
    searches = [kind(adapter, grid, cv=folds, refit=False, n_jobs=n_jobs) for kind in kinds]
    jobs = f", both with n_jobs={n_jobs}" if n_jobs else ""
    found = compare(
        f"AdapterSearchCV, {len(ParameterGrid(grid))} I-STAR candidates × {folds} folds, "
        f"against GridSearchCV{jobs}",
        *(partial(each.fit, data.X_train, data.y_train) for each in searches),
        repeats=1,
        warm_up=False,
        rows=data.X_train,
        target=target,
    )
    scores = (each.cv_results_["mean_test_score"] for each in searches)
    np.testing.assert_allclose(*scores, rtol=0, atol=0.003)
    return found

"""AdapterSearchCV against GridSearchCV on stored embeddings, and one fit against a plain fit."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV, ParameterGrid
from torch import Tensor

from benchmarks._data import Embeddings, load_embeddings, narrow_cone, stored_tasks
from benchmarks.speed._harness import Comparison, Result, compare
from benchmarks.speed._products import search_work
from isoadapt import IStarAdapter
from isoadapt.adapters._training._networks import LinearNetwork
from isoadapt.adapters._training._penalty import Penalty
from isoadapt.adapters._training._problem import Problem
from isoadapt.losses import IsoScoreLoss
from isoadapt.model_selection import AdapterSearchCV

GRID: dict[str, list[float]] = {
    "lam": [-5.0, -3.0, -1.0, 1.0, 3.0, 5.0],
    "zeta": [0.2, 0.4, 0.6, 0.8],
}
SMALL: dict[str, list[float]] = {"lam": [-1.0, 1.0], "zeta": [0.2, 0.8]}
EPOCHS = 3
TARGET = 2.5
TARGET_OF_TWO = 1.6  # against two processes


def run(quick: bool) -> Iterator[Result]:
    """Compare searches of the same grid, then a fit with and without forming Σ_S."""
    small = narrow_cone(200, 16, seed=0)
    compare_searches(small, SMALL, 2, repeats=1)
    if quick:
        data = narrow_cone(1000, 96, seed=0)
        yield compare_searches(data, SMALL, 2, repeats=1)
        yield one_fit(data, repeats=1)
        return
    data = load_embeddings("cola") if "cola" in stored_tasks() else narrow_cone(8551, 384, 0)
    yield compare_searches(data, GRID, 5, repeats=1, target=TARGET)
    compare_searches(small, SMALL, 2, repeats=1, n_jobs=2)  # both find the processes started
    of_two = compare_searches(data, GRID, 5, repeats=3, n_jobs=2, target=TARGET_OF_TWO)
    yield of_two
    yield _lower_bound(data, GRID, 5, of_two)
    yield one_fit(data, repeats=3)


def compare_searches(
    data: Embeddings,
    grid: dict[str, list[float]],
    folds: int,
    *,
    repeats: int,
    n_jobs: int | None = None,
    target: float | None = None,
) -> Comparison:
    """Compare the times of two searches of the same candidates, and check their scores."""
    adapter = IStarAdapter(data.head, max_epochs=EPOCHS, device="cpu", random_state=0)
    seconds: dict[type, list[float]] = {AdapterSearchCV: [], GridSearchCV: []}
    scores = {}
    for repeat in range(repeats):
        for kind in list(seconds)[:: 1 if repeat % 2 == 0 else -1]:
            before = time.perf_counter()
            found = kind(adapter, grid, cv=folds, refit=False, n_jobs=n_jobs)
            found.fit(data.X_train, data.y_train)
            seconds[kind].append(time.perf_counter() - before)
            scores[kind] = found.cv_results_["mean_test_score"]
            if kind is AdapterSearchCV and found.unbatched_:
                raise ValueError(f"not all fits were trained together: {found.unbatched_}")
    jobs = f", both with n_jobs={n_jobs}" if n_jobs else ""
    return Comparison(
        f"AdapterSearchCV, {len(ParameterGrid(grid))} I-STAR candidates × {folds} folds, "
        f"against GridSearchCV{jobs}",
        tuple(seconds[AdapterSearchCV]),
        tuple(seconds[GridSearchCV]),
        target,
        {
            "n": len(data.X_train),
            "d": data.X_train.shape[1],
            "epochs": adapter.max_epochs,
            "data": data.name,
            "largest_score_difference": float(np.abs(np.subtract(*scores.values())).max()),
        },
    )


def _lower_bound(
    data: Embeddings, grid: dict[str, list[float]], folds: int, searches: Comparison
) -> Comparison:
    """Compare the work that no search avoids with the reference of `searches`."""
    adapter = IStarAdapter(max_epochs=EPOCHS)
    n, d = data.X_train.shape
    n_fits = folds * len(ParameterGrid(grid))
    works = [
        search_work(adapter, grid["zeta"], n - n // folds, d, n_fits) for _ in searches.reference_s
    ]
    least = min(works, key=lambda work: work.seconds)
    return Comparison(
        f"lower bound: {least} of this search alone, against GridSearchCV with n_jobs=2",
        tuple(work.seconds for work in works),
        searches.reference_s,
        facts={key: searches.facts[key] for key in ("n", "d", "epochs", "data")},
    )


class PlainIStar(IStarAdapter):
    """IStarAdapter that forms Σ_S = AΣAᵀ in each step and differentiates it with autograd."""

    def _make_penalty(self, problem: Problem, device: torch.device) -> Penalty:
        inputs = problem.moments.mapped(*problem.coordinates.into).covariance()
        return _FormedShrinkage(IsoScoreLoss(self.zeta, "linear"), inputs.float().to(device))


class _FormedShrinkage(Penalty):
    def __init__(self, loss: IsoScoreLoss, inputs: Tensor) -> None:
        super().__init__(loss)
        self.inputs = inputs

    def __call__(self, points: Tensor, targets: Tensor | None, network: LinearNetwork) -> Tensor:
        return self.loss(points, network.weight @ self.inputs @ network.weight.mT)


def one_fit(data: Embeddings, repeats: int) -> Comparison:
    """Compare one fit with a fit of PlainIStar."""
    settings = {"max_epochs": EPOCHS, "device": "cpu", "random_state": 0}
    ours, plain = (kind(data.head, **settings) for kind in (IStarAdapter, PlainIStar))
    return compare(
        "IStarAdapter, one fit, against Σ_S formed and differentiated by autograd",
        lambda: ours.fit(data.X_train, data.y_train),
        lambda: plain.fit(data.X_train, data.y_train),
        repeats=repeats,
        n=len(data.X_train),
        d=data.X_train.shape[1],
        epochs=EPOCHS,
        data=data.name,
    )

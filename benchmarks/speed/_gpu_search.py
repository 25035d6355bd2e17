"""The benchmarks of `benchmarks.speed.gpu` for searches and moments."""

from collections.abc import Iterator
from typing import Any

import torch
from sklearn.model_selection import GridSearchCV

from benchmarks._data import bumpy_cloud
from benchmarks.speed._devices import agree, finished, sample_data
from benchmarks.speed._harness import Result, compare
from isoadapt import IStarAdapter
from isoadapt.geometry import Moments
from isoadapt.metrics import isoscore
from isoadapt.model_selection import AdapterSearchCV

GRID = {"lam": [-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], "zeta": [0.2, 0.4, 0.6, 0.8]}
FOLDS = 5
EPOCHS = 5
TARGET = 25.0
POINTS = 0.003  # 0.3 points of accuracy


def search_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that a joint search scores as single fits and as the CPU does, and time it."""
    data = sample_data(quick)
    grid = {name: values[:2] for name, values in GRID.items()} if quick else GRID

    def search(kind: type, place: str) -> Any:
        adapter = IStarAdapter(data.head, max_epochs=EPOCHS, device=place, random_state=0)
        return kind(adapter, grid, cv=FOLDS, refit=False).fit(data.X_train, data.y_train)

    def scores(kind: type, place: str) -> Any:
        return search(kind, place).cv_results_["mean_test_score"]

    batched = scores(AdapterSearchCV, device.type)
    agree("AdapterSearchCV, scores on CPU", scores(AdapterSearchCV, "cpu"), batched, POINTS)
    one_by_one = scores(GridSearchCV, device.type)
    agree("AdapterSearchCV, scores one by one", one_by_one, batched, POINTS)
    yield compare(
        f"AdapterSearchCV on {device.type}, {len(batched)} candidates × {FOLDS} folds, against "
        "GridSearchCV there",
        finished(lambda: search(AdapterSearchCV, device.type), device),
        finished(lambda: search(GridSearchCV, device.type), device),
        repeats=1,
        target=None if quick else TARGET,
        n=len(data.X_train),
        d=data.X_train.shape[1],
        epochs=EPOCHS,
    )


def moments_on(device: torch.device, quick: bool) -> Iterator[Result]:
    """Check that the device and the CPU give the same covariance, and time one pass."""
    n, d = (500, 32) if quick else (200_000, 384)
    points = bumpy_cloud(n, d, seed=0) + 100
    there = points.to(device)
    expected, found = (Moments().update(rows).covariance() for rows in (points, there))
    if found.device.type != device.type:
        raise ValueError(f"moments of points on {device.type} are on {found.device.type}")
    agree("Moments, covariance", expected, found.cpu(), 1e-10 * float(expected.abs().max()))
    agree("IsoScore of a tensor there", isoscore(points), isoscore(there), 0.0)
    yield compare(
        f"Moments, {device.type} against CPU",
        finished(lambda: Moments().update(there), device),
        lambda: Moments().update(points),
        repeats=1 if quick else 5,
        n=n,
        d=d,
    )

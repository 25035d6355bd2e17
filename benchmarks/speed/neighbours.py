"""Nearest neighbours against scikit-learn's brute force and faiss's flat index, in one thread."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from benchmarks.speed._harness import Result, Skipped, compare
from isoadapt._utils.threads import one_thread
from isoadapt.geometry._neighbours import nearest_neighbours

D, K = 384, 10
METRICS = ("cosine", "euclidean")


def run(quick: bool) -> list[Result]:
    """Measure the neighbours of each row among all others."""
    n, repeats = (3_000, 1) if quick else (20_000, 5)
    X = np.random.default_rng(0).normal(size=(n, D)).astype(np.float32)
    return [part for metric in METRICS for part in _compare(X, metric, repeats)]


def _compare(X: NDArray[np.float32], metric: str, repeats: int) -> list[Result]:
    points = torch.from_numpy(X).double()

    def ours() -> None:
        with one_thread():
            nearest_neighbours(points, K, metric)

    references = {"scikit-learn's brute force": _sklearn(X, metric)}
    missing: list[Result] = []
    try:
        references["faiss's flat index"] = _faiss(X, metric)
    except ImportError:
        missing = [Skipped(f"{K} neighbours, {metric}, against faiss", "faiss-cpu is missing")]
    return [
        *(
            compare(
                f"{K} neighbours, {metric}, against {name}",
                ours,
                reference,
                repeats=repeats,
                target=1.0,
                n=len(X),
                d=D,
                threads=1,
            )
            for name, reference in references.items()
        ),
        *missing,
    ]


def _sklearn(X: NDArray[np.float32], metric: str) -> Callable[[], None]:
    index = NearestNeighbors(n_neighbors=K, metric=metric, algorithm="brute", n_jobs=1).fit(X)

    def search() -> None:
        with threadpool_limits(1):
            index.kneighbors()

    return search


def _faiss(X: NDArray[np.float32], metric: str) -> Callable[[], None]:
    import faiss

    rows = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    index = (faiss.IndexFlatIP if metric == "cosine" else faiss.IndexFlatL2)(D)
    index.add(rows)

    def search() -> None:
        with threadpool_limits(1):  # OpenMP, and the BLAS that faiss brings
            index.search(rows, K + 1)  # the row itself is among them

    return search

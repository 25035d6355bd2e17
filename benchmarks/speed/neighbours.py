"""Nearest neighbours against scikit-learn's brute force and faiss's flat index, in one thread."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from benchmarks.speed._harness import Result, compare, single_thread
from isoadapt.geometry._neighbours import nearest_neighbours

D, K = 384, 10


def run(quick: bool) -> Iterator[Result]:
    """Compare searches for the neighbours of each row among all others."""
    X = np.random.default_rng(0).normal(size=(3_000 if quick else 20_000, D)).astype(np.float32)
    points = torch.from_numpy(X).double()
    for metric in ("cosine", "euclidean"):
        brute = NearestNeighbors(n_neighbors=K, metric=metric, algorithm="brute", n_jobs=1).fit(X)
        references: tuple[tuple[str, Callable[[], object], float | None], ...] = (
            ("scikit-learn's brute force", brute.kneighbors, 1.2),
            ("faiss's flat index", _faiss_search(X, metric), None),
        )
        for name, reference, target in references:
            with single_thread():
                yield compare(
                    f"{K} neighbours, {metric}, against {name}",
                    lambda metric=metric: nearest_neighbours(points, K, metric),
                    reference,
                    repeats=1 if quick else 5,
                    target=target,
                    rows=X,
                    threads=1,
                )


def _faiss_search(X: NDArray[np.float32], metric: str) -> Callable[[], object]:
    import faiss

    rows = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    index = (faiss.IndexFlatIP if metric == "cosine" else faiss.IndexFlatL2)(D)
    index.add(rows)
    return lambda: index.search(rows, K + 1)  # the row itself is among them

"""Nearest neighbours against scikit-learn's brute force."""

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from benchmarks.speed._harness import Comparison, compare
from isoadapt.geometry._neighbours import nearest_neighbours

D, K = 384, 10


def run(quick: bool) -> Iterator[Comparison]:
    """Compare searches for the neighbours of each row among all others."""
    X = np.random.default_rng(0).normal(size=(3_000 if quick else 20_000, D)).astype(np.float32)
    points = torch.from_numpy(X).double()
    for metric, repeats in {"cosine": 1, "euclidean": 3}.items():
        brute = NearestNeighbors(n_neighbors=K, metric=metric, algorithm="brute").fit(X)
        yield compare(
            f"{K} neighbours, {metric}, against scikit-learn's brute force",
            lambda metric=metric: nearest_neighbours(points, K, metric),
            brute.kneighbors,
            repeats=1 if quick else repeats,
            target=1.2,
            rows=X,
        )

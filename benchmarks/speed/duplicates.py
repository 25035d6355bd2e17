"""Near-duplicates and novelty scores against plain products, and FAISS if it is installed."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np
from sklearn.preprocessing import normalize

from benchmarks.speed._harness import Comparison, compare
from isoadapt import NoveltyDetector
from isoadapt.metrics import find_duplicates

D, SIDE, LIMIT = 384, 2_048, 0.25  # one in a million cosines of these rows is above the limit


def run(quick: bool) -> Iterator[Comparison]:
    """Compare all pairs of rows, and the nearest rows of others."""
    rng, n = np.random.default_rng(0), 3_000 if quick else 30_000
    X, new = (normalize(rng.normal(size=(each, D)).astype(np.float32)) for each in (n, n // 10))
    options = {"repeats": 1 if quick else 2, "rows": X}
    name = "find_duplicates, with its threshold, against"
    yield compare(
        f"{name} a product above a given one",
        lambda: find_duplicates(X),
        lambda: [np.argwhere(X[i : i + SIDE] @ X.T > LIMIT) for i in range(0, n, SIDE)],
        **options,
    )
    if find_spec("faiss"):
        import faiss

        index = faiss.IndexFlatIP(D)
        index.add(X)
        search = partial(index.range_search, X, LIMIT)
        yield compare(f"{name} FAISS's range_search", lambda: find_duplicates(X), search, **options)
    detector = NoveltyDetector().fit(X, X_calibration=new)
    yield compare(
        f"NoveltyDetector.score_samples of {n // 10} rows against a product",
        lambda: detector.score_samples(new),
        lambda: [(new[i : i + SIDE] @ X.T).max(axis=1) for i in range(0, len(new), SIDE)],
        **options,
    )

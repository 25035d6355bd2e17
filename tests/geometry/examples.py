"""Point clouds, and the unbiased estimates of tr(Σ)² and ‖Σ‖² by their definition."""

import itertools

import numpy as np


def cloud(*shape, seed=0, decay=0.7, offset=1.0):
    """Points of decaying variances, in a random position."""
    rng, d = np.random.default_rng(seed), shape[-1]
    X = rng.normal(size=shape) * np.arange(1, d + 1) ** -decay
    return X @ np.linalg.qr(rng.normal(size=(d, d)))[0] + offset * rng.normal(size=d)


def over_all_quadruples(X, owners):
    """Means of ‖a-b‖²‖c-e‖²/4 and ((a-b)ᵀ(c-e))²/4 over rows of four different groups."""
    rows = [q for q in itertools.permutations(range(len(X)), 4) if len({*owners[[*q]]}) == 4]
    a, b, c, e = X[np.array(rows)].swapaxes(0, 1)
    first, second = a - b, c - e
    traces = (first**2).sum(1) * (second**2).sum(1) / 4
    return np.array([traces.mean(), ((first * second).sum(1) ** 2 / 4).mean()])

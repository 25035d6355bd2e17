"""Bars of dimension 0 against other libraries, and their selection against a recursive form."""

import math
import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks._data import bumpy_cloud
from benchmarks.speed._harness import Comparison, compare
from isoadapt.geometry import persistence_bars, select_bars

D = 768
CALLS = {64: 20, 1000: 1}  # calls in one measurement, by the number of points

Floats = NDArray[np.floating]


def run(quick: bool) -> Iterator[Comparison]:
    """Compare bars of points in float32, then the selection of bars."""
    repeats = 1 if quick else 5
    for name, reference, n, target in (
        ("ripser", bars_by_ripser, 64, 2.0),
        ("ripser", bars_by_ripser, 1000, 10.0),
        ("gudhi", bars_by_gudhi, 64, 2.0),
        ("gudhi", bars_by_gudhi, 1000, 20.0),
    ):
        title, calls = f"H0 bars, float32, against {name}", (persistence_bars, reference)
        clouds = [bumpy_cloud(n, D, seed).numpy() for seed in range(CALLS[n])]
        np.testing.assert_allclose(*(bars(clouds[0]) for bars in calls), rtol=1e-5)
        each = (lambda bars=bars, own=clouds: [bars(X) for X in own] for bars in calls)
        yield compare(title, *each, repeats=repeats, rows=clouds[0], target=target)
    bars = persistence_bars(bumpy_cloud(501 if quick else 1001, D, seed=0).double().numpy())
    kinds = select_bars, select_bars_recursively
    np.testing.assert_allclose(*(select(bars) for select in kinds), rtol=1e-5)
    title, each = "selection of bars, against its recursive form", (partial(k, bars) for k in kinds)
    yield compare(title, *each, repeats=repeats, target=50.0)


def bars_by_ripser(X: Floats) -> Floats:
    """Compute the finite bars of dimension 0, longest first, with ripser (in float32)."""
    from ripser import ripser

    with warnings.catch_warnings():  # ripser warns of fewer rows than columns
        warnings.simplefilter("ignore")
        deaths = ripser(X, maxdim=0)["dgms"][0][:, 1]
    return np.sort(deaths[np.isfinite(deaths)])[::-1]


def bars_by_gudhi(X: Floats) -> Floats:
    """Compute the finite bars of dimension 0, longest first and including zeros, with gudhi."""
    import gudhi

    tree = gudhi.RipsComplex(points=X).create_simplex_tree(max_dimension=1)
    tree.compute_persistence(min_persistence=-1)
    deaths = tree.persistence_intervals_in_dimension(0)[:, 1]
    return np.sort(deaths[np.isfinite(deaths)])[::-1]


def select_bars_recursively(bars: Floats) -> Floats:
    """Select bars step by step as the algorithm says, computing every entropy from scratch."""
    lengths = np.sort(bars[bars > 0])[::-1]
    if len(lengths) < 4 or lengths[0] == lengths[-1]:
        return lengths
    longest, shortest = lengths[0], lengths[-1]
    rest = np.append(lengths[1:], longest)
    return np.concatenate([[longest], _features(rest, shortest / longest)])


def _features(bars: Floats, alpha: float) -> Floats:
    n = len(bars)
    before = bars.sum()
    for i in range(1, n - 2):
        total = bars[i:].sum()
        after = total + i * total / math.exp(_entropy(bars[i:]))
        if before / after < 1:
            break
        before = after
    limit = math.ceil(alpha * n * (alpha - 1 - math.log(alpha)) / (alpha - 1) ** 2)
    if limit < i:
        return _features(np.concatenate([bars[:i], bars[-2:]]), alpha)
    return bars[:i]


def _entropy(bars: Floats) -> float:
    shares = bars / bars.sum()
    return float(-(shares * np.log(shares)).sum())

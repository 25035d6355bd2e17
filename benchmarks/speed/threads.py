"""Common calls with the default threads against one thread, and a fit beside a busy program.

Measure on an otherwise idle machine.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

import isoadapt as iso
from benchmarks._data import load_embeddings, narrow_cone
from benchmarks.speed._harness import Comparison, apart, seconds_of, single_thread

BUSY = "import torch\nA = torch.randn(2000, 2000)\nprint('busy', flush=True)\nwhile True: A @ A"
TARGETS = {"Whitening, 100,000 rows": 1 / 0.8, "TeacherReadout": 1 / 0.8}
"""Least ratios; those of other calls, of which small ones gain nothing, may be 1.1 times slower."""


def run(quick: bool) -> Iterator[Comparison]:
    """Compare threads, each call in a process of its own, then a fit beside a busy process."""
    for name, (n, d, _) in calls(quick).items():
        pairs = [
            [apart(_seconds, name, quick, single) for single in (False, True)]
            for _ in range(1 if quick else 3)
        ]
        ours, one = map(tuple, zip(*pairs, strict=True))
        text = f"{name}: default threads, against one"
        yield Comparison(text, ours, one, TARGETS.get(name, 1 / 1.1), {"n": n, "d": d})
    yield _beside_a_busy_process(quick)


def calls(quick: bool) -> dict[str, tuple[int, int, Callable[[], Any]]]:
    """Return n, d and the call that is measured, by the name of its row."""
    data, (n, many) = load_embeddings("cola"), (400, 2000) if quick else (4000, 100_000)
    X, y, head = data.X_train, data.y_train, data.head
    big = cache(lambda: np.random.default_rng(0).normal(size=(many, 384)))  # drawn if it is read
    wide = np.hstack([X, X[:, ::-1], X**2])[:n]
    refitted = iso.IsoBN(head="logistic", head_training="refit")
    preserving = iso.LogitPreservingWhitening(head)
    return {
        "Whitening, 100,000 rows": (many, 384, lambda: iso.Whitening().fit(big())),
        "Whitening": (*X.shape, lambda: iso.Whitening().fit(X)),
        "LogitPreservingWhitening": (*X.shape, lambda: preserving.fit(X, y)),
        "AllButTheTop": (*X.shape, lambda: iso.AllButTheTop().fit(X)),
        "ClusterIsotropy": (*X.shape, lambda: iso.ClusterIsotropy(random_state=0).fit(X)),
        "IsoBN with a refitted head": (3000, 384, lambda: refitted.fit(X[:3000], y[:3000])),
        "TeacherReadout": (*wide.shape, lambda: iso.TeacherReadout().fit(wide, X[:n])),
        "the report": (n, 384, lambda: iso.metrics.isotropy_report(X[:n])),
    }


def _seconds(name: str, quick: bool, single: bool) -> float:
    """Return the median time of a call after one that is not measured."""
    call = calls(quick)[name][-1]
    with single_thread() if single else nullcontext():
        call()
        return median(seconds_of(call) for _ in range(1 if quick else 3))


def _beside_a_busy_process(quick: bool) -> Comparison:
    """Compare a fit beside a process that multiplies matrices in all threads with one alone."""
    data = narrow_cone(400, 384, seed=0) if quick else load_embeddings("mrpc")
    layer = iso.IsotropyLayer(data.head, device="cpu", random_state=0)
    fit = partial(layer.fit, data.X_train, data.y_train)
    busy, alone = [], []
    for _ in range(1 if quick else 3):
        alone.append(seconds_of(fit))
        with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
            try:
                if process.stdout is None or process.stdout.readline().strip() != b"busy":
                    raise RuntimeError("the process that should keep the cores busy is not there")
                busy.append(seconds_of(fit))
            finally:
                process.kill()
    return Comparison(
        "IsotropyLayer, default fit, beside a busy process, against alone",
        tuple(busy),
        tuple(alone),
        1 / 2.5,
        {"n": len(data.X_train), "d": data.X_train.shape[1]},
    )

"""Threads in training: steps in all threads against one, and fits beside a busy program.

Measure on an otherwise idle machine.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch

from benchmarks._data import embeddings_or_cone, narrow_cone
from benchmarks.speed._harness import Comparison, Result, Skipped, compare, seconds_of
from isoadapt import IsotropyLayer
from isoadapt.adapters._engine import _loop

SIZES = ((64, 384), (64, 1024), (512, 384), (4096, 768))  # rows, features
BUSY = "import torch\nA = torch.randn(2000, 2000)\nprint('busy', flush=True)\nwhile True: A @ A"


def run(quick: bool) -> Iterator[Result]:
    """Compare one epoch at several sizes of a step, then a fit beside a busy process with alone."""
    if torch.get_num_threads() == 1:
        yield Skipped("threads of training", "torch has only one: unset OMP_NUM_THREADS")
        return
    for n_rows, d in SIZES[:1] if quick else SIZES:
        yield _steps(
            n_rows, d, n_steps=4 if n_rows * d * d > 2e8 else 24, repeats=1 if quick else 3
        )
    data = narrow_cone(400, 384, seed=0) if quick else embeddings_or_cone("mrpc", 3668)
    layer = IsotropyLayer(data.head, device="cpu", random_state=0)
    busy, alone = [], []
    for _ in range(1 if quick else 3):
        alone.append(seconds_of(lambda: layer.fit(data.X_train, data.y_train)))
        with _busy_process():
            busy.append(seconds_of(lambda: layer.fit(data.X_train, data.y_train)))
    yield Comparison(
        "IsotropyLayer, default fit, beside a busy process, against alone",
        tuple(busy),
        tuple(alone),
        1 / 2.5,
        {"n": len(data.X_train), "d": data.X_train.shape[1]},
    )


def _steps(n_rows: int, d: int, n_steps: int, repeats: int) -> Comparison:
    """Compare an epoch in all threads with an epoch in one; above 1, all threads are faster."""
    data = narrow_cone(n_steps * n_rows, d, seed=0)
    settings = {"validation_fraction": None, "max_epochs": 1, "device": "cpu", "random_state": 0}
    layer = IsotropyLayer(data.head, batch_size=n_rows, **settings)

    seconds: dict[float, list[float]] = {0.0: [], float("inf"): []}

    def fit(large_step: float) -> None:
        with patch.object(_loop, "LARGE_STEP", large_step):
            layer.fit(data.X_train, data.y_train)
        seconds[large_step].append(layer.history_[0]["dur"])

    name = f"{n_steps} steps of an IsotropyLayer fit in all threads, against one"
    whole = compare(name, *(partial(fit, way) for way in seconds), repeats=repeats, n=n_rows, d=d)
    ours, reference = (tuple(each[1:]) for each in seconds.values())  # without the warm-up
    return replace(whole, ours_s=ours, reference_s=reference)


@contextmanager
def _busy_process() -> Iterator[None]:
    """Run a process that multiplies matrices in all threads while the block runs."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != b"busy":
                raise RuntimeError("the process that should keep the cores busy has not started")
            yield
        finally:
            process.kill()
